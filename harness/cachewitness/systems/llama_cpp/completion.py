"""One request to llama.cpp's server: its answer is read as it comes, in a thread of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from threading import Event, Thread
from typing import Any

from cachewitness._util import http
from cachewitness.core.events import Answer, Ended
from cachewitness.core.trace_format import Submit

LINE_MAX = 1 << 24
"""Bytes of a line of an answer, or of an error's body, that are read."""
HEADERS = {"Content-Type": "application/json"}
NO_ANSWER = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading an answer raises that is of another form."""
FULL = "exceed"
"""What the server's words have in common if a request has more tokens than there is room for."""


class ServerFailed(Exception):
    """The server answered what it must not; one line."""


class Completion:
    """A request that is sent but for its last byte; `heard` is called, in another thread, for each
    token and at its end.

    `marked` are parameters by which the server's log tells it from others.
    """

    def __init__(
        self,
        address: str,
        asked: Submit,
        *,
        caching: bool,
        heard: Callable[[], None],
        marked: Mapping[str, int] | None = None,
    ) -> None:
        self.r = asked.r
        self.over = False
        self.tokens = list[int]()
        self._asked = asked
        self._heard = heard
        self._logprobs = list[float | None]()
        self._restored, self._full, self._gone = -1, False, False
        self._failed = ""
        body = json.dumps({**_body(asked, caching=caching), **(marked or {})}).encode()
        self._waits = Event()
        self._go = Event()
        headers = {**HEADERS, "Content-Length": str(len(body))}
        url = f"{address}/completion"
        self._exchange = http.Exchange("POST", url, self._pieces(body), headers)
        self._thread = Thread(target=self._listen, daemon=True)
        self._thread.start()
        self._waits.wait()

    def send(self) -> None:
        """Send the last byte, upon which the server takes the request in."""
        self._go.set()
        self._exchange.sent.wait()

    def leave(self) -> None:
        """Go away without waiting for the answer."""
        self._gone = True
        self._exchange.leave()
        self._go.set()
        self._thread.join()

    def answer(self, *, cancelled: bool = False) -> Answer:
        """Return the answer so far. Raises ServerFailed if what came is none."""
        if self._failed and not cancelled:
            raise ServerFailed(f"{self.r}: {self._failed}")
        ended: Ended = "cancelled" if cancelled else "refused" if self._full else "length"
        return Answer(
            r=self.r,
            tokens=self.tokens[:],
            logprobs=self._logprobs[:],
            restored=self._restored,
            ended=ended,
        )

    # --- what comes -------------------------------------------------------------------------------

    def _pieces(self, body: bytes) -> Iterator[bytes]:
        """Yield a body, its last byte only when it is to be sent."""
        yield body[:-1]
        self._waits.set()
        self._go.wait()
        yield body[-1:]

    def _listen(self) -> None:
        try:
            with self._exchange as exchange:
                self._follow(exchange)
        except (http.NoAnswer, *NO_ANSWER) as error:
            self._failed = f"its answer cannot be read: {error!r}"
        self.over = True
        self._waits.set()
        self._exchange.sent.set()
        self._heard()

    def _follow(self, exchange: http.Exchange) -> None:
        if exchange.status != http.OK:
            self._refused(json.loads(exchange.read(LINE_MAX))["error"])
            return
        ended = False
        for line in exchange.lines(LINE_MAX):
            name, _, text = line.partition(b": ")
            if name == b"error":
                self._refused(json.loads(text))
                return
            if name == b"data":
                part = json.loads(text)
                if "error" in part:
                    self._refused(part["error"])
                    return
                ended = self._take(part)
        if not ended and not self._gone:
            self._failed = f"the server ends it after {len(self.tokens)} tokens"

    def _take(self, part: dict[str, Any]) -> bool:
        """Take a part of the answer in; return whether it was the last."""
        self.tokens += part["tokens"]
        self._logprobs += [row["logprob"] for row in part.get("completion_probabilities", ())]
        if part["stop"]:
            self._restored = part["timings"]["cache_n"]
            self._full = bool(part["truncated"]) and len(self.tokens) < self._asked.generate
        self._heard()
        return bool(part["stop"])

    def _refused(self, error: dict[str, Any]) -> None:
        """Take in why there is no answer: no room is a refusal, anything else a failure."""
        message = str(error.get("message"))
        self._full = FULL in message
        if not self._full:
            self._failed = f"the server answers {error.get('code')}, {message[:200]!r}"


def _body(asked: Submit, *, caching: bool) -> dict[str, Any]:
    """Return a request for the likeliest tokens, with their logprobs; no token ends it."""
    return {
        "prompt": asked.tokens,
        "n_predict": asked.generate,
        "cache_prompt": caching,
        "temperature": 0.0,
        "ignore_eos": True,
        "n_probs": 1,
        "return_tokens": True,
        "stream": True,
    }
