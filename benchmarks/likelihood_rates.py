"""How often the verdict on likelihoods errs, simulated: writes a section of docs/results/score.md.

    python -m benchmarks.likelihood_rates [--runs 20000] [--write docs/results/score.md]

A question moves by a size of its own (log-normal, as Gemma 3 270M showed), in every run anew by
chance: so does the noise arm, and so does a sound cache. `spread` is the deviation of the logarithm
of either; `lump` is a deviation that the questions of one prefix have in common. A damaged cache
moves `times` as much, or only behind one prefix of eight (`one`). What a token costs is a share
of the square of its move, as on that model: the best tokens move least. The pairs are handed to
`cachewitness.parity.likelihood.verdict.decide`, which judges real ones.

Needs numpy and scipy, which lm-eval brings along.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import rates
from cachewitness._util import pages
from cachewitness.parity.likelihood.statistics import PART, Pair
from cachewitness.parity.likelihood.verdict import Judged, Rules, decide

COST = 0.05
"""Nats that a token costs by the square of a move of 1 nat."""
TITLE = "## How often likelihoods err"
MOVE, OWN = 0.1, 0.7
"""The median move of a question in nats a token, and the deviation of its logarithm."""


@dataclass(frozen=True)
class World:
    """One row of the table."""

    n: int
    prefixes: int = 8
    times: float = 1.0
    spread: float = 0.3
    lump: float = 0.0
    arms: int = 1
    one: bool = False


SOUND = [
    *(World(n) for n in (16, 30, 64, 256, 1024)),
    *(World(n, arms=2) for n in (30, 256)),
    *(World(n, spread=0.6) for n in (30, 256)),
    *(World(n, spread=0.2) for n in (16, 30)),
    *(World(n, lump=lump) for lump in (0.2, 0.4) for n in (30, 256)),
    *(World(n, prefixes=6) for n in (30, 256)),
    *(World(n, prefixes=n) for n in (30, 256)),
]
DAMAGED = [
    *(World(30, times=times) for times in (1.5, 2.0, 3.0, 5.0)),
    World(30, times=2.0, spread=0.6),
    World(30, times=2.0, lump=0.2),
    World(30, times=2.0, prefixes=6),
    World(30, times=2.0, prefixes=30),
    World(256, times=2.0),
    *(World(30, times=times, one=True) for times in (2.0, 3.0, 5.0, 20.0)),
    World(64, times=3.0, one=True),
    World(30, times=3.0, spread=0.2, one=True),
    World(30, times=3.0, spread=0.6, one=True),
    World(30, times=3.0, lump=0.2, one=True),
    World(256, prefixes=256, times=3.0, one=True),
]


def simulate(world: World, runs: int, seed: int) -> Counter[str]:
    """Return how often which verdict came out, of several arms the worst."""
    draw = np.random.default_rng(seed)
    found = Counter[str]()
    for _ in range(runs):
        verdicts = {arm.verdict for arm in decide([*_arms(world, draw)], Rules())}
        found[next(one for one in ("fail", "unknown", "pass") if one in verdicts)] += 1
    return found


def _arms(world: World, draw: Any) -> Iterator[tuple[Judged, list[Pair]]]:
    """Yield each arm as it is before it is judged, and its pairs; all have one noise arm."""
    groups: Any = np.arange(world.n) % world.prefixes
    own = MOVE * np.exp(OWN * draw.normal(size=world.n))
    noise = own * _chance(world, groups, draw)
    bad = groups < max(1, world.prefixes // PART) if world.one else groups >= 0
    times = np.where(bad, world.times, 1.0)
    for arm in range(world.arms):
        change = own * times * _chance(world, groups, draw)
        pairs = [
            Pair(f"p{group}", float(c), float(n), float(COST * (c * c - n * n)))
            for group, c, n in zip(groups, change, noise, strict=True)
        ]
        yield _before(f"arm {arm}", world), pairs


def _chance(world: World, groups: Any, draw: Any) -> Any:
    lumps = world.lump * draw.normal(size=world.prefixes)
    return np.exp(world.spread * draw.normal(size=world.n) + lumps[groups])


def _before(arm: str, world: World) -> Judged:
    return Judged(
        arm=arm,
        verdict="unknown",
        reasons=[],
        questions=world.n,
        prefixes=world.prefixes,
        positions=world.n,
        counted=world.n,
        dropped={},
    )


def section(runs: int) -> str:
    """Return the section of the page."""
    parts = [TITLE, _HEAD.format(runs=runs), _table(SOUND, runs), _BETWEEN, _table(DAMAGED, runs)]
    return pages.flowed("\n\n".join(parts))


_HEAD = """Each row is {runs:,} simulated runs, judged by the code that judges real ones;
`python -m benchmarks.likelihood_rates --write docs/results/score.md` writes this section. *Spread*
is the deviation, between two runs, of the logarithm of a question's change. First a sound cache,
which may fail in 5 % of the runs at most:"""
_BETWEEN = """And a damaged one, which changes so many *times* as much as noise does. Twice the
noise at 30 questions may pass in less than 1 % of the runs, three times the noise behind one prefix
alone in less than 5 %. Gemma 3 270M, below, has a spread of 0.2 and no more in common behind a
prefix:"""


def _table(worlds: list[World], runs: int) -> str:
    head = [
        "| questions | prefixes | spread | times | arms | world | pass % | fail % | unknown % |",
        "|--:|--:|--:|--:|--:|---|--:|--:|--:|",
    ]
    return rates.table(head, worlds, runs, simulate, _cells, ("pass", "fail", "unknown"))


def _cells(world: World) -> str:
    return (
        f"{world.n:,} | {world.prefixes} | {world.spread:g} | {world.times:g} | {world.arms} |"
        f" {_special(world)}"
    )


def _special(world: World) -> str:
    parts = [
        f"a prefix has {world.lump:g} more in common" if world.lump else "",
        _behind(max(1, world.prefixes // PART)) if world.one else "",
    ]
    return ", ".join(filter(None, parts))


def _behind(count: int) -> str:
    return "behind one prefix alone" if count == 1 else f"behind {count} prefixes alone"


if __name__ == "__main__":
    rates.command("Simulate the error rates of likelihoods.", section)
