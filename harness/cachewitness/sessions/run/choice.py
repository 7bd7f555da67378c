"""Which traces of its suites a run takes, by their ids, and which of them come first.

An id is `suite:trace@configuration`, as reports print it. A random trace is called by its number,
so one that is named is drawn at once, however far behind the others it comes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice

from cachewitness._util.names import fits
from cachewitness.core.trace_format import Trace

ONLY = "--only"
LAST_FAILED = "--last-failed"
MISSES_MAX = 10_000
"""After so many random traces in a row that are not chosen, no more are looked at."""
_NUMBERED = re.compile(r"random-(\d+)\b")


@dataclass
class Choice:
    """`only`: patterns of ids, of which one has to fit (none: every trace is taken). `failed`: the
    ids of traces that failed when they were run last, which come first; `failed_only`: no others
    are run. `ran` gathers the ids of what was run.
    """

    only: tuple[str, ...] = ()
    failed: frozenset[str] = frozenset()
    failed_only: bool = False
    ran: set[str] = field(default_factory=set)

    def takes(self, name: str) -> bool:
        """Whether what has this id is run."""
        if self.failed_only and name not in self.failed:
            return False
        return not self.only or any(fits(name, pattern) for pattern in self.only)

    @property
    def narrows(self) -> bool:
        """Whether some traces are left out."""
        return bool(self.only) or self.failed_only

    @property
    def words(self) -> list[str]:
        """The options that leave traces out, as the user wrote them."""
        return [f"{ONLY} {pattern}" for pattern in self.only] + [LAST_FAILED] * self.failed_only

    @property
    def unmatched(self) -> list[str]:
        """The options that fit nothing of what was run."""
        return [
            f"{ONLY} {pattern}"
            for pattern in self.only
            if not any(fits(name, pattern) for name in self.ran)
        ] + [LAST_FAILED] * (self.failed_only and not self.failed & self.ran)

    def numbers(self, prefix: str, suffix: str) -> list[int]:
        """Return the numbers of random traces that are named: by a pattern, or since they failed.
        The ids of a stream are `prefix`, the name of the trace, and `suffix`.
        """
        named = [
            found
            for name in self.failed
            if name.startswith(prefix) and name.endswith(suffix)
            for found in _NUMBERED.findall(name[len(prefix) : len(name) - len(suffix)])
        ]
        named += [found for pattern in self.only for found in _NUMBERED.findall(pattern)]
        return [number for number in sorted({*map(int, named)}) if number < 1 << 63]


@dataclass
class Chosen:
    """The traces of one stream: those that failed when they were run last, and the others."""

    first: list[Trace]
    rest: Iterator[Trace]


def chosen(
    choice: Choice, prefix: str, suffix: str, traces: Iterator[Trace], leave_out: Callable[[], None]
) -> Chosen:
    """Return what is taken of the traces of a stream, whose ids are `prefix`, the name of the
    trace, and `suffix`. `leave_out` is called for each that is not.
    """

    def name(trace: Trace) -> str:
        return f"{prefix}{trace.header.name}{suffix}"

    def taken(among: Iterator[Trace]) -> Iterator[Trace]:
        for trace in among:
            if choice.takes(name(trace)):
                yield trace
            else:
                leave_out()

    if not any(one.startswith(prefix) and one.endswith(suffix) for one in choice.failed):
        return Chosen([], taken(traces) if choice.narrows else traces)
    known = list(taken(traces))
    failed = [trace for trace in known if name(trace) in choice.failed]
    others = [trace for trace in known if name(trace) not in choice.failed]
    return Chosen(failed, iter(others))


def drawn(
    choice: Choice,
    prefix: str,
    suffix: str,
    start: int,
    most: int | None,
    draw: Callable[[int], Trace],
    leave_out: Callable[[], None],
) -> Chosen:
    """Return what is taken of random traces, which `draw` makes from their numbers: `most` from
    `start` (None: without end), and those that are named. `leave_out` is called for each that is
    not, once where there is no end.
    """

    def takes(number: int) -> bool:
        return choice.takes(f"{prefix}random-{number}{suffix}")

    def failed(number: int) -> bool:
        return f"{prefix}random-{number}{suffix}" in choice.failed

    named = [number for number in choice.numbers(prefix, suffix) if takes(number)]
    first = [number for number in named if failed(number)]

    def others() -> Iterator[int]:
        yield from (number for number in named if number not in first)
        misses = 0
        for number in islice(count(start), most):
            if takes(number):
                misses = 0
                if number not in named:
                    yield number
                continue
            if most is not None or not misses:
                leave_out()
            misses += 1
            if misses > MISSES_MAX:
                return

    return Chosen(list(map(draw, first)), map(draw, others()))
