"""What is asked over HTTP ends in time, in bounds and in one line, whatever a server does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Event, Thread

import pytest

from cachewitness._util import http

Serve = Callable[[StreamRequestHandler, Event], None]
"""Answers a request whose head was read, until the event."""


@contextmanager
def serving(serve: Serve) -> Iterator[str]:
    """Yield the address of a server whose answers are written by hand."""
    over = Event()

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            with suppress(OSError):  # the other side has gone
                serve(self, over)

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            over.set()
            server.shutdown()


def sent(content: bytes) -> Serve:
    return lambda handler, over: handler.wfile.write(content) and None


def dripping(head: bytes, drop: bytes = b"a") -> Serve:
    """Return a server that sends a head, and then a byte now and then without end."""

    def serve(handler: StreamRequestHandler, over: Event) -> None:
        handler.wfile.write(head)
        while not over.wait(0.05):
            handler.wfile.write(drop)

    return serve


def silent(handler: StreamRequestHandler, over: Event) -> None:
    over.wait(30)


OK = b"HTTP/1.1 200 OK\r\n"
LATE: dict[str, Serve] = {
    "silent": silent,
    "a head without end": dripping(OK + b"X-Long: "),
    "a body without end": dripping(OK + b"\r\n"),
    "a body of known length": dripping(OK + b"Content-Length: 1000000\r\n\r\n"),
}


@pytest.mark.parametrize("serve", LATE.values(), ids=LATE.keys())
def test_a_deadline_bounds_the_whole_exchange(serve: Serve) -> None:
    """Also where every single read is in time, and whether others are asked meanwhile or not."""
    with serving(serve) as url:
        begun = time.monotonic()
        with pytest.raises(http.NoAnswer) as late:
            http.ask("GET", url, within=0.5, most=10**9)
        with pytest.raises(http.NoAnswer) as later:
            asyncio.run(http.post(url, b"", {}, within=0.5, most=10**9))
        assert 1.0 <= time.monotonic() - begun < 10
    assert late.value.late and later.value.late


BROKEN: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "Server disconnected without sending a response."),
    "no HTTP": (b"SSH-2.0-other\r\n\r\n", "illegal status line"),
    "a header that is none": (OK + b"\x00\r\n\r\n", "illegal header line"),
    "half a body": (OK + b"Content-Length: 9\r\n\r\nhalf", "peer closed connection"),
    "half a chunk": (
        OK + b"Transfer-Encoding: chunked\r\n\r\n9\r\nhalf", "peer closed connection"
    ),
    "a chunk that is none": (OK + b"Transfer-Encoding: chunked\r\n\r\nx\r\n", "illegal chunk"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "reason"), BROKEN.values(), ids=BROKEN.keys())
def test_what_is_no_answer_is_one_line_and_not_late(content: bytes, reason: str) -> None:
    with serving(sent(content)) as url:
        with pytest.raises(http.NoAnswer, match=reason) as broken:
            http.ask("GET", url, within=10, most=100)
        with pytest.raises(http.NoAnswer, match=reason):
            asyncio.run(http.post(url, b"", {}, within=10, most=100))
    assert "\n" not in str(broken.value) and not broken.value.late


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://[::", "http://a:99999999"])
def test_nobody_there_and_no_address_are_one_line(url: str) -> None:
    with pytest.raises(http.NoAnswer):
        http.ask("GET", url, within=10, most=100)


def test_of_a_body_without_end_no_more_than_its_bound_is_read() -> None:
    with serving(dripping(OK + b"\r\n", b"a" * 5000)) as url:
        reply = http.ask("GET", url, within=30, most=12_000)
        assert (reply.status, reply.body) == (200, b"a" * 12_000)
        assert len(asyncio.run(http.post(url, b"", {}, within=30, most=12_000)).body) == 12_000


def test_lines_come_as_they_are_sent_and_a_long_one_is_cut() -> None:
    """Only a line feed ends one; what stands behind the last is a line too."""
    text = "a\r\n\nb\u2028c\n".encode() + b"d" * 9
    with serving(sent(OK + b"\r\n" + text)) as url:
        with http.Exchange("GET", url, within=10) as exchange:
            assert list(exchange.lines(100)) == [b"a\r", b"", "b\u2028c".encode(), b"d" * 9]
        with http.Exchange("GET", url, within=10) as exchange:
            assert list(exchange.lines(8))[-1] == b"d" * 8


@pytest.mark.parametrize("serve", [silent, dripping(OK + b"\r\n")], ids=["silent", "dripping"])
def test_who_leaves_waits_no_longer(serve: Serve) -> None:
    over = Event()

    def listen(exchange: http.Exchange) -> None:
        with suppress(http.NoAnswer), exchange:
            exchange.read(10**9)
        over.set()

    with serving(serve) as url:
        exchange = http.Exchange("POST", url, b"{}")
        Thread(target=listen, args=(exchange,), daemon=True).start()
        assert exchange.sent.wait(10) and not over.wait(0.2)
        exchange.leave()
        assert over.wait(10)
        before = http.Exchange("POST", url, b"{}")
        before.leave()
        with pytest.raises(http.NoAnswer), before:
            pass


def test_a_redirection_is_followed_if_the_caller_says_so() -> None:
    """What is sent along, a key for example, would go to whoever it names."""
    with serving(sent(OK + b"Content-Length: 2\r\n\r\nhi")) as there:
        head = f"HTTP/1.1 307 Go\r\nLocation: {there}\r\nContent-Length: 0\r\n\r\n".encode()
        with serving(sent(head)) as url:
            assert http.ask("GET", url, within=10, most=9).status == 307
            assert http.ask("GET", url, within=10, most=9, follow=True).body == b"hi"


def test_no_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with serving(sent(OK + b"\r\n[1]")) as url:
        assert http.ask("GET", url, within=10, most=9).json() == [1]


def test_a_body_that_is_no_json_is_a_value_error() -> None:
    for body in (b"{", b"\xff", b"[" * 100_000):
        with pytest.raises(ValueError):
            http.Reply(200, {}, body).json()
    assert http.Reply(200, {}, b" ").json() is None
