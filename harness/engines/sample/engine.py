"""The sample engine behind the three methods, and how it registers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness._util.errors import UsageError
from harness.engines.answering import chosen, declared, takes
from harness.engines.kind import EngineKind
from harness.engines.mutant import Mutant
from harness.engines.protocol import Engine
from harness.engines.sample.cache import Cache
from harness.engines.sample.model import VOCABULARY, Model
from harness.engines.sample.server import Request, Server
from harness.history.events import Answer, Answering, Event, Header, Rules
from harness.trace.configurations import Configuration
from harness.trace.format import Abort, Finish, GroupSpec, Layout, Op, Step, Submit, TraceHeader

CHUNK = 64
"""Tokens that a step computes at most, unless the trace says otherwise."""
STEPS_MAX = 100_000
"""A request that has not ended after so many steps never will."""
YES_NO = {"on": True, "off": False}


class SampleEngine:
    """The server as an engine at answers height."""

    def __init__(self, header: TraceHeader, options: Mapping[str, str]) -> None:
        takes("sample", header, ("chunk",))
        blocks = {group.block_size for group in header.layout.groups}
        if len(blocks) > 1:
            raise UsageError("--engine sample: takes layouts whose groups have one block size")
        recurrent = options.get("model", "hybrid") == "hybrid"
        cache = Cache(header.pages, enabled=YES_NO[options.get("caching", "on")])
        self.server = Server(
            Model(recurrent=recurrent),
            cache,
            block=blocks.pop(),
            chunk=int(header.options.get("chunk", CHUNK)),
            noise=float(options.get("noise", 0)),
        )
        rules = Rules(caching=cache.enabled, answering=Answering("float64", VOCABULARY))
        self.header = declared("sample", header, rules, salt=True)

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
            self._wait(op.r)
        ended, server.ended = server.ended, []
        return [_answer(request, how) for request, how in ended]

    def _wait(self, r: str) -> None:
        for _ in range(STEPS_MAX):
            if not any(request.r == r for request in (*self.server.running, *self.server.waiting)):
                return
            self.server.step()
        raise RuntimeError(f"{r} has not ended after {STEPS_MAX} steps")

    def close(self) -> None:
        """Let go of everything."""


def _answer(request: Request, how: Any) -> Answer:
    return Answer(
        r=request.r, tokens=request.generated, logprobs=list(request.logprobs), restored=max(request.restored, 0), ended=how
    )


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    """Open the engine for a trace. Raises UsageError for options or a trace that it does not take."""
    for name, known in (("caching", YES_NO), ("model", ("hybrid", "attention"))):
        chosen("sample", options, name, known)
    try:
        return SampleEngine(header, options)
    except ValueError as error:
        raise UsageError(f"--engine sample: {error}") from None


def configurations() -> list[Configuration]:
    """Return what a run takes: two block sizes, and chunks that end inside a block."""
    return [
        Configuration(_layout(8), {}, ""),
        Configuration(_layout(16), {"chunk": 23}, ""),
    ]


def _layout(block: int) -> Layout:
    groups = [GroupSpec("full", block), GroupSpec("recurrent", block)]
    return Layout(f"sample-{block}", groups, "keys and states in pages of one pool", "harness/engines/sample")


def faults() -> Mapping[str, Mutant]:
    """Return the seeded faults of this engine."""
    from harness.engines.sample.server_faults import FAULTS

    return FAULTS


ENGINE = EngineKind(
    name="sample",
    summary="a small server that tells nothing but its answers; needs nothing installed",
    heights=("answers",),
    open=open_engine,
    options={
        "mutant": "a seeded fault of its own (docs/answers.md)",
        "caching": "on (default), or off: the uncached twin",
        "model": "hybrid (default), or attention: without its recurrent layer",
        "noise": "by which share logits move for each other request in the batch; default 0",
    },
    policies=None,
    replays=False,
    configurations=configurations,
    faults=faults,
    cold={"caching": "off"},
    controls={"uncached": {"caching": "off"}, "attention-only": {"model": "attention"}},
)
