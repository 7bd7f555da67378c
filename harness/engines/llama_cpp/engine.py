"""llama.cpp's server behind the three methods.

The server schedules by itself and cannot be stepped. Requests that come between two steps are sent at once: the server begins
with the first, and the others join it when that batch is done. A step waits until a token has come, or an answer has ended.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from queue import SimpleQueue

from harness.engines.answering import declared
from harness.engines.failure import native
from harness.engines.llama_cpp.completion import Completion
from harness.engines.llama_cpp.server import Server, version
from harness.engines.llama_cpp.settings import NAME, settings_of
from harness.history.events import Answer, Answering, Event, Header, Rules
from harness.trace.format import Abort, Finish, Op, Step, Submit, TraceHeader

VOCABULARY = 256
"""Ids below the special ones."""
APART = 0.0005
"""Seconds between two requests that are sent at once, so that the server takes them in as they were asked."""
NOTICED = 5.0
"""Seconds in which the server notices that a client went away; where it waits for a slot that takes one or two."""


class LlamaCpp:
    """A server as an engine at answers height. `pages` of a trace are blocks of tokens of its context."""

    def __init__(self, header: TraceHeader, model: Path, caching: str) -> None:
        self._settings, self._caching = settings_of(header, caching), caching == "on"
        self._files = tempfile.TemporaryDirectory(prefix="cachewitness-")
        self._server = Server(model, self._settings, self._files.name + "/")
        self._held, self._running = dict[str, Completion](), dict[str, Completion]()
        self._news: SimpleQueue[None] = SimpleQueue()
        gives_up = self._settings.switches["kv_unified"]
        rules = Rules(caching=self._caching, answering=Answering("float32", VOCABULARY), gives_up=gives_up)
        self._header = declared(NAME, header, rules, version=version())

    def describe(self) -> Header:
        """Return what the engine declares."""
        return self._header

    def apply(self, op: Op) -> list[Event]:
        """Carry one operation out and return the answers that came with it."""
        with native():
            return [*self._carried_out(op)]

    def _carried_out(self, op: Op) -> list[Answer]:
        if isinstance(op, Submit):
            heard = lambda: self._news.put(None)  # noqa: E731
            self._held[op.r] = Completion(self._server.address, op, caching=self._caching, heard=heard)
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
        """Let everybody go, and end the server."""
        for asked in (*self._held.values(), *self._running.values()):
            asked.leave()
        self._server.close()
        self._files.cleanup()

    def _send(self) -> None:
        for place, asked in enumerate(self._held.values()):
            if place:
                time.sleep(APART)
            asked.send()
        self._running |= self._held
        self._held.clear()

    def _left(self, r: str) -> list[Answer]:
        """Let a client go away, and wait until the server has noticed."""
        if r in self._held:
            self._held.pop(r).leave()
            return []
        asked = self._running.pop(r, None)
        if asked is None:
            return []
        over = asked.over
        asked.leave()
        self._server.settle(len(self._running), 0.0 if over else NOTICED)
        return [asked.answer(cancelled=not over)]

    def _ended(self) -> list[Answer]:
        """Return the answers of requests that are over."""
        over = [r for r, asked in self._running.items() if asked.over]
        answers = [self._running.pop(r).answer() for r in over]
        if over and not self._running and self._settings.switches["slot_files"]:
            self._server.through_files()
        return answers
