"""What thinning out costs: the tokens that a later request computes again, which a cache that
keeps every boundary had hit.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


def lost_tokens(dense: Sequence[int], hits: Sequence[int], tokens: int) -> tuple[int, Fraction]:
    """Return what an interval costs a later request that shares a beginning: tokens at most, and on
    average.

    `dense` and `hits` are where hits can end without the interval and with it, and the shared
    beginning is of any length up to `tokens`, each as likely as the others.
    """
    most, total, last = 0, 0, 0
    ends = [*dense[1:], tokens + 1] if dense else []
    remaining = sorted(hits, reverse=True)
    for position, end in zip(dense, ends, strict=True):
        while remaining and remaining[-1] <= position:
            last = remaining.pop()
        most = max(most, position - last)
        total += (position - last) * (end - position)
    return most, Fraction(total, tokens)
