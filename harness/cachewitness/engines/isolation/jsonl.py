"""The engine `jsonl`: a program of the user's, in any language, that answers in JSON lines.
docs/reference/protocol.md is its manual.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cachewitness._util.errors import EngineBroken, UsageError
from cachewitness.core.engine import Engine
from cachewitness.core.engine_failure import EngineFailure
from cachewitness.core.malformed import spans_problem
from cachewitness.core.trace_format import Layout, TraceHeader
from cachewitness.engines.answers_level import AnswersLevel, Controls
from cachewitness.engines.isolation import engine as child
from cachewitness.engines.isolation.engine import Isolation
from cachewitness.engines.isolation.messages import Ready
from cachewitness.engines.kind import EngineKind
from cachewitness.engines.own_configurations import OwnConfigurations
from cachewitness.engines.own_process import OwnProcess
from cachewitness.workloads.configurations import Configuration

PAGE = "docs/reference/protocol.md"
UNCACHED = {"caching": "off"}


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    """Raise UsageError: a program is never opened in the harness's process."""
    raise UsageError("--engine: jsonl is a program, which has a process of its own")


def introduced(kind: EngineKind, text: str, isolation: Isolation) -> EngineKind:
    """Start a program and return what it says of itself: the levels of its engine, and the layouts
    that it runs on.

    Raises UsageError if it says nothing of the kind, EngineBroken if it dies or hangs instead.
    """
    try:
        ready = child.ready(text, isolation)
    except EngineFailure as failure:
        raise EngineBroken(
            f"--engine {text}: its process does not say that it is ready: it {failure}"
        ) from None
    if problem := unready(ready):
        raise UsageError(f"--engine {text}: {problem}; {PAGE} says what belongs there")
    policies = ["" if level == "answers" else "vllm" for level in ready.levels]
    own = [
        Configuration(layout, {}, policy)
        for policy in dict.fromkeys(policies)
        for layout in ready.layouts
    ]
    return replace(
        kind,
        levels=tuple(dict.fromkeys(ready.levels)),
        configurations=OwnConfigurations(lambda options: own, alone=bool(own)),
    )


def unready(ready: Ready) -> str:
    """Return what is wrong with what a program says of itself; empty if nothing is."""
    if not ready.levels:
        return "its `ready` names no levels"
    if "answers" in ready.levels and not ready.layouts:
        return (
            "its `ready` names no layouts, but prompts for who only answers are cut at the"
            " boundaries of its blocks"
        )
    names = [layout.name for layout in ready.layouts]
    return next(
        filter(
            None, (_misshapen(layout, names, index) for index, layout in enumerate(ready.layouts))
        ),
        "",
    )


def _misshapen(layout: Layout, names: list[str], index: int) -> str:
    where = f"at `$.layouts[{index}]`"
    problems = [f"it has no groups - {where}"] if not layout.groups else []
    problems += [f"it has the name of another - {where}"] if layout.name in names[:index] else []
    problems += filter(None, (spans_problem(group, where) for group in layout.groups))
    return f"layout {layout.name!r} of its `ready`: {problems[0]}" if problems else ""


ENGINE = EngineKind(
    name="jsonl",
    summary=(
        "a program of yours, in any language, that answers in JSON lines"
        " (docs/reference/protocol.md)"
    ),
    levels=("manager", "scheduler", "answers"),
    open=open_engine,
    options={
        "command": (
            "the command that starts it; words are split at blanks, quotes hold them together"
        ),
        "caching": (
            "what it is told: on (default), or off, the uncached baseline of an engine that only"
            " answers"
        ),
    },
    policies=None,
    replays=False,
    process=OwnProcess(command="command"),
    answers_level=AnswersLevel(uncached=UNCACHED),
    controls=Controls({"uncached": UNCACHED}),
)
