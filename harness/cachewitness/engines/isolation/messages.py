"""What the harness asks an engine in another process, and what it may answer: a line of JSON each,
on two pipes.

The child says first that it is `ready`. Then it is asked to `open` an engine for a trace, to
`apply` one operation after another, and to `close`; every question has one answer.
docs/reference/protocol.md is the manual for engines in other languages.
"""

from __future__ import annotations

from typing import Any

import msgspec

from cachewitness.core.events import Header
from cachewitness.core.trace_format import Layout, Level, Op, TraceHeader
from cachewitness.engines.entered import Seen

PROTOCOL = "cachewitness.engine"
VERSION = 2
ASKED, ANSWERS = "CACHEWITNESS_ASKED", "CACHEWITNESS_ANSWERS"
"""The environment variables that tell a child its two file descriptors: where it is asked, and
where it answers."""
TEMPLATE = "CACHEWITNESS_TEMPLATE"
"""The environment variable that tells a template the descriptor of the socket on which it is asked.
"""
MARK = "CACHEWITNESS_CHILD"
"""The environment variable by which a child, and whatever descends from it, is known."""


class Open(msgspec.Struct, frozen=True, tag_field="do", tag="open"):
    """Build the engine, as the user named it, for a trace; one that is open is let go of.
    `options` are those of its name.
    """

    engine: str
    trace: TraceHeader
    options: dict[str, str] = {}


class Apply(msgspec.Struct, frozen=True, tag_field="do", tag="apply"):
    """Carry out one operation."""

    op: Op


class Close(msgspec.Struct, frozen=True, tag_field="do", tag="close"):
    """Let go of the engine."""


class Ready(msgspec.Struct, frozen=True, tag_field="is", tag="ready", omit_defaults=True):
    """The child speaks this protocol, in this version.

    A program of the user's says at which `levels` its engine runs, and on which `layouts` unless
    the user names others.
    """

    protocol: str
    version: int
    levels: list[Level] = []
    layouts: list[Layout] = []


class Opened(msgspec.Struct, frozen=True, tag_field="is", tag="opened", omit_defaults=True):
    """The engine is built; `header` is what it declares of itself. `entered` is what was entered
    meanwhile of the lines that the harness asks about, see `cachewitness.engines.entered`.
    """

    header: Header
    entered: list[Seen] = []


class Happened(msgspec.Struct, frozen=True, tag_field="is", tag="happened", omit_defaults=True):
    """What happened in an operation, in order. `engine_seconds` were spent in the engine's own code
    since it was opened, and `process_seconds` by its whole process: processor time. `entered` is as
    in `Opened`.

    `events` are whatever the engine says; they are taken in as input where they are judged
    (`cachewitness.core.intake`).
    """

    events: Any
    engine_seconds: float | None = None
    process_seconds: float | None = None
    entered: list[Seen] = []


class Closed(msgspec.Struct, frozen=True, tag_field="is", tag="closed"):
    """The engine is gone; another one may be opened."""


class Refused(msgspec.Struct, frozen=True, tag_field="is", tag="refused", omit_defaults=True):
    """What was asked does not fit the engine, which is told in one line. `missing`: something has
    to be installed first.

    `mend` is then the command that installs it. `bad_events`: it was done, and what the engine says
    of it cannot be written down.
    """

    message: str
    missing: bool = False
    mend: str = ""
    bad_events: bool = False


class Raised(msgspec.Struct, frozen=True, tag_field="is", tag="raised", omit_defaults=True):
    """The engine failed in an operation; `error` is the exception, in one line.

    `ours`: this package's own adapter failed, in its own code.
    """

    error: str
    ours: bool = False


Question = Open | Apply | Close
Answer = Ready | Opened | Happened | Closed | Refused | Raised
