"""Writes the page on searches that learn: medians by fault, and curves of what is found by when."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from statistics import median

from cachewitness._util import pages
from cachewitness._util.chart import Curves, curves

BLIND = "blind"
POINTS = 9


def write(
    known: Mapping[str, Mapping[str, Sequence[int]]], faults: Sequence[str], cap: int
) -> tuple[str, str]:
    """Return the page as Markdown and its chart as SVG; `known` are operations by way, fault and
    seed.
    """
    ways = {way: {fault: counts[fault] for fault in faults} for way, counts in known.items()}
    medians = {
        way: {fault: median(counts[fault]) for fault in faults} for way, counts in ways.items()
    }
    blind = medians[BLIND]
    learning = [way for way in ways if way != BLIND]
    ratios = {way: [medians[way][fault] / blind[fault] for fault in faults] for way in learning}
    text = pages.render(
        "learning",
        faults=len(faults),
        of=len(known[BLIND]),
        seeds=len(next(iter(ways[BLIND].values()))),
        cap=cap,
        ways=[
            [
                way,
                f"{median(medians[way].values()):,.0f}",
                f"{_share(counts_of(ways[way]), cap):.0%}",
                f"{median(ratios[way]):.2f}" if way in ratios else "1",
                f"{sum(ratio <= 0.5 for ratio in ratios[way])}" if way in ratios else "–",
                f"{sum(ratio >= 2 for ratio in ratios[way])}" if way in ratios else "–",
            ]
            for way in ways
        ],
        head=["fault", *ways],
        rows=[[f"`{fault}`", *(f"{medians[way][fault]:,.0f}" for way in ways)] for fault in faults],
        halves=[
            way for way in learning if median(medians[way].values()) <= median(blind.values()) / 2
        ],
        python=platform.python_version(),
    )
    limits = [round(cap * (2.0 ** (step - POINTS + 1))) for step in range(POINTS)]
    found = {
        way: [_share(counts_of(counts), limit) for limit in limits] for way, counts in ways.items()
    }
    title = "Share of faults and seeds that are found, by 1,000 operations"
    return text, curves([Curves(title, [f"{limit / 1000:.3g}" for limit in limits], found)])


def counts_of(counts: Mapping[str, Sequence[int]]) -> list[Sequence[int]]:
    """Return the operations of each fault."""
    return list(counts.values())


def _share(counts: Sequence[Sequence[int]], limit: int) -> float:
    every = [count for each in counts for count in each]
    return sum(count < limit for count in every) / len(every)
