"""The tests of sizes and costs are scipy's, and err as rarely as docs/results/score.md says."""

from __future__ import annotations

import json
import math
import random

import pytest

pytest.importorskip("scipy", reason="scipy is missing: pip install 'cachewitness[score]'")

import msgspec
import numpy as np
from scipy.stats import permutation_test, t, ttest_1samp

from benchmarks.likelihood_rates import World, simulate
from cachewitness.parity.likelihood.statistics import FLIPPED_MAX, Pair, above, cost, size, worst

RUNS = 300
FEW = 0.05 * RUNS + 3 * (0.05 * 0.95 * RUNS) ** 0.5
"""What a rate of 5 % exceeds once in a thousand."""


@pytest.mark.parametrize("count", [2, 6, 8, FLIPPED_MAX])
def test_signs_are_flipped_as_scipy_flips_them(count: int) -> None:
    draw = random.Random(count)
    values = [draw.gauss(0.5, 1) for _ in range(count)]
    found = permutation_test(
        (np.asarray(values),),
        lambda sample, axis: np.mean(sample, axis=axis),
        permutation_type="samples",
        alternative="greater",
        vectorized=True,
        n_resamples=2**count,
    )
    assert above(values) == pytest.approx(found.pvalue)


def test_many_prefixes_are_tested_by_students_t() -> None:
    draw = random.Random(1)
    values = [draw.gauss(0.2, 1) for _ in range(FLIPPED_MAX + 1)]
    expected = ttest_1samp(values, 0, alternative="greater").pvalue
    assert above(values) == pytest.approx(expected)


def test_one_prefix_proves_nothing() -> None:
    pairs = [Pair("p", 1.0, 0.1, 0.5)] * 40
    assert size(pairs).p == 1 and size(pairs).upper > 1e9
    assert cost(pairs, 0.01).p == 1 and cost(pairs, 0.01).upper > 1e6


def test_changes_of_nothing_are_as_large_as_noise_of_nothing() -> None:
    pairs = [Pair(f"p{i % 8}", 0.0, 0.0, 0.0) for i in range(32)]
    found = size(pairs)
    assert found.ratio == 1 and found.upper == 1 and found.p == 1
    assert math.isclose(cost(pairs, 0.01).upper, 0.0)


@pytest.mark.parametrize(
    "world", [World(30), World(30, arms=2), World(64, spread=0.6), World(30, lump=0.2)], ids=str
)
def test_a_sound_cache_fails_in_at_most_five_of_a_hundred_runs(world: World) -> None:
    assert simulate(world, RUNS, 1)["fail"] <= FEW


@pytest.mark.parametrize("world", [World(30, times=2.0), World(30, times=2.0, spread=0.6)], ids=str)
def test_twice_the_noise_passes_in_less_than_one_of_a_hundred_runs(world: World) -> None:
    found = simulate(world, RUNS, 2)
    assert found["pass"] <= 0.01 * RUNS and found["fail"] > 0.7 * RUNS


def test_a_fault_behind_one_prefix_alone_fails() -> None:
    """Over all prefixes it is one observation of eight."""
    found = simulate(World(30, times=20.0, one=True), RUNS, 3)
    assert not found["pass"] and found["fail"] > 0.9 * RUNS


@pytest.mark.parametrize(
    "world",
    [World(30, times=3.0, one=True), World(256, prefixes=256, times=3.0, one=True)],
    ids=str,
)
def test_three_times_the_noise_behind_one_prefix_of_eight_rarely_passes(world: World) -> None:
    """It fails, or is unknown; five of a hundred runs may pass it."""
    assert simulate(world, 150, 4)["pass"] <= 15
    assert simulate(World(30, spread=0.2), 150, 5)["pass"] > 140


def test_the_furthest_prefix_is_compared_with_all_others() -> None:
    """By Student's t, times the number of prefixes; one that moved by less than twice is none."""
    draw = random.Random(2)
    ratios = [math.exp(draw.gauss(0, 0.2)) for _ in range(7)]
    pairs = [Pair(f"p{i}", ratio, 1.0, 0.0) for i, ratio in enumerate([*ratios, 4.0])]
    logs = [math.log(ratio) for ratio in ratios]
    mean = sum(logs) / 7
    deviation = math.sqrt(sum((one - mean) ** 2 for one in logs) / 6)
    found = worst(pairs)
    by_t = t.sf((math.log(4) - mean) / (deviation * math.sqrt(8 / 7)), 6)
    assert found.prefix == "p7" and found.p == pytest.approx(8 * by_t, rel=1e-3)
    assert worst(pairs[:-1]).p == 1


def test_with_too_few_prefixes_nothing_is_excluded_and_the_document_says_so() -> None:
    """JSON has no infinity: a number that is not known is null."""
    pairs = [Pair(str(index), 0.02, 0.01, 0.0) for index in range(2)]
    assert worst(pairs).upper is None
    assert json.loads(msgspec.json.encode(worst(pairs)))["upper"] is None
