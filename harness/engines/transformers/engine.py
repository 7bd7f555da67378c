"""The server over transformers behind the three methods."""

from __future__ import annotations

from collections.abc import Mapping

import transformers

from harness.engines.answering import declared
from harness.engines.transformers.architectures import ARCHITECTURES, VOCABULARY
from harness.engines.transformers.model import Model
from harness.engines.transformers.server import Request, Server, Ways
from harness.engines.transformers.store import PrefixStore
from harness.history.events import Answering, Event, Header, Rules
from harness.trace.format import Abort, Finish, Op, Step, Submit, TraceHeader

UNSPLIT = 1 << 16
"""Tokens of a step if a trace does not limit them."""


class TransformersEngine:
    """The server as an engine at answers height. `pages` of a trace are the blocks that kept prefixes take, each its own."""

    def __init__(self, header: TraceHeader, chosen: Mapping[str, str]) -> None:
        blocks = {group.kind: group.block_size for group in header.layout.groups}
        caching = chosen["caching"] == "on"
        ways = Ways(
            interval=blocks.get("recurrent", UNSPLIT),
            chunk=int(header.options.get("chunk", UNSPLIT)),
            records=bool(header.options.get("record")),
            singly=chosen["feed"] == "tokens",
        )
        store = PrefixStore(header.pages, blocks["full"], crop=chosen["crop"]) if caching else None
        model = Model(ARCHITECTURES[chosen["model"]])  # one for each trace: some keep states of requests in themselves
        self.server = Server(model, store, ways)
        rules = Rules(caching=caching, answering=Answering("float32", VOCABULARY))
        self.header = declared("transformers", header, rules, version=transformers.__version__, salt=True)

    def describe(self) -> Header:
        """Return what the engine declares."""
        return self.header

    def apply(self, op: Op) -> list[Event]:
        """Carry one operation out and return the answers that came with it."""
        server = self.server
        if isinstance(op, Submit):
            server.waiting.append(Request(op.r, op.salt, list(op.tokens), len(op.tokens), op.generate))
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
        """Let go of the caches."""
        self.server.running, self.server.waiting, self.server.store = [], [], None
