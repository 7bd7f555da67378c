"""Engines whose server schedules by itself: requests are sent, and their answers are heard as they
come.

Such a server cannot be stepped. Requests that come between two steps are sent at once: the server
begins with the first, and the others join it. A step waits until a part of an answer has come, or
an answer has ended.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from cachewitness.core.engine_failure import native
from cachewitness.core.events import Answer, Event, Header
from cachewitness.core.trace_format import Abort, Finish, Op, Step, Submit

APART = 0.0005
"""Seconds between two requests that are sent at once, so that the server takes them in as they were
asked."""


class StreamedRequest(Protocol):
    """A request whose answer is read in a thread of its own. `over`: nothing more of it comes."""

    over: bool

    def send(self) -> None:
        """Let the server take it in."""

    def leave(self) -> None:
        """Go away without waiting for the answer."""

    def answer(self, *, cancelled: bool = False) -> Answer:
        """Return the answer so far. Raises what says that there is none."""


Request = TypeVar("Request", bound=StreamedRequest)


class StreamingEngine(ABC, Generic[Request]):
    """A server that is heard, behind the three methods."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._held = dict[str, Request]()
        self._running = dict[str, Request]()
        self._news: SimpleQueue[None] = SimpleQueue()

    @abstractmethod
    def request(self, op: Submit) -> Request:
        """Return a request that is not sent yet; it says `heard` for each part of its answer,
        and at its end.
        """

    def heard(self) -> None:
        """Take note, from any thread, that something has come."""
        self._news.put(None)

    def gone(self, *, over: bool) -> None:
        """Do what the engine has to when a client went away; `over`: its answer had come."""

    def quiet(self) -> None:
        """Do what the engine has to when the last answer has ended."""

    def events_of(self, answer: Answer) -> list[Event]:
        """Return an answer, behind what else the engine tells of its request."""
        return [answer]

    def describe(self) -> Header:
        """Return what the engine declares."""
        return self._header

    def apply(self, op: Op) -> list[Event]:
        """Carry one operation out and return the answers that came with it. What is raised here
        is the server's doing.
        """
        with native():
            return [event for answer in self._carried_out(op) for event in self.events_of(answer)]

    def _carried_out(self, op: Op) -> list[Answer]:
        if isinstance(op, Submit):
            self._held[op.r] = self.request(op)
            return []
        if isinstance(op, Abort):
            return self._left(op.r)
        self._send()
        if isinstance(op, Step) and self._running:
            self._news.get()
        elif isinstance(op, Finish):
            while op.r in self._running and not self._running[op.r].over:
                self._news.get()
        return self._ended()

    def close(self) -> None:
        """Let everybody go."""
        for asked in (*self._held.values(), *self._running.values()):
            asked.leave()

    def _send(self) -> None:
        for place, asked in enumerate(self._held.values()):
            if place:
                time.sleep(APART)
            asked.send()
        self._running |= self._held
        self._held.clear()

    def _left(self, r: str) -> list[Answer]:
        """Let a client go away."""
        if r in self._held:
            self._held.pop(r).leave()
            return []
        asked = self._running.pop(r, None)
        if asked is None:
            return []
        over = asked.over
        asked.leave()
        self.gone(over=over)
        return [asked.answer(cancelled=not over)]

    def _ended(self) -> list[Answer]:
        """Return the answers of requests that are over."""
        over = [r for r, asked in self._running.items() if asked.over]
        answers = [self._running.pop(r).answer() for r in over]
        if over and not self._running:
            self.quiet()
        return answers
