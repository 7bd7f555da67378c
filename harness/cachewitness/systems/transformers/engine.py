"""The server over transformers behind the three methods."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import transformers

from cachewitness._util.errors import UsageError
from cachewitness.core.events import Answering, Rules
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines.answering import SteppedEngine, declared
from cachewitness.systems.transformers.architectures import ARCHITECTURES, UNSPLIT, VOCABULARY
from cachewitness.systems.transformers.model import Model
from cachewitness.systems.transformers.rows import METHODS, How
from cachewitness.systems.transformers.server import Server, Ways
from cachewitness.systems.transformers.store import PrefixStore

ROOM = 1024
"""Tokens of a static cache, those of the answer among them."""


class TransformersEngine(SteppedEngine[Server]):
    """The server as an engine at answers level. `pages` of a trace are the blocks that kept
    prefixes take, each its own.
    """

    def __init__(self, header: TraceHeader, chosen: Mapping[str, str], chunk: int) -> None:
        blocks = {group.kind: group.block_size for group in header.layout.groups}
        caching = chosen["caching"] == "on"
        ways = Ways(
            interval=blocks.get("recurrent", UNSPLIT),
            chunk=chunk,
            records=bool(header.options.get("record")),
            singly=chosen["feed"] == "tokens",
            room=ROOM if header.options.get("static") else 0,
            rows=header.options.get("rows", "one"),
        )
        store = PrefixStore(header.pages, blocks["full"], crop=chosen["crop"]) if caching else None
        # One for each trace: some keep states of requests in themselves.
        own = chosen["checkpoint"]
        model = Model.loaded(Path(own)) if own else Model.tiny(ARCHITECTURES[chosen["model"]])
        _have_rows(model.empty(ways.room), ways.rows)
        vocabulary = model.vocabulary if own else VOCABULARY
        # A state is kept behind each interval. Of a window that has moved nothing is kept but the
        # end of a prompt, and nobody goes on from there who asks with the same.
        repeats = ways.interval + 1 if caching and ways.interval < UNSPLIT else 0
        rules = Rules(
            caching=caching,
            answering=Answering("float32", vocabulary, repeats=repeats),
            max_prompt=max(0, ways.room - 1),
        )
        super().__init__(
            Server(model, store, ways),
            declared("transformers", header, rules, version=transformers.__version__, salt=True),
        )

    def close(self) -> None:
        """Let go of the caches."""
        self.server.running = []
        self.server.waiting = []
        self.server.idle = []
        self.server.store = None


def _have_rows(cache: transformers.Cache, how: How) -> None:
    """Raise UsageError unless every layer of a cache has what rows are chosen by."""
    for layer in cache.layers:
        for method in METHODS[how]:
            if not hasattr(layer, method):
                reason = f"{type(layer).__name__} has no {method}"
                raise UsageError(f"--engine transformers: rows={how}: {reason}")
