"""How often the gate of scores errs, simulated: writes the table of docs/results/score.md.

    python -m benchmarks.score_rates [--runs 20000] [--write docs/results/score.md]

A model answers each question right, wrong, or undecided; every run decides an undecided one anew
with a coin, so that a share `noise` of the answers differs between any two runs. Where questions
share prefixes, `lump` says how noise comes: a prefix in twenty is read another way and loses or
gains that share of its answers at once, in every run anew. A damaged cache makes right answers
wrong (`lost`, of all questions) and wrong ones right (`gained`), or ruins a share of one prefix
(`ruined`). The cold run, its repetition and every arm are drawn, counted, and handed to
`cachewitness.parity.scores.decision.decide`, which judges real runs.

Needs numpy, which lm-eval brings along.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks import rates
from cachewitness._util import pages
from cachewitness.parity.scores.decision import Counts, Risk, Tally, decide

TITLE = "## How often the gate errs"
RIGHT = 0.8
CHUNK = 500
"""Runs that are drawn at a time."""
LUMP_CHANCE = 0.05
"""How often a prefix loses or gains a lump of its answers. Half of those hit change, in either of
two runs."""


@dataclass(frozen=True)
class World:
    """One row of the table. `cold_noise` is the noise between two cold runs where it is not that
    of the arms.
    """

    n: int
    noise: float
    arms: int = 1
    lost: float = 0.0
    gained: float = 0.0
    prefixes: int = 0
    lump: float = 0.0
    ruined: float = 0.0
    repeated: bool = True
    cold_noise: float | None = None
    margin: float = 0.01


SOUND = [
    *(
        World(n, noise)
        for n in (16, 50, 200, 400, 1319, 5000)
        for noise in (0.002, 0.005, 0.02, 0.05)
    ),
    *(World(n, noise, arms=5) for n in (50, 400, 1319) for noise in (0.002, 0.02, 0.05)),
    *(World(1319, noise, arms=3, repeated=False) for noise in (0.005, 0.05)),
    *(
        World(n, noise, arms=3, cold_noise=0.0)
        for n in (400, 1319, 5000)
        for noise in (0.005, 0.02, 0.05)
    ),
    *(
        World(prefixes * 50, 0.02, arms=3, prefixes=prefixes, lump=lump)
        for prefixes in (8, 26)
        for lump in (0.0, 0.1, 0.3)
    ),
    *(
        World(prefixes * 50, 0.05, prefixes=prefixes, lump=lump)
        for prefixes in (8, 26, 100)
        for lump in (0.0, 0.1, 0.3, 0.5)
    ),
    World(150, 0.02, arms=3, prefixes=3, lump=0.1),
    World(400, 0.02, margin=0.05, arms=3),
]
DAMAGED = [
    *(World(1319, noise, lost=0.01) for noise in (0.0, 0.005, 0.02, 0.05)),
    *(World(n, noise, lost=0.02) for n in (400, 1319) for noise in (0.0, 0.005, 0.02, 0.05)),
    *(World(1319, noise, lost=0.02, gained=0.02) for noise in (0.0, 0.02, 0.05)),
    *(World(1319, noise, lost=0.05, gained=0.05) for noise in (0.0, 0.02)),
    *(
        World(1319, noise, lost=0.02, gained=gained, repeated=False)
        for noise in (0.0, 0.02)
        for gained in (0.0, 0.02)
    ),
    World(1300, 0.02, lost=0.02, prefixes=26),
    *(
        World(prefixes * 50, 0.02, prefixes=prefixes, ruined=ruined)
        for prefixes in (8, 26, 100)
        for ruined in (0.5, 0.9)
    ),
    World(50, 0.02, lost=0.2),
    World(50, 0.02, lost=0.06, margin=0.05),
    World(200, 0.02, lost=0.01),
    World(400, 0.02, lost=0.01, prefixes=8, lump=0.1),
]


def simulate(world: World, runs: int, seed: int) -> Counter[str]:
    """Return how often what came of the worst arm: `lost` if any is, else `open`, else `kept`."""
    draw = np.random.default_rng(seed)
    found: Counter[str] = Counter()
    sizes = [world.n // world.prefixes] * world.prefixes if world.prefixes else [world.n]
    for begin in range(0, runs, CHUNK):
        count = min(CHUNK, runs - begin)
        parts = [
            _part(world, size, count, draw, ruined=world.ruined * (i == 0))
            for i, size in enumerate(sizes)
        ]
        found += _judged(world, parts, count)
    return found


def _judged(world: World, parts: Sequence[Any], runs: int) -> Counter[str]:
    risk = Risk(margin=world.margin)
    found = Counter[str]()
    for run in range(runs):
        arms = [_counts(world, [part[arm][run] for part in parts]) for arm in range(world.arms)]
        outcomes = {decision.outcome for decision in decide(arms, risk)}
        found[next(each for each in ("lost", "open", "kept") if each in outcomes)] += 1
    return found


def _counts(world: World, rows: Sequence[Any]) -> Counts:
    tallies = [Tally(*row) for row in rows]
    whole = Tally(*map(sum, zip(*rows, strict=True)))
    return Counts(whole, tuple(tallies) if world.prefixes else (), world.repeated)


def _part(world: World, size: int, runs: int, draw: Any, *, ruined: float) -> list[list[list[int]]]:
    """Return the tallies (n, right, lost, gained, alone, again) of one prefix, by arm and run."""
    noise = world.noise - LUMP_CHANCE * world.lump
    shares = np.array([RIGHT - noise, 1 - RIGHT - noise, 2 * noise])
    state = np.searchsorted(np.cumsum(shares), draw.random((runs, size), dtype=np.float32))
    cold = _answers(state, draw)
    quiet = world.cold_noise == 0.0
    again = cold.copy() if quiet else _lumped(_answers(state, draw), world, draw)
    cold = cold if quiet else _lumped(cold, world, draw)
    found = []
    for _ in range(world.arms):
        arm = _damaged(_lumped(_answers(state, draw), world, draw), world, draw, ruined=ruined)
        lost = cold & ~arm
        gone = cold & ~again
        columns = [cold, lost, ~cold & arm, lost & ~gone, gone & ~lost]
        table = np.stack([np.full(runs, size), *(each.sum(1) for each in columns)], 1)
        found.append(table.tolist())
    return found


def _answers(state: Any, draw: Any) -> Any:
    """Return whether each answer is right: as the state says, by a coin where it is undecided."""
    return (state == 0) | ((state == 2) & (draw.random(state.shape, dtype=np.float32) < 0.5))


def _lumped(right: Any, world: World, draw: Any) -> Any:
    """Return answers of which a prefix in twenty has a share changed in one direction, either
    being as likely.
    """
    if not world.lump:
        return right
    way = draw.random((len(right), 1))
    hit = draw.random(right.shape, dtype=np.float32) < world.lump
    return (right & ~((way < LUMP_CHANCE / 2) & hit)) | ((way > 1 - LUMP_CHANCE / 2) & hit)


def _damaged(right: Any, world: World, draw: Any, *, ruined: float) -> Any:
    chance = draw.random(right.shape, dtype=np.float32)
    if ruined:
        return right & (chance >= ruined)
    if not (world.lost or world.gained):
        return right
    return (right & (chance >= world.lost / RIGHT)) | (
        ~right & (chance < world.gained / (1 - RIGHT))
    )


def section(runs: int) -> str:
    """Return the section of the page."""
    heads = {"noise": SOUND, "loss": DAMAGED}
    tables = {name: _table(worlds, runs) for name, worlds in heads.items()}
    parts = [TITLE, _HEAD.format(runs=runs), tables["noise"], _BETWEEN, tables["loss"]]
    return pages.flowed("\n\n".join(parts))


_HEAD = """Each row is {runs:,} simulated runs, judged by the code that judges real ones;
`python -m benchmarks.score_rates --write docs/results/score.md` writes this section. The model is
right in 80 % of the answers; *noise* is the share of answers that differ between any two runs. The
worst arm of a run counts. First a correct cache, which may fail in 5 % of the runs at most:"""
_BETWEEN = """And a damaged one, in points of all questions; *gained* answers are mended by the same
damage. Such a run may pass in 5 % of the cases at most if the loss is the margin, and hardly ever
if it is more:"""


def _table(worlds: Sequence[World], runs: int) -> str:
    head = [
        "| questions | noise | arms | world | pass % | fail % | unknown % |",
        "|--:|--:|--:|---|--:|--:|--:|",
    ]
    return rates.table(head, worlds, runs, simulate, _cells, ("kept", "lost", "open"))


def _cells(world: World) -> str:
    return f"{world.n:,} | {100 * world.noise:g} % | {world.arms} | {traits(world)}"


def traits(world: World) -> str:
    """Return what is special about a world."""
    parts = [
        f"{100 * world.lost:g} lost" if world.lost else "",
        f"{100 * world.gained:g} gained" if world.gained else "",
        f"{world.prefixes} prefixes" if world.prefixes else "",
        f"noise in lumps of {100 * world.lump:g} %" if world.lump else "",
        f"{100 * world.ruined:g} % of one prefix ruined" if world.ruined else "",
        "" if world.repeated else "no `off-again`",
        "cold runs always agree" if world.cold_noise == 0.0 else "",
        f"margin {100 * world.margin:g}" if world != replace(world, margin=0.01) else "",
    ]
    return ", ".join(filter(None, parts))


if __name__ == "__main__":
    rates.command("Simulate the error rates of the gate of scores.", section)
