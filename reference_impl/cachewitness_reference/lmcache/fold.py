"""The look-up of a hybrid model: which lengths can every group serve, and what is needed for the
longest.

A row says of one object group (and one rank) which chunks are there. A group with a window of w
chunks serves a prefix of L chunks if the last min(w, L) chunks before L are there, one without a
window if all are. A length is servable if every row serves it.

Servable lengths are *not* monotone. Of a state (w = 1) only the chunk that ends at L is needed, so
with states at 2 and 5, and attention everywhere, 5 is servable, 4 is not, 2 is. So the answer is
the longest servable length and not the first gap.

Source: `v1/distributed/bitmap_ops/fold.py` (0.5.6).
"""

from __future__ import annotations

from collections.abc import Sequence

Row = Sequence[bool]
"""Whether chunk j of a prompt is there, by j."""


def servable_lengths(rows: Sequence[Row], windows: Sequence[int]) -> list[bool]:
    """Return at index j whether a prefix of j + 1 chunks can be served; `windows` in chunks by
    row, 0 or less for all.
    """
    assert len(rows) == len(windows) > 0, "a look-up has a row for every group"
    servable = [True] * len(rows[0])
    for row, window in zip(rows, windows, strict=True):
        run = 0
        for index, present in enumerate(row):
            run = run + 1 if present else 0
            length = index + 1
            if run < (min(window, length) if window > 0 else length):
                servable[index] = False
    return servable


def fold(rows: Sequence[Row], windows: Sequence[int]) -> int:
    """Return the longest servable length in chunks; 0 if there is none."""
    servable = servable_lengths(rows, windows)
    return max((index + 1 for index, fits in enumerate(servable) if fits), default=0)


def unfold(hit: int, window: int) -> range:
    """Return the chunks that a row needs for a hit of so many chunks: all before it, or those of
    its window.
    """
    return range(max(0, hit - window) if window > 0 else 0, hit)
