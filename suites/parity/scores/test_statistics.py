"""The statistics of paired answers agree with statsmodels, with sums over all cases, and with
tables computed independently.
"""

from __future__ import annotations

import itertools
import math
import random

import pytest

pytest.importorskip("scipy", reason="scipy is missing: pip install 'cachewitness[score]'")

from cachewitness.parity.scores import statistics
from cachewitness.parity.scores.statistics import holm, mcnemar, mde, n_for_margin, tango_lower

COUNTS = [(0, 0), (1, 0), (0, 1), (5, 5), (12, 3), (3, 12), (40, 0), (150, 130)]

# MDE in points by n and the share of differing answers, alpha 0.05 one-sided, power 0.8; None:
# never.
MDE_POINTS = {
    200: (None, None, None, 3.91, 5.53, 7.82),
    300: (None, None, None, 3.20, 4.52, 6.40),
    500: (None, None, 1.57, 2.48, 3.51, 4.96),
    1319: (0.48, 0.68, 0.97, 1.53, 2.16, 3.06),
    2638: (0.34, 0.48, 0.68, 1.08, 1.53, 2.16),
}
SHARES = (0.005, 0.01, 0.02, 0.05, 0.10, 0.20)

N_FOR_MARGIN = {0.005: (310, 78), 0.02: (1237, 310), 0.05: (3092, 773), 0.10: (6183, 1546)}


@pytest.mark.parametrize(("lost", "gained"), COUNTS)
def test_mcnemar_counts_the_outcomes_that_lose_as_much(lost: int, gained: int) -> None:
    differing = lost + gained
    outcomes = sum(math.comb(differing, k) for k in range(lost, differing + 1))
    assert mcnemar(lost, gained) == pytest.approx(outcomes / 2**differing, rel=1e-9)


BOUNDS = {
    (11, 5, 494): -0.02715706294563168,
    (2, 14, 381): 0.015756193704105068,
    (48, 2, 1375): -0.04267815920280413,
    (532, 8, 831): -0.6585767503892739,
    (0, 0, 1): -0.7301340512159455,
    (0, 50, 50): 0.8973336284274598,
    (50, 0, 50): -1.0,
}


@pytest.mark.parametrize("counts", BOUNDS)
def test_tangos_bounds_are_those_of_sixty_halvings(counts: tuple[int, int, int]) -> None:
    assert tango_lower(*counts) == pytest.approx(BOUNDS[counts], abs=1e-9)


@pytest.mark.parametrize(("lost", "gained"), [(0, 0), (1, 0), (3, 12), (12, 3), (40, 0), (0, 40)])
@pytest.mark.parametrize("n", [60, 200, 1319])
def test_at_tangos_bound_the_constrained_score_statistic_is_the_quantile(
    lost: int, gained: int, n: int
) -> None:
    """The rate of losses is found here by brute force over the likelihood, not by the closed
    form.
    """
    bound = tango_lower(lost, gained, n)
    same = n - lost - gained
    rates = [max(0.0, -bound) + (1 - abs(bound)) / 2 * (i / 8000) ** 3 for i in range(1, 8000)]

    def likelihood(rate: float) -> float:
        parts = ((lost, rate), (gained, rate + bound), (same, 1 - 2 * rate - bound))
        if any(count and share <= 0 for count, share in parts):
            return -math.inf
        return sum(count * math.log(share) for count, share in parts if count)

    rate = max(rates, key=likelihood)
    statistic = (gained - lost - n * bound) / math.sqrt(n * (2 * rate + bound * (1 - bound)))
    assert statistic == pytest.approx(1.6449, abs=0.01)


@pytest.mark.parametrize(("n", "points"), [(1319, 0.205), (200, 1.34)])
def test_where_nothing_differs_the_interval_has_the_width_of_the_table(
    n: int, points: float
) -> None:
    assert -100 * tango_lower(0, 0, n) == pytest.approx(points, abs=0.006)


def test_a_bound_of_impossible_counts_is_refused() -> None:
    for lost, gained, n in ((3, 3, 5), (-1, 0, 5), (0, 0, 0)):
        with pytest.raises(ValueError, match="questions"):
            tango_lower(lost, gained, n)


@pytest.mark.parametrize(("n", "share"), list(itertools.product(MDE_POINTS, SHARES)))
def test_the_minimum_detectable_effect_is_that_of_the_table(n: int, share: float) -> None:
    expected = MDE_POINTS[n][SHARES.index(share)]
    found = mde(n, share)
    assert (
        found is None
        if expected is None
        else found is not None and 100 * found == pytest.approx(expected, abs=0.006)
    )


def test_where_no_answer_can_differ_no_loss_can_be_detected() -> None:
    assert mde(1319, 0.0) is None


@pytest.mark.parametrize("share", N_FOR_MARGIN)
def test_the_questions_that_show_a_margin_are_those_of_the_table(share: float) -> None:
    assert tuple(n_for_margin(share, margin) for margin in (0.01, 0.02)) == N_FOR_MARGIN[share]


def test_holms_adjusted_p_values_are_those_of_statsmodels() -> None:
    multitest = pytest.importorskip(
        "statsmodels.stats.multitest", reason="statsmodels is missing: pip install statsmodels"
    )
    draw = random.Random(7)
    for size in (1, 2, 5, 9):
        p_values = [draw.random() ** 3 for _ in range(size)]
        assert holm(p_values) == pytest.approx(
            list(multitest.multipletests(p_values, method="holm")[1])
        )


def test_the_error_rate_and_the_power_are_those_used_everywhere() -> None:
    assert (statistics.ALPHA, statistics.POWER) == (0.05, 0.8)
