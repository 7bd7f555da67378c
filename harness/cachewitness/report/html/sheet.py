"""All requests over all steps on one sheet: a row for each request, a column for each step."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from cachewitness.core.checkers.finding import Finding
from cachewitness.core.events import (
    Aborted,
    Event,
    Extended,
    Finished,
    Hit,
    Paused,
    Preempted,
    Settled,
    StepBegin,
    StepEnd,
    Submitted,
)
from cachewitness.report.html.words import left_waiting

STEPS_MAX, REQUESTS_MAX = 80, 40
"""Steps and requests of a sheet: those up to the failure, and a few steps behind it."""
BEHIND_MAX = 4
"""Steps that are shown behind that of the failure."""


class Entry(msgspec.Struct, frozen=True):
    """What a request does in a step: the kind, which has a colour, and the words."""

    kind: str
    words: str


class SheetRow(msgspec.Struct):
    """A request, and its entries by step."""

    r: str
    cells: list[list[Entry]]


class Sheet(msgspec.Struct):
    """The steps, the requests, and which step and request the failure is of (−1 and empty: of
    none). `left_out` are the steps and requests that are not shown.
    """

    steps: list[int]
    rows: list[SheetRow]
    step: int
    r: str
    left_out: tuple[int, int]


def sheet(events: Sequence[Event], finding: Finding | None) -> Sheet:
    """Return what every request of a history does in every step."""
    entries: dict[str, dict[int, list[Entry]]] = {}
    upcoming = deque(event.step for event in events if isinstance(event, StepBegin))
    for event in events:
        if isinstance(event, StepBegin):
            upcoming.popleft()
        for r, step, entry in _entries(event, upcoming[0] if upcoming else event.step + 1):
            entries.setdefault(r, {}).setdefault(step, []).append(entry)
    steps = sorted({step for found in entries.values() for step in found})
    found = finding is not None and 0 <= finding.seq < len(events)
    failing = events[finding.seq].step if finding and found else -1
    r = finding.r if finding else ""
    last = bisect_right(steps, failing) + BEHIND_MAX if found else len(steps)
    last = max(min(last, len(steps)), min(STEPS_MAX, len(steps)))
    shown = steps[max(0, last - STEPS_MAX) : last]
    there = [name for name in entries if name == r or entries[name].keys() & {*shown}]
    kept = {r, *[name for name in there if name != r][-REQUESTS_MAX:]}
    rows = [
        SheetRow(name, [entries[name].get(step, []) for step in shown])
        for name in there
        if name in kept
    ]
    return Sheet(shown, rows, failing, r, (len(steps) - len(shown), len(entries) - len(rows)))


def _entries(event: Event, upcoming: int) -> Iterator[tuple[str, int, Entry]]:
    """Yield the requests of which an event says something, the step, and what. Who is submitted is
    there for the `upcoming` step.
    """
    match event:
        case Submitted():
            yield event.r, upcoming, Entry("in", f"submitted, {len(event.tokens):,}")
        case Extended():
            yield event.r, upcoming, Entry("in", f"goes on, {len(event.tokens):,}")
        case Hit():
            found = Entry("hit", f"hit {event.resume:,}") if event.resume else Entry("in", "no hit")
            yield event.r, event.step, found
        case StepBegin():
            for run in event.runs:
                yield run.r, event.step, Entry("run", f"[{run.start}, {run.known})")
            for r, tokens in left_waiting(event):
                yield r, event.step, Entry("in", f"asked {tokens:,}, no place")
        case Settled():
            for run in event.runs:
                yield run.r, event.step, Entry("run", f"settled as [{run.start}, {run.known})")
        case StepEnd():
            for r in event.withdrawn:
                yield r, event.step, Entry("end", "withdrawn")
        case Preempted():
            yield event.r, event.step, Entry("end", "preempted")
        case Finished():
            yield event.r, event.step, Entry("end", "finished")
        case Aborted():
            yield event.r, event.step, Entry("end", "aborted")
        case Paused():
            yield event.r, event.step, Entry("end", "answered")
