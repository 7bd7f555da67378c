"""A gateway in front of several doubles of a server (`openai_double`)."""

from __future__ import annotations

import itertools
import json
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from suites.support.openai_double import Double


@contextmanager
def gateway(replicas: Sequence[Double], *, remembers: bool = False) -> Iterator[str]:
    """Serve the replicas at one address, questions in turn; yield it.

    If it `remembers`, who asks what was asked before, with whatever salt, gets the same answer.
    """
    turn = itertools.cycle(replicas)
    lock = threading.Lock()
    memory: dict[str, tuple[str, bytes]] = {}

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            self._relay(replicas[0], None)

        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                to = next(turn)
            self._relay(to, asked)

        def _relay(self, to: Double, asked: bytes | None) -> None:
            prompt = str(json.loads(asked)["prompt"]) if asked else self.path
            if not (remembers and prompt in memory):
                request = urllib.request.Request(
                    to.url + self.path, asked, {"Content-Type": "application/json"}
                )
                with urllib.request.urlopen(request) as answer:
                    memory[prompt] = answer.headers["Content-Type"], answer.read()
            kind, content = memory[prompt]
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with ExitStack() as all_of_them:
        for replica in replicas:
            all_of_them.enter_context(replica.serving())
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        server.server_close()
        thread.join()
