"""Configurations that were refused, counted by reason."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cachewitness.report.summary import NotRun

LISTED_MAX = 4
"""So many reasons are named, the most frequent first."""
_LAYOUT = re.compile(r"^layout '[^']*': ")


def without_layout(why: str) -> str:
    """Return a reason without the name of the layout in front of it, so that equal reasons count
    together.
    """
    return _LAYOUT.sub("", why)


def refusals(refused: Sequence[NotRun], tried: int) -> str:
    """Return in one line how many of the configurations that were tried were refused, and why:
    `31 of 1,845 configurations refused: block size 7 (20), windows (11)`.
    """
    counts: dict[str, int] = {}
    for entry in refused:
        why = without_layout(entry.why)
        counts[why] = counts.get(why, 0) + entry.count
    reasons = sorted(counts.items(), key=lambda pair: -pair[1])
    named = [f"{why} ({count:,})" for why, count in reasons[:LISTED_MAX]]
    if rest := reasons[LISTED_MAX:]:
        named.append(f"{len(rest):,} other reasons ({sum(count for _, count in rest):,})")
    total = sum(counts.values())
    return f"{total:,} of {tried:,} configurations refused: {', '.join(named)}"
