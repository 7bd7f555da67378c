"""One request to a server: its answer is read as it comes, in a thread of its own.

A server that has no time, or is not there, is waited for (`cachewitness.engines.retries`); one that
fails over a request, or breaks the connection once it has it, has failed. A request that was sent
twice may find what its first sending left, so of its restored tokens nothing is said. A redirection
is not followed: the key would go with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from threading import Event, Thread

from cachewitness._util import http
from cachewitness.core.engine_failure import OwnMistake, describe_error
from cachewitness.core.events import Answer, Ended
from cachewitness.core.intake import BadEvents
from cachewitness.core.trace_format import Submit
from cachewitness.engines.retries import Absences, wait_s
from cachewitness.systems.openai_server.address import BODY_MAX, Address, ServerFailed
from cachewitness.systems.openai_server.completion import Part, PartialAnswer, Unreadable, part_of

ANSWER_MAX = 8 << 20
"""Bytes that an answer may have."""
PATIENCE_S = 30.0
"""Seconds in all that a server which turns a request away is waited for."""
REFUSED = (400, 413, 422)
"""How a server says that a prompt is not for it, too long for example."""
TURNED_AWAY = (408, 425, 429, 503)
"""How it says that it has no time."""


class NotSent:
    """A request that the user keeps from the server; it counts as given up. `heard` is called
    when it would have been sent.
    """

    def __init__(self, r: str, heard: Callable[[], None]) -> None:
        self.over = False
        self._r = r
        self._heard = heard

    def send(self) -> None:
        """Do not send it."""
        self.over = True
        self._heard()

    def leave(self) -> None:
        """There is nothing to leave."""

    def answer(self, *, cancelled: bool = False) -> Answer:
        """Return that there is no answer."""
        return Answer(r=self._r, ended="cancelled" if cancelled else "refused")


class Request:
    """A request for a completion; `heard` is called, in another thread, for each part of the answer
    and at its end.

    `model` is who must answer, if the server says who it is. `cold`: how nothing is to be restored;
    empty if something may be. `left_out` is the number of restored tokens where the server counts
    the prompt's tokens and no restored ones. `absences` are those of all requests of an engine.
    """

    def __init__(
        self,
        address: Address,
        asked: Submit,
        body: bytes,
        heard: Callable[[], None],
        *,
        model: str,
        cold: str = "",
        left_out: int = -1,
        absences: Absences | None = None,
    ) -> None:
        self._model = model
        self._cold = cold
        self._left_out = left_out
        self._absences = absences or Absences()
        r = asked.r
        self._prompt = len(asked.tokens)
        generate = asked.generate
        self.r = r
        self.over = False
        self.partial = PartialAnswer()
        self._address = address
        self._body = body
        self._generate = generate
        self._heard = heard
        self._sent = Event()
        self._gone = Event()
        self._exchange: http.Exchange | None = None
        self._failed: Exception | None = None
        self._refused = ""
        self.again = 0
        """How often it was sent again."""
        self._thread = Thread(target=self._listen, daemon=True)

    def send(self) -> None:
        """Send it, and return when it has been sent."""
        self._thread.start()
        self._sent.wait()

    def leave(self) -> None:
        """Go away without waiting for the answer."""
        self._gone.set()
        if self._exchange is not None:
            self._exchange.leave()

    def answer(self, *, cancelled: bool = False) -> Answer:
        """Return the answer so far. Raises BadEvents for what cannot be read, ServerFailed for a
        server that failed.
        """
        if self._failed is not None and not cancelled:
            raise self._failed
        partial = self.partial
        if partial.model not in ("", self._model):
            raise BadEvents(
                self._error(f"answers as {partial.model[:80]}, and {self._model} was asked")
            )
        if partial.prompt_tokens not in (0, self._prompt):
            counted = (
                f"counts {partial.prompt_tokens} tokens of a prompt of {self._prompt} ids: it adds"
                " some, or leaves some out"
            )
            raise BadEvents(self._error(counted))
        if self._cold and partial.restored > 0 and not self.again:
            raise ServerFailed(
                self._error(
                    f"restores {partial.restored} tokens of a prompt that was asked cold (by"
                    f" {self._cold})"
                )
            )
        ended: Ended = "cancelled" if cancelled else "refused" if self._refused else "length"
        if ended == "length" and len(partial.tokens) < self._generate:
            ended = "stop"
        counts = (
            self._left_out if partial.restored < 0 < partial.prompt_tokens else partial.restored
        )
        restored = -1 if self.again else counts
        return Answer(
            r=self.r,
            tokens=partial.tokens[:],
            logprobs=partial.logprobs[:],
            restored=restored,
            ended=ended,
            again=self.again,
        )

    @property
    def refusal(self) -> str:
        """Why the server does not take the prompt; empty if it does."""
        return self._refused

    # --- what comes -------------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            self._ask()
        except Unreadable as error:
            self._failed = BadEvents(self._error(f"answers 200 and {error}"))
        except (BadEvents, ServerFailed) as error:
            self._failed = error
        except Exception as error:
            self._failed = OwnMistake(describe_error(error))
        finally:
            self.over = True
            self._sent.set()
            self._heard()

    def _ask(self) -> None:
        """Send it until it is answered."""
        waited = 0.0
        self._absences.asked()
        for attempt in itertools.count(1):
            status, words, later = self._attempt()
            if status == http.OK or self._gone.is_set():
                return
            if status in REFUSED:
                self._refused = words
                return
            wait = None if self._fell_over(status) else wait_s(attempt, status, later)
            if wait is None or waited + wait > PATIENCE_S:
                raise self._failure(status, words)
            if times := self._absences.too_many(status, later):
                raise self._failure(
                    status, f"{words}; it was away {times} times, and is asked no more"
                )
            waited, self.again = waited + wait, self.again + 1
            if self._gone.wait(wait):
                return

    def _fell_over(self, status: int) -> bool:
        """Whether the server failed over the request, which it has: a cache that it fails on is
        not to be asked again.
        """
        return status == http.SERVER_ERROR or (not status and self._sent.is_set())

    def _attempt(self) -> tuple[int, str, str]:
        """Send it once; return the status, the server's words and when it says to come back. An
        answer has been read.
        """
        exchange = self._address.exchange("/v1/completions", self._body, self._sent)
        self._exchange = exchange
        if self._gone.is_set():  # whoever left meanwhile left the one before
            return 0, "", ""
        try:
            with exchange:
                if exchange.status == http.OK:
                    self._follow(exchange)
                    return http.OK, "", ""
                where = exchange.headers.get("Location", "")
                words = (
                    f"go to {where[:100]}"
                    if where
                    else self._address.key.error_text(_words(exchange))
                )
                return exchange.status, words, exchange.headers.get("Retry-After", "")
        except http.NoAnswer as error:
            return 0, str(error), ""

    def _failure(self, status: int, words: str) -> Exception:
        if not status:
            return ServerFailed(self._error(f"does not answer ({words})"))
        line = self._error(f"answers {status}: {words}")
        judged = status >= http.SERVER_ERROR and status not in TURNED_AWAY
        return ServerFailed(line) if judged else BadEvents(line)

    def _error(self, what: str) -> str:
        return self._address.key.redacted(f"{self.r}: the server {what}")

    def _follow(self, exchange: http.Exchange) -> None:
        """Read an answer, whole or in parts. Raises Unreadable, and ServerFailed if it ends in
        the middle.
        """
        try:
            if "event-stream" in exchange.headers.get("Content-Type", ""):
                self._parts(exchange)
            else:
                self._take(part_of(_whole(exchange)))
        except http.NoAnswer as error:
            if not self._gone.is_set():
                raise ServerFailed(self._error(f"breaks its answer off ({error})")) from None
        if self.partial.finished and not self.partial.tokens:
            raise Unreadable("tells no token of its answer; `logprobs` of a completion are missing")
        if not self.partial.finished and not self._gone.is_set() and not self._refused:
            raise ServerFailed(
                self._error(f"ends its answer after {len(self.partial.tokens)} tokens")
            )

    def _parts(self, exchange: http.Exchange) -> None:
        size = 0
        for line in exchange.lines(ANSWER_MAX - 1):
            size += len(line) + 1
            if size > ANSWER_MAX:
                raise Unreadable(f"sends more than {ANSWER_MAX:,} bytes")
            name, _, text = line.partition(b":")
            if name == b"data" and text.strip() == b"[DONE]":
                return
            if name == b"data":
                self._take(part_of(text))
                self._heard()

    def _take(self, part: Part) -> None:
        if part.error is None:
            self.partial.take(part)
            return
        error = part.error if isinstance(part.error, dict) else {}
        words = self._address.key.error_text(str(error.get("message", part.error)))
        if error.get("code") in REFUSED:
            self._refused = words
            return
        raise ServerFailed(self._error(f"breaks its answer off: {words}"))


def _words(exchange: http.Exchange) -> bytes:
    """Return the body of an error, nothing if it does not come."""
    try:
        return exchange.read(BODY_MAX)
    except http.NoAnswer:
        return b""


def _whole(exchange: http.Exchange) -> bytes:
    """Return the body of an answer. Raises Unreadable if it has no end."""
    content = exchange.read(ANSWER_MAX + 1)
    if len(content) > ANSWER_MAX:
        raise Unreadable(f"sends more than {ANSWER_MAX:,} bytes")
    return content
