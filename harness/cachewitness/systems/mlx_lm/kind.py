"""How mlx-lm registers: its options, its configurations, its baseline and its controls."""

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
    OwnProcess,
    TraceHeader,
    WrittenFor,
)
from cachewitness.engines.answering import chosen, chunk_of, full_and_recurrent, needs, takes
from cachewitness.engines.known_findings import KnownFindings, by_release
from cachewitness.systems.mlx_lm.architectures import ARCHITECTURES, CONTROL

NAME, INSTALL = "mlx-lm", "pip install 'cachewitness[mlx]'"
SLOTS = ("4", "3", "2", "1")
"""So many requests are computed together: the server's --prompt-concurrency and
--decode-concurrency."""
CHUNK = 2048
"""Tokens of a prompt in a step if a trace does not limit them: what the server's
--prefill-step-size is."""
SHRINKING = 250
"""Traces that are tried in search of a smaller one."""


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    """Open the server's loop for a trace.

    Raises EngineMissing without mlx-lm, UsageError for what the engine does not take.
    """
    model = chosen(NAME, options, "model", ARCHITECTURES)
    caching = chosen(NAME, options, "caching", ("on", "off")) == "on"
    slots = int(chosen(NAME, options, "concurrency", SLOTS))
    takes(NAME, header, ("chunk",))
    chunk = chunk_of(NAME, header, CHUNK)
    segment = full_and_recurrent(NAME, header, "the length of a system's part")
    needs(NAME, ("mlx", "mlx_lm"), INSTALL)
    from cachewitness.systems.mlx_lm.engine import MlxEngine

    return MlxEngine(
        header,
        model,
        caching=caching,
        chunk=chunk,
        segment=segment,
        slots=slots,
    )


def configurations() -> list[Configuration]:
    """Return what a run takes: a short system's part; and a longer one, with prompts cut into
    chunks.
    """
    return [Configuration(_layout(16), {}, ""), Configuration(_layout(48), {"chunk": 23}, "")]


def _layout(system: int) -> Layout:
    groups = [GroupSpec("full", 16), GroupSpec("recurrent", system)]
    story = (
        f"a cache is kept behind the first {system} tokens of a prompt, before its last, and behind"
        " the answer"
    )
    return Layout(f"mlx-{system}", groups, story, "mlx-lm 0.32 server.py, _generate")


ENGINE = EngineKind(
    name=NAME,
    summary="the installed mlx-lm's continuous batching and prompt cache on tiny hybrid models",
    levels=("answers",),
    open=open_engine,
    options={
        "mutant": "a seeded fault of its own (docs/systems/mlx_lm-notes.md)",
        "model": f"the architecture: {', '.join(ARCHITECTURES)}; default: the first",
        "concurrency": "requests that are computed together, 1 to 4 (default)",
        "caching": "on (default), or off: the uncached twin",
    },
    policies=None,
    replays=False,
    configurations=OwnConfigurations(lambda options: configurations()),
    answers_level=AnswersLevel(uncached={"caching": "off"}, shrinking=SHRINKING),
    controls=Controls({"uncached": {"caching": "off"}, "attention-only": {"model": CONTROL}}),
    process=OwnProcess(imports=("cachewitness.systems.mlx_lm.engine",)),
    written_for=WrittenFor("mlx-lm", "mlx-lm", "0.32", "0.32"),
    known=KnownFindings(by_release({"0.32": "mlx-lm-0.32.txt"})),
)
