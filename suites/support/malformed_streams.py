"""Malformed event streams: what a right engine reports, with one random mistake in it, drawn
from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from cachewitness.core.driving import attempt, drive
from cachewitness.core.events import (
    Accept,
    Acquire,
    Counts,
    Event,
    Finished,
    Hit,
    Preempted,
    Publish,
    Release,
    StepBegin,
    StepEnd,
    Submitted,
    Unpublish,
)
from cachewitness.core.result import exit_code
from cachewitness.core.trace_format import Op
from suites.support.mistaken_engine import lively, mistaken

TRACES = [lively(seed) for seed in range(1, 5)]
ABSENT = 10**9
STRAYS: dict[type[Event], dict[str, Any]] = {
    Acquire: {"pages": [ABSENT], "pool": ABSENT, "group": ABSENT, "holder": "zoe"},
    Release: {"pages": [-7], "pool": -1, "group": -1, "holder": ""},
    Publish: {"page": ABSENT, "group": ABSENT, "r": "zoe", "length": -1},
    Unpublish: {"page": -1, "group": ABSENT, "length": -1},
    Hit: {"r": "zoe", "pages": [], "resume": -1, "reported": -1, "tier": "moon"},
    Counts: {"pool": ABSENT, "refs": [(ABSENT, 1)]},
    StepBegin: {"step": 0, "ended": [ABSENT], "asked": [("zoe", 1)], "zeros": [(0, [ABSENT])]},
    StepEnd: {"withdrawn": ["zoe"], "step": ABSENT},
    Accept: {"r": "zoe", "upto": ABSENT, "tokens": [-1]},
    Submitted: {"r": "zoe", "tokens": [], "salt": "pepper", "adapter": "odd"},
    Finished: {"r": "zoe"},
    Preempted: {"r": ""},
}
"""By kind of event: values of its fields that name what does not exist."""
WRONG = (None, "text", 1.5, [None], {"a": 1}, object(), 2**70, b"\xff", True)
Edit = Callable[[random.Random, list[Any], int], list[Any]]


def drop(source: random.Random, events: list[Any], at: int) -> list[Any]:
    """Leave an event out."""
    return events[:at] + events[at + 1 :]


def duplicate(source: random.Random, events: list[Any], at: int) -> list[Any]:
    """Report one object twice."""
    return events[: at + 1] + events[at:]


def swap(source: random.Random, events: list[Any], at: int) -> list[Any]:
    """Report two events in the wrong order."""
    other = source.randrange(len(events))
    events[at], events[other] = events[other], events[at]
    return events


def number(source: random.Random, events: list[Any], at: int) -> list[Any]:
    """Give a field another number, or another request."""
    names = [
        name
        for name in events[at].__struct_fields__
        if isinstance(getattr(events[at], name), int | str)
    ]
    name = source.choice(names)
    value: Any = source.choice((0, -1, 1, 2, 7, ABSENT, -ABSENT, 2**62))
    if isinstance(getattr(events[at], name), str):
        value = source.choice(("", "r1", "r2", "r3", "zoe", "copy:1", "local"))
    events[at] = msgspec.structs.replace(events[at], **{name: value})
    return events


def wrong_type(source: random.Random, events: list[Any], at: int) -> list[Any]:
    """Give a field a value of another type."""
    name = source.choice(events[at].__struct_fields__)
    value = source.choice(WRONG)
    if value is True and isinstance(getattr(events[at], name), bool):
        value = None
    if isinstance(value, str) and isinstance(getattr(events[at], name), str):
        value = 7
    events[at] = msgspec.structs.replace(events[at], **{name: value})
    return events


def stray(source: random.Random, events: list[Any], at: int) -> list[Any]:
    """Name what does not exist."""
    fields = STRAYS.get(type(events[at]))
    if fields is None:
        return [*events, Publish(group=ABSENT, page=0, r="r1", length=1)]
    name = source.choice(sorted(fields))
    events[at] = msgspec.structs.replace(events[at], **{name: fields[name]})
    return events


def foreign(source: random.Random, events: list[Any], at: int) -> list[Any]:
    """Put something else where an event should be."""
    events[at] = source.choice((None, "take", 7, object(), [], {"e": "fly"}, Acquire, events))
    return events


KINDS: dict[str, Edit] = {
    edit.__name__: edit for edit in (drop, duplicate, swap, number, wrong_type, stray, foreign)
}
REFUSED = ("wrong_type", "stray", "foreign")
"""Kinds of mistakes that no history can have: they always end with exit code 4."""


def outcome(seed: int) -> tuple[str, int, str]:
    """Run a stream with one mistake; return its kind, the exit code, and the line that says what
    was wrong.
    """
    source = random.Random(seed)
    trace = source.choice(TRACES)
    kind = source.choice(sorted(KINDS))
    place = source.randrange(200)
    seen = 0

    def mistake(op: Op, events: list[Any]) -> list[Any]:
        nonlocal seen
        first, seen = seen, seen + len(events)
        return KINDS[kind](source, events, place - first) if first <= place < seen else events

    result, line = attempt(lambda: drive(trace, mistaken(trace, mistake), keep=False))
    return kind, exit_code(result, line), line
