"""The engine `jsonl`: a program of the user's, in any language, that answers in JSON lines. docs/engines.md is its manual."""

from __future__ import annotations

from collections.abc import Mapping

from harness._util.errors import UsageError
from harness.engines.kind import EngineKind
from harness.engines.protocol import Engine
from harness.trace.format import TraceHeader


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    """Raise UsageError: a program is never opened in the harness's process."""
    raise UsageError("--engine: jsonl is a program, which has a process of its own")


ENGINE = EngineKind(
    name="jsonl",
    summary="a program of yours, in any language, that answers in JSON lines",
    heights=("manager", "scheduler"),
    open=open_engine,
    options={"command": "the command that starts it; words are split at blanks, quotes hold them together"},
    policies=None,
    replays=False,
    command="command",
    isolated=True,
)
