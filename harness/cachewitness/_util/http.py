"""What is asked of servers over HTTP: one transport, httpx, with nothing left to its defaults.

* A deadline bounds the whole exchange, however slowly bytes come: httpx bounds each read, so a
  timer shuts the socket down.
* A body is read up to a limit, byte by byte as it was sent; nothing is unpacked.
* Whatever goes wrong below a status is one exception, `NoAnswer`, with one line.
* No proxy of the environment is asked, and no redirection is followed unless the caller says so.
* Each exchange has a connection of its own. One that is kept may have been closed by the server
  meanwhile, without a word, and then nobody knows whether the server fell over the request; and a
  server that writes head and body apart answers 40 ms later over a kept one (Nagle's algorithm
  against delayed acknowledgements, measured with Python's `http.server`).
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from socket import SHUT_RDWR
from threading import Event, Timer
from typing import Any, NamedTuple

import httpx

CONNECT_S = 20.0
"""Seconds in which a server must be reached."""
OK = 200
SERVER_ERROR = 500
_FAILURES = (httpx.HTTPError, httpx.InvalidURL, OSError)


class NoAnswer(Exception):
    """A server was not reached, broke its answer off, sent no HTTP, or took too long (`late`)."""

    def __init__(self, error: Exception | str, *, late: bool = False) -> None:
        super().__init__(" ".join(str(error).split()) or type(error).__name__)
        self.late = late


class Reply(NamedTuple):
    """A server's answer; `headers` are found in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the decoded body, None if it is empty. Raises ValueError if it is no JSON."""
        try:
            return json.loads(self.body) if self.body.strip() else None
        except RecursionError:
            raise ValueError("it sends JSON that is nested without end") from None


class Exchange:
    """One request and its answer, which another thread may leave at any time.

    It is a context manager: on entry it sends the request and waits for the status. `within` are
    the seconds that it may take in all; None: for ever, for a caller that leaves it. `body` may
    come in pieces; the headers then need its length. `sent` is set once the request has been sent
    whole. `follow`: whether redirections are followed.
    """

    def __init__(
        self,
        method: str,
        url: str,
        body: bytes | Iterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        within: float | None = None,
        follow: bool = False,
        sent: Event | None = None,
    ) -> None:
        self.sent = sent or Event()
        self._asked = (method, url, body, headers)
        self._within = within
        self._follow = follow
        self._timer = Timer(within or 0.0, self._expire)
        self._timer.daemon = True
        self._gone = Event()
        self._late = False
        self._socket: Any = None
        self._open = ExitStack()

    def __enter__(self) -> Exchange:
        """Send the request. Raises NoAnswer if no status comes."""
        if self._within is not None:
            self._timer.start()
        try:
            with self._one_failure():
                self._send()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._open.close()

    @property
    def status(self) -> int:
        """The answer's status."""
        return self._response.status_code

    @property
    def headers(self) -> Mapping[str, str]:
        """The answer's headers, found in any case."""
        return self._response.headers

    def read(self, most: int) -> bytes:
        """Return the body; of one that is longer, the first `most` bytes.

        Raises NoAnswer if it ends before its end.
        """
        content = bytearray()
        with self._one_failure():
            for piece in self._response.iter_raw():
                content += piece
                if len(content) >= most:
                    break
        return bytes(content[:most])

    def lines(self, most: int) -> Iterator[bytes]:
        """Yield the lines of the body as they come, without their ends; of one that is longer, the
        first `most` bytes.

        Raises NoAnswer if the body ends before its end.
        """
        rest = bytearray()
        with self._one_failure():
            for piece in self._response.iter_raw():
                rest += piece
                if b"\n" in piece:
                    *whole, rest = rest.split(b"\n")
                    yield from map(bytes, whole)
                if len(rest) >= most:
                    yield bytes(rest[:most])
                    return
        if rest:
            yield bytes(rest)

    def leave(self) -> None:
        """End the exchange, whatever it waits for; what had come stays."""
        self._gone.set()
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(SHUT_RDWR)

    def _send(self) -> None:
        method, url, body, headers = self._asked
        client = self._open.enter_context(
            httpx.Client(**_settings(url, self._within, follow=self._follow))
        )
        self._response = self._open.enter_context(
            client.stream(
                method, url, content=body, headers=headers, extensions={"trace": self._traced}
            )
        )

    def _traced(self, name: str, info: Mapping[str, Any]) -> None:
        """Take in what the transport does: which socket it opens, and when all is sent."""
        if name in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._socket = info["return_value"].get_extra_info("socket")
            if self._gone.is_set():  # whoever left before there was a socket could not shut it down
                self.leave()
        elif name == "http11.send_request_body.complete":
            self.sent.set()

    def _expire(self) -> None:
        self._late = True
        self.leave()

    @contextmanager
    def _one_failure(self) -> Iterator[None]:
        """Turn whatever the transport raises into NoAnswer.

        A socket that is shut down may also look like the end of a body, so the deadline is asked
        last.
        """
        try:
            yield
        except _FAILURES as error:
            late = self._late or isinstance(error, httpx.TimeoutException)
            raise NoAnswer(error, late=late) from None
        if self._late:
            raise NoAnswer("timed out", late=True)


def ask(
    method: str,
    url: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    within: float,
    most: int,
    follow: bool = False,
) -> Reply:
    """Return what a server answers within some seconds, of its body `most` bytes at most.

    Raises NoAnswer if it does not.
    """
    with Exchange(method, url, body, headers, within=within, follow=follow) as exchange:
        return Reply(exchange.status, exchange.headers, exchange.read(most))


async def post(
    url: str, body: bytes, headers: Mapping[str, str], *, within: float, most: int
) -> Reply:
    """Return what a server answers to a POST, as `ask` does, while others are asked; redirections
    are followed.

    Raises NoAnswer if it does not answer.
    """
    content = bytearray()
    try:
        async with (
            asyncio.timeout(within),
            httpx.AsyncClient(**_settings(url, within, follow=True)) as client,
            client.stream("POST", url, content=body, headers=headers) as response,
        ):
            async for piece in response.aiter_raw():
                content += piece
                if len(content) >= most:
                    break
            return Reply(response.status_code, response.headers, bytes(content[:most]))
    except _FAILURES as error:
        late = isinstance(error, (TimeoutError, httpx.TimeoutException))
        raise NoAnswer(error, late=late) from None


def _settings(url: str, within: float | None, *, follow: bool) -> dict[str, Any]:
    """Return what a client is made with."""
    secure = follow or url.startswith("https:")
    return {
        "verify": _certificates() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        "trust_env": False,
        "follow_redirects": follow,
        "headers": {"Accept-Encoding": "identity"},
        "timeout": httpx.Timeout(within, connect=min(CONNECT_S, within or CONNECT_S)),
    }


@lru_cache
def _certificates() -> ssl.SSLContext:
    """Return the system's certificates, which take a tenth of a second to load."""
    return ssl.create_default_context()
