"""The gate errs as rarely as docs/results/score.md says: simulated runs, with fixed seeds, through
the code that judges real ones.
"""

from __future__ import annotations

import pytest

pytest.importorskip("numpy", reason="numpy is missing: pip install 'cachewitness[score]'")

from benchmarks.score_rates import SOUND, World, simulate
from suites.support.sampled import ALL

RUNS = 1000
MOST = 0.05 * RUNS + 3 * (0.05 * 0.95 * RUNS) ** 0.5
"""What a rate of 5 % exceeds once in a thousand."""
WORLDS = SOUND if ALL else [world for world in SOUND if world.prefixes < 100 or world.lump == 0.5]
"""A hundred prefixes take as long as all else; of them the one with the most noise."""


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_a_correct_cache_fails_in_at_most_five_of_a_hundred_runs(world: World) -> None:
    assert simulate(world, RUNS, 1)["lost"] <= MOST


@pytest.mark.parametrize(
    ("noise", "gained"),
    [
        *((noise, gained) for noise in (0.0, 0.005, 0.02, 0.05) for gained in (0.0, 0.02)),
        (0.2, 0.0),
    ],
)
def test_two_points_lost_of_1319_pass_in_less_than_one_of_a_hundred_runs(
    noise: float, gained: float
) -> None:
    found = simulate(World(1319, noise, lost=0.02, gained=gained), RUNS, 2)
    assert found["kept"] < 0.01 * RUNS
    if not gained and noise <= 0.02:
        assert found["lost"] > 0.9 * RUNS


@pytest.mark.parametrize("noise", [0.0, 0.002, 0.02, 0.05])
@pytest.mark.parametrize("repeated", [True, False])
def test_a_loss_of_the_margin_passes_in_at_most_five_of_a_hundred_runs(
    noise: float, repeated: bool
) -> None:
    assert simulate(World(1319, noise, lost=0.01, repeated=repeated), RUNS, 3)["kept"] <= MOST


@pytest.mark.parametrize("prefixes", [8, 26])
def test_one_prefix_of_which_half_is_ruined_does_not_pass_and_one_that_is_ruined_fails(
    prefixes: int,
) -> None:
    half, most = (
        simulate(World(50 * prefixes, 0.02, prefixes=prefixes, ruined=share), RUNS, 4)
        for share in (0.5, 0.9)
    )
    assert not half["kept"] and not most["kept"]
    assert most["lost"] > 0.9 * RUNS


def test_a_correct_cache_on_a_calm_engine_passes() -> None:
    """The gate that never fails and never passes would satisfy all of the above."""
    assert simulate(World(1319, 0.005), RUNS, 5)["kept"] > 0.9 * RUNS
    assert simulate(World(1319, 0.0), RUNS, 6)["kept"] == RUNS
