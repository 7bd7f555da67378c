"""What the change that gave Mamba groups a retention interval says of hit rates, in proportion:
docs/results/hit-rates.md.

The runs are those of the page's first table, and one over its largest pool, where nothing is under
pressure.
"""

from __future__ import annotations

import pytest

from benchmarks import hit_rates
from benchmarks.conversations import Served, Turn
from benchmarks.hit_rates import LARGE, SHOWN, SMALL, SPARSE, Arm
from benchmarks.hit_rates_page import FALL, PARITY, Pool, rates, row
from cachewitness._util.data import fixtures
from suites.support.sampled import of_all

PAGE = fixtures().parent / "docs" / "results" / "hit-rates.md"
measured = of_all("docs/results/hit-rates.md has the numbers of these runs")
HALF = hit_rates.TALK.turns // 2


@pytest.fixture(scope="module")
def shown() -> dict[Arm, Served]:
    """Return the runs over the pool that the page shows by turn."""
    return {arm: arm.serve(SHOWN) for arm in (SMALL, LARGE, SPARSE)}


@measured
def test_dense_at_small_blocks_falls_late(shown: dict[Arm, Served]) -> None:
    """In the first half of the turns level with large blocks, in the last turn far behind;
    attention was evicted by then.
    """
    small = rates(shown[SMALL])
    large = rates(shown[LARGE])
    assert all(one >= other - PARITY for one, other in zip(small[:HALF], large[:HALF], strict=True))
    assert small[-1] < large[-1] - FALL
    assert sum(turn.evicted_attention for turn in shown[SMALL].turns[:-1]) > 0


@measured
def test_an_interval_recovers_it_to_parity_with_large_blocks(shown: dict[Arm, Served]) -> None:
    """In every turn of the second half, and without a finding."""
    for one, other in zip(rates(shown[SPARSE])[HALF:], rates(shown[LARGE])[HALF:], strict=True):
        assert one >= other - PARITY
    assert shown[SPARSE].hit_rate > shown[SMALL].hit_rate + FALL
    assert not any(served.findings for served in shown.values())


@measured
def test_large_blocks_are_unaffected(shown: dict[Arm, Served]) -> None:
    """Dense, they hit in this pool what they hit in one that is never full."""
    assert rates(shown[LARGE]) == rates(LARGE.serve(hit_rates.POOLS[-1]))


@measured
def test_the_page_shows_these_runs(shown: dict[Arm, Served]) -> None:
    """If not: `python -m benchmarks.hit_rates --write docs/results/hit-rates.md`."""
    text = PAGE.read_text(encoding="utf-8")
    for arm, served in shown.items():
        assert f"| {' | '.join(row(arm.name, served, arm.snapshot_pages))} |\n" in text


def made_up(*hits: int) -> Served:
    """Return a run of four turns that hit so many of 100 tokens each."""
    return Served("none", [Turn(looked_up=100, hit=hit) for hit in hits], [])


FLAT = made_up(80, 80, 80, 80)
FALLEN = made_up(80, 80, 80, 20)
LOW = made_up(20, 20, 20, 20)


@pytest.mark.parametrize(
    ("pool", "held"),
    [
        (Pool(FALLEN, FLAT, FLAT, FLAT, FLAT), ["falls late", "recovers", "unaffected"]),
        (Pool(FLAT, FLAT, FLAT, FLAT, FLAT), ["recovers", "unaffected"]),
        (Pool(LOW, FLAT, FLAT, FLAT, FLAT), ["recovers", "unaffected"]),
        (Pool(FALLEN, FLAT, FLAT, FALLEN, FLAT), ["falls late", "unaffected"]),
        (Pool(FALLEN, FALLEN, FLAT, FLAT, FLAT), ["falls late", "recovers"]),
        (Pool(FALLEN, FLAT, FALLEN, FLAT, FLAT), ["recovers"]),
    ],
)
def test_each_statement_is_able_to_fail(pool: Pool, held: list[str]) -> None:
    """What falls early, not at all, at large blocks too, or does not recover, is not what the
    document says.
    """
    assert pool.holding(Pool(FLAT, FLAT, FLAT, FLAT, FLAT)) == held
