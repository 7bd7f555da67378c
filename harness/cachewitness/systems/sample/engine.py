"""The sample engine behind the three methods, and how it registers."""

from __future__ import annotations

from collections.abc import Mapping

from cachewitness import (
    AnswersLevel,
    Configuration,
    Controls,
    Engine,
    EngineKind,
    GroupSpec,
    Layout,
    OwnConfigurations,
    Rules,
    TraceHeader,
    UsageError,
)
from cachewitness.core.events import Answering, Resumes
from cachewitness.engines.answering import SteppedEngine, chosen, chunk_of, declared, takes
from cachewitness.systems.sample.cache import Cache
from cachewitness.systems.sample.model import VOCABULARY, Model
from cachewitness.systems.sample.server import Server

CHUNK = 64
"""Tokens that a step computes at most, unless the trace says otherwise."""
YES_NO = {"on": True, "off": False}


class SampleEngine(SteppedEngine[Server]):
    """The server as an engine at answers level."""

    def __init__(self, header: TraceHeader, options: Mapping[str, str]) -> None:
        takes("sample", header, ("chunk",))
        blocks = {group.block_size for group in header.layout.groups}
        if len(blocks) > 1:
            raise UsageError("--engine sample: takes layouts whose groups have one block size")
        recurrent = options.get("model", "hybrid") == "hybrid"
        cache = Cache(header.pages, enabled=YES_NO[options.get("caching", "on")])
        server = Server(
            Model(recurrent=recurrent),
            cache,
            block=blocks.pop(),
            chunk=chunk_of("sample", header, CHUNK),
            noise=float(options.get("noise", 0)),
            tells=options.get("resumes") == "told",
        )
        resumes: Resumes = "" if not server.tells else "recurrent" if recurrent else "full"
        rules = Rules(
            caching=cache.enabled,
            max_prompt=server.longest,
            answering=Answering(
                "float64",
                VOCABULARY,
                resumes=resumes,
                repeats=server.block + 1 if cache.enabled else 0,
            ),
        )
        super().__init__(server, declared("sample", header, rules, salt=True))


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    """Open the engine for a trace. Raises UsageError for options or a trace that it does not
    take.
    """
    for name, known in (
        ("caching", YES_NO),
        ("model", ("hybrid", "attention")),
        ("resumes", ("untold", "told")),
    ):
        chosen("sample", options, name, known)
    try:
        return SampleEngine(header, options)
    except ValueError as error:
        raise UsageError(f"--engine sample: {error}") from None


def configurations() -> list[Configuration]:
    """Return what a run takes: two block sizes, and chunks that end inside a block."""
    return [Configuration(_layout(8), {}, ""), Configuration(_layout(16), {"chunk": 23}, "")]


def _layout(block: int) -> Layout:
    groups = [GroupSpec("full", block), GroupSpec("recurrent", block)]
    return Layout(
        f"sample-{block}",
        groups,
        "keys and states in pages of one pool",
        "harness/cachewitness/systems/sample",
    )


ENGINE = EngineKind(
    name="sample",
    summary="a small server that tells nothing but its answers; needs nothing installed",
    levels=("answers",),
    open=open_engine,
    options={
        "mutant": "a seeded fault of its own (docs/answers.md)",
        "caching": "on (default), or off: the uncached twin",
        "model": "hybrid (default), or attention: without its recurrent layer",
        "resumes": "untold (default), or told: from which state each request goes on",
        "noise": "by which share logits move for each other request in the batch; default 0",
    },
    policies=None,
    replays=False,
    configurations=OwnConfigurations(lambda options: configurations()),
    answers_level=AnswersLevel(uncached={"caching": "off"}),
    controls=Controls({"uncached": {"caching": "off"}, "attention-only": {"model": "attention"}}),
)
