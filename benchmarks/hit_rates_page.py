"""Writes the page of hit rates by block size: which of the three statements hold in which pool,
in tables and a chart.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.conversations import CACHED_STATE, KINDS, LIVE_STATE, Plan, Served
from cachewitness._util import pages
from cachewitness._util.chart import Curves, curves

PARITY = 0.02
"""Rates that are closer are taken for equal."""
FALL = 0.1
"""A rate that is so much lower has fallen."""
STATEMENTS = {
    "falls late": (
        "dense, small blocks hit as much as large ones in the first half of the turns, and less in"
        " the last one"
    ),
    "recovers": (
        "with the wide interval, small blocks hit as much as large ones do dense, in every turn of"
        " the second half"
    ),
    "unaffected": (
        "dense, middle and large blocks hit as much as they do in the largest pool, in every turn"
    ),
}
"""By name: what is asked of a pool, in terms of rates by turn."""


class Pool(NamedTuple):
    """The runs over one pool: dense at small, middle and large blocks; small blocks at a wide
    and at a narrow interval.
    """

    small: Served
    middle: Served
    large: Served
    sparse: Served
    fine: Served

    def holding(self, largest: Pool) -> list[str]:
        """Return the names of the statements that hold here; `largest` are the runs over a pool
        that is never full.
        """
        small, middle, large, sparse, _ = (rates(served) for served in self)
        half = len(small) // 2
        unpressed = rates(largest.middle) + rates(largest.large)
        holds = {
            "falls late": _keeps_up(small[:half], large[:half]) and small[-1] < large[-1] - FALL,
            "recovers": _keeps_up(sparse[half:], large[half:]),
            "unaffected": _keeps_up(middle + large, unpressed),
        }
        return [name for name in STATEMENTS if holds[name]]


def rates(served: Served) -> list[float]:
    """Return the hit rate of each turn."""
    return [turn.hit_rate for turn in served.turns]


def write(
    runs: Mapping[int, Pool], shown: int, plan: Plan, snapshot_pages: Mapping[str, int]
) -> tuple[str, str]:
    """Return the page as Markdown and its chart as SVG; `snapshot_pages` names the arms, in the
    order of `Pool`.
    """
    names = list(snapshot_pages)
    largest = runs[max(runs)]
    holding = {tokens: pool.holding(largest) for tokens, pool in runs.items()}
    text = pages.render(
        "hit-rates",
        plan=plan,
        longest=plan.longest(),
        shown=shown,
        turns=[f"turn {turn + 1}" for turn in range(plan.turns)],
        rows=[
            row(name, served, snapshot_pages[name])
            for name, served in zip(names, runs[shown], strict=True)
        ],
        names=names,
        pools=[_pool_row(tokens, pool, holding[tokens]) for tokens, pool in runs.items()],
        statements=STATEMENTS,
        shows=[tokens for tokens, held in holding.items() if len(held) == len(STATEMENTS)],
        operations=sum(served.operations for pool in runs.values() for served in pool),
        findings=[
            finding for pool in runs.values() for served in pool for finding in served.findings
        ],
        runs=sum(len(pool) for pool in runs.values()),
        python=platform.python_version(),
    )
    by_turn = {name: rates(served) for name, served in zip(names, runs[shown], strict=True)}
    by_pool = {
        name: [rates(pool[index])[-1] for pool in runs.values()] for index, name in enumerate(names)
    }
    ticks = [str(turn + 1) for turn in range(plan.turns)]
    panels = [
        Curves(f"Hit rate by turn, in a pool of {shown:,} tokens", ticks, by_turn),
        Curves(
            "Hit rate of the last turn, by the pool's size in 1,000 tokens",
            [f"{tokens / 1000:g}" for tokens in runs],
            by_pool,
        ),
    ]
    return text, curves(panels)


def row(name: str, served: Served, snapshot_pages: int) -> list[str]:
    """Return a row of the table by turn: what it is, the share of snapshots in the pool, the
    rates, the rate over all.
    """
    kinds = [KINDS.index(kind) for kind in (LIVE_STATE, CACHED_STATE)]
    share = sum(
        sum(counts[kind] for kind in kinds) / sum(counts) for _, counts in served.samples
    ) / len(served.samples)
    return [
        name,
        str(snapshot_pages),
        _percent(share),
        *map(_percent, rates(served)),
        f"**{_percent(served.hit_rate)}**",
    ]


def _pool_row(tokens: int, pool: Pool, holding: list[str]) -> list[str]:
    cells = [f"{_percent(rates(served)[-1])} ({_percent(served.hit_rate)})" for served in pool]
    return [f"{tokens:,}", ", ".join(holding) or "none", *cells]


def _keeps_up(rates: list[float], others: list[float]) -> bool:
    return all(rate >= other - PARITY for rate, other in zip(rates, others, strict=True))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
