"""llama.cpp's server behind the three methods: when a batch is done, those that came since join it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from harness.engines.answering import declared
from harness.engines.heard import HeardEngine
from harness.engines.llama_cpp.completion import Completion
from harness.engines.llama_cpp.server import Server, version
from harness.engines.llama_cpp.settings import NAME, settings_of
from harness.history.events import Answering, Rules
from harness.trace.format import Submit, TraceHeader

VOCABULARY = 256
"""Ids below the special ones."""
NOTICED = 5.0
"""Seconds in which the server notices that a client went away; where it waits for a slot that takes one or two."""


class LlamaCpp(HeardEngine[Completion]):
    """A server as an engine at answers height. `pages` of a trace are blocks of tokens of its context."""

    def __init__(self, header: TraceHeader, model: Path, caching: str) -> None:
        self._settings, self._caching = settings_of(header, caching), caching == "on"
        self._files = tempfile.TemporaryDirectory(prefix="cachewitness-")
        self._server = Server(model, self._settings, self._files.name + "/")
        gives_up = self._settings.switches["kv_unified"]
        rules = Rules(caching=self._caching, answering=Answering("float32", VOCABULARY), gives_up=gives_up)
        super().__init__(declared(NAME, header, rules, version=version()))

    def request(self, op: Submit) -> Completion:
        """Return a request that is sent but for its last byte."""
        return Completion(self._server.address, op, caching=self._caching, heard=self.heard)

    def gone(self, *, over: bool) -> None:
        """Wait until the server has noticed."""
        self._server.settle(len(self._running), 0.0 if over else NOTICED)

    def quiet(self) -> None:
        """Put the slots through their files, if that is asked for."""
        if self._settings.switches["slot_files"]:
            self._server.through_files()

    def close(self) -> None:
        """Let everybody go, and end the server."""
        super().close()
        self._server.close()
        self._files.cleanup()
