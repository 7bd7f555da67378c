"""Kept generators behind the three methods."""

from __future__ import annotations

from pathlib import Path

import onnxruntime_genai as og

from cachewitness.core.events import Answering, Rules
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines.answering import SteppedEngine, declared
from cachewitness.systems.onnxruntime_genai.conversation import model_of
from cachewitness.systems.onnxruntime_genai.server import Server
from cachewitness.systems.onnxruntime_genai.settings import MAX_LENGTH, NAME, VOCABULARY, Ways


class GenaiEngine(SteppedEngine[Server]):
    """The server as an engine at answers level. Generators are counted, so the `pages` of a trace
    bound nothing.
    """

    def __init__(self, header: TraceHeader, folder: Path, ways: Ways, *, caching: bool) -> None:
        # An equal prompt goes on in front of its last token, or from its snapshot.
        least = {"anywhere": 2, "snapshot": ways.interval + 1, "never": 0}[ways.rewinds]
        answering = Answering("float32", VOCABULARY, repeats=least if caching else 0)
        rules = Rules(caching=caching, answering=answering, max_prompt=MAX_LENGTH - 1)
        super().__init__(
            Server(model_of(folder), ways, caching=caching),
            declared(NAME, header, rules, version=og.__version__, salt=True),
        )

    def close(self) -> None:
        """Let go of the generators."""
        self.server.kept = []
        self.server.running = []
        self.server.waiting = []
