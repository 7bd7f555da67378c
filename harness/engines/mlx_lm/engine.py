"""The server's loop behind the three methods."""

from __future__ import annotations

import mlx_lm

from harness.engines.answering import declared
from harness.engines.mlx_lm.architectures import VOCABULARY
from harness.engines.mlx_lm.server import Server
from harness.history.events import Answering, Event, Header, Rules
from harness.trace.format import Abort, Finish, Op, Step, Submit, TraceHeader

CHUNK = 2048
"""Tokens of a prompt in a step if a trace does not limit them: what the server's --prefill-step-size is."""


class MlxEngine:
    """The loop as an engine at answers height. The prompt cache counts caches, so the `pages` of a trace bound nothing."""

    def __init__(self, header: TraceHeader, model: str, *, caching: bool, segment: int) -> None:
        self.server = Server(model, caching=caching, chunk=int(header.options.get("chunk", CHUNK)), segment=segment)
        rules = Rules(caching=caching, answering=Answering("float32", VOCABULARY))
        self.header = declared("mlx-lm", header, rules, version=mlx_lm.__version__)

    def describe(self) -> Header:
        """Return what the engine declares."""
        return self.header

    def apply(self, op: Op) -> list[Event]:
        """Carry one operation out and return the answers that came with it."""
        server = self.server
        if isinstance(op, Submit):
            server.submit(op.r, list(op.tokens), op.generate)
        elif isinstance(op, Step):
            server.step()
        elif isinstance(op, Abort):
            server.cancel(op.r)
        elif isinstance(op, Finish):
            while server.has(op.r):
                server.step()
        ended, server.ended = server.ended, []
        return list(ended)

    def close(self) -> None:
        """Let go of the batch and of what is kept."""
        self.server.batch.close()
        self.server.store = None
