"""The engine `jsonl`: a program of the user's, in any language, that answers in JSON lines. docs/protocol.md is its manual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from harness._util.errors import EngineBroken, UsageError
from harness.engines.child import engine as child
from harness.engines.child.engine import Isolation
from harness.engines.failure import EngineFailure
from harness.engines.kind import EngineKind
from harness.engines.protocol import Engine
from harness.history.nonsense import spans_problem
from harness.trace.configurations import Configuration
from harness.trace.format import Layout, TraceHeader

PAGE = "docs/protocol.md"
TWIN = {"caching": "off"}


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    """Raise UsageError: a program is never opened in the harness's process."""
    raise UsageError("--engine: jsonl is a program, which has a process of its own")


def introduced(kind: EngineKind, text: str, isolation: Isolation) -> EngineKind:
    """Start a program and return what it says of itself: the heights of its engine, and the layouts that it runs on.

    Raises UsageError if it says nothing of the kind, EngineBroken if it dies or hangs instead.
    """
    try:
        ready = child.ready(text, isolation)
    except EngineFailure as failure:
        raise EngineBroken(f"--engine {text}: its process does not say that it is ready: it {failure}") from None
    if not ready.heights:
        raise UsageError(f"--engine {text}: its `ready` names no heights; {PAGE} says what belongs there")
    if "answers" in ready.heights and not ready.layouts:
        why = "it only answers, and prompts are cut at the boundaries of its blocks"
        raise UsageError(f"--engine {text}: its `ready` names no layouts; {why} ({PAGE})")
    _check_layouts(ready.layouts, text)
    policies = ["" if height == "answers" else "vllm" for height in ready.heights]
    own = [Configuration(layout, {}, policy) for policy in dict.fromkeys(policies) for layout in ready.layouts]
    return replace(kind, heights=tuple(dict.fromkeys(ready.heights)), configurations=lambda: own, own_layouts=bool(own))


def _check_layouts(layouts: list[Layout], text: str) -> None:
    for index, layout in enumerate(layouts):
        where = f"at `$.layouts[{index}]`"
        problems = [f"has no groups - {where}"] if not layout.groups else []
        problems += [f"has the same name as another - {where}"] if layout.name in [one.name for one in layouts[:index]] else []
        problems += filter(None, (spans_problem(group, where) for group in layout.groups))
        if problems:
            raise UsageError(f"--engine {text}: layout {layout.name!r} of its `ready`: {problems[0]}; {PAGE} says what it is")


ENGINE = EngineKind(
    name="jsonl",
    summary="a program of yours, in any language, that answers in JSON lines (docs/protocol.md)",
    heights=("manager", "scheduler", "answers"),
    open=open_engine,
    options={
        "command": "the command that starts it; words are split at blanks, quotes hold them together",
        "caching": "what it is told: on (default), or off, the uncached twin of an engine that only answers",
    },
    policies=None,
    replays=False,
    command="command",
    isolated=True,
    cold=TWIN,
    controls={"uncached": TWIN},
)
