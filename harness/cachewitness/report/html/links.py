"""Where in a film things are: each moment has a link, and operations and events have a moment."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from cachewitness.report.html.frames import Film


def links(film: Film) -> list[str]:
    """Return the name of each moment: `step-3` in front of the runs of step 3, of others
    `moment-5`, counted from 1.
    """
    return [
        f"step-{frame.step}" if frame.step >= 0 else f"moment-{number}"
        for number, frame in enumerate(film.frames, 1)
    ]


def moment_of(film: Film, seq: int) -> int:
    """Return the moment in which an event happens; -1 if it is not shown."""
    index = bisect_right(film.frames, seq, key=lambda frame: frame.seq) - 1
    # The moments in front of the first one may be left out, and those behind the last.
    left_out = film.left_out and index == len(film.frames) - 1 and seq > film.frames[index].seq
    return -1 if left_out else index


def operations_of(film: Film, starts: Sequence[int]) -> list[int]:
    """Return for each moment which operation brought it about; `starts` are the numbers of the
    first events of the operations, empty if that is not known.
    """
    if not starts:
        return [-1] * len(film.frames)
    return [bisect_right(starts, frame.seq) - 1 for frame in film.frames]


def moments_of(film: Film, operations: Sequence[int], number: int) -> list[int]:
    """Return for each of `number` operations the moment to show: that in front of the runs of its
    step, or else its first; -1 if it has none.
    """
    found = [-1] * number
    for index, op in enumerate(operations):
        if not 0 <= op < number:
            continue
        if found[op] < 0 or (film.frames[index].step >= 0 > film.frames[found[op]].step):
            found[op] = index
    return found
