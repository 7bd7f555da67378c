"""A server on a port of its own that answers whatever it is asked with the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import StreamRequestHandler, TCPServer
from threading import Thread


@contextmanager
def answering(reply: bytes) -> Iterator[str]:
    """Yield the address of a server that reads a request's head and body, says so, and hangs up."""

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            length = 0
            while line := self.rfile.readline().strip():
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            self.rfile.read(length)
            self.wfile.write(reply)

    with TCPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
