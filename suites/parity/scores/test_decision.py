"""What counts amount to: each test finds the damage that the others miss, and is silent about
chance; nothing buys a pass.
"""

from __future__ import annotations

import itertools
import random

import pytest

from cachewitness.parity.scores.decision import (
    Counts,
    Decision,
    Risk,
    Tally,
    decide,
    decides_at,
    lower_bound,
)
from cachewitness.parity.scores.distributions import (
    binomial_most,
    binomial_tail,
    binomial_upper,
    student,
)
from cachewitness.parity.scores.statistics import clustered_lower, mcnemar, sign_flips


def one(whole: Tally, *prefixes: Tally, repeated: bool = True, **risk: float) -> Decision:
    return decide([Counts(whole, prefixes, repeated)], Risk(**risk))[0]


def behind(*prefixes: Tally, repeated: bool = True) -> Decision:
    """Decide questions that share these prefixes."""
    whole = Tally(
        *(sum(getattr(tally, name) for tally in prefixes) for name in Tally.__struct_fields__)
    )
    return one(whole, *prefixes, repeated=repeated)


def test_tails_and_quantiles_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy is missing: pip install scipy")
    draw = random.Random(3)
    for _ in range(300):
        n = draw.randint(1, 1500)
        chance = draw.random() ** 3
        k = draw.randint(0, n)
        assert binomial_tail(k, n, chance) == pytest.approx(
            stats.binom.sf(k - 1, n, chance), abs=1e-10
        )
        assert binomial_most(n, chance, 0.001) == stats.binom.isf(0.001, n, chance)
        if k < n:
            assert binomial_upper(k, n, 0.05) == pytest.approx(
                stats.beta.isf(0.05, k + 1, n - k), abs=1e-9
            )
    for degrees, alpha in itertools.product((1, 2, 7, 8, 25), (0.01, 0.05, 0.2)):
        assert student(degrees, alpha) == pytest.approx(stats.t.isf(alpha, degrees), abs=1e-7)


def test_sign_flips_count_all_signs_and_are_mcnemar_where_each_prefix_has_one_question() -> None:
    losses = [3, -1, 0, 2, 2, -4, 1]
    flipped = [
        sum(s * loss for s, loss in zip(signs, losses, strict=True))
        for signs in itertools.product((1, -1), repeat=7)
    ]
    assert sign_flips(losses) == sum(total >= sum(losses) for total in flipped) / 2**7
    assert sign_flips([1] * 9 + [-1] * 2 + [0] * 50) == pytest.approx(mcnemar(9, 2))


def test_the_bound_of_prefixes_of_one_question_is_that_of_a_mean() -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy is missing: pip install scipy")
    losses = [1] * 7 + [-1] * 3 + [0] * 90
    mean = -0.04
    error = stats.sem(losses)
    assert clustered_lower(losses, [1] * 100) == pytest.approx(mean - stats.t.isf(0.05, 99) * error)


def test_more_lost_than_gained_is_a_loss() -> None:
    assert one(Tally(1319, 900, 30, 8, 25, 8)).outcome == "lost"
    assert one(Tally(1319, 900, 24, 18, 19, 14)).outcome == "open"


def test_as_many_gained_as_lost_is_a_loss_if_the_second_cold_run_keeps_them() -> None:
    """McNemar knows nothing of it: p is one half. Without a repetition chance may have done it:
    open, and never a pass.
    """
    found = one(Tally(1319, 900, 80, 80, 80, 0))
    assert (found.outcome, found.test) == ("lost", "noise")
    assert one(Tally(1319, 900, 45, 45, 45, 0)).outcome == "open", (
        "where one answer in twenty differs chance loses as many"
    )
    assert one(Tally(1319, 900, 60, 60, 30, 30)).outcome == "open", "the repetition loses as many"
    assert one(Tally(1319, 900, 60, 60), repeated=False).outcome == "open"
    assert one(Tally(1319, 900, 160, 160), repeated=False).outcome == "lost", (
        "no noise takes more than a tenth"
    )


def test_gains_do_not_buy_a_pass() -> None:
    """Ten answers in a thousand are lost, a point: with forty gained the change is three points
    up, and still no pass.
    """
    for gained in (0, 10, 40):
        assert one(Tally(1000, 900, 10, gained, 10, 0)).outcome != "kept"
        assert one(Tally(1000, 900, 10, gained), repeated=False).outcome != "kept"
    assert one(Tally(1000, 900, 1, 1, 1, 1)).outcome == "kept"


def test_one_ruined_prefix_is_a_loss_although_it_is_one_observation() -> None:
    found = behind(Tally(50, 48, 38, 0, 38, 0), *[Tally(50, 48, 0, 0)] * 7)
    assert (found.outcome, found.test) == ("lost", "share")
    assert behind(Tally(50, 48, 20, 0, 20, 0), *[Tally(50, 48, 0, 0)] * 7).outcome == "open", (
        "chance may move half at once"
    )


def test_one_prefix_that_lost_a_third_keeps_a_large_run_from_passing() -> None:
    """Of 10,000 questions 16 are a sixth of the margin: by the bounds alone it would pass."""
    calm = [Tally(50, 48, 0, 0)] * 199
    assert behind(Tally(50, 48, 16, 0, 16, 0), *calm).outcome == "open"
    assert behind(Tally(50, 48, 3, 0, 3, 0), *calm).outcome == "kept"


def test_losses_behind_most_prefixes_are_a_loss_and_behind_one_they_are_not_yet() -> None:
    even = [Tally(50, 48, 2, 0, 2, 0)] * 7
    assert (
        behind(*even, Tally(50, 48, 0, 0)).test == "net"
        and behind(*even, Tally(50, 48, 0, 0)).outcome == "lost"
    )
    assert one(Tally(400, 384, 6, 0, 6, 0)).outcome == "lost", (
        "as independent questions six of six are significant"
    )
    assert behind(Tally(50, 48, 6, 0, 6, 0), *[Tally(50, 48, 0, 0)] * 7).outcome == "open"


def test_as_many_gained_as_lost_behind_every_prefix_is_a_loss() -> None:
    found = behind(*[Tally(50, 48, 6, 6, 6, 0)] * 8)
    assert (found.outcome, found.test) == ("lost", "noise")


def test_few_prefixes_do_not_pass_and_six_may() -> None:
    assert [behind(*[Tally(100, 90, 0, 0)] * count).outcome for count in (3, 5, 6)] == [
        "open",
        "open",
        "kept",
    ]


def test_losses_in_one_prefix_widen_the_bound() -> None:
    spread = [Tally(50, 48, 1, 0, 1, 0)] * 6 + [Tally(50, 48, 0, 0)] * 20
    lumped = [Tally(50, 48, 6, 0, 6, 0), *[Tally(50, 48, 0, 0)] * 25]
    whole = Tally(1300, 1248, 6, 0, 6, 0)
    assert lower_bound(Counts(whole, tuple(lumped)), Risk()) < lower_bound(
        Counts(whole, tuple(spread)), Risk()
    )
    assert (
        lower_bound(Counts(whole, tuple(lumped)), Risk())
        < -0.01
        < lower_bound(Counts(whole), Risk())
    )


def test_sixteen_questions_are_needed_however_wide_the_margin() -> None:
    assert (
        one(Tally(15, 15, 0, 0), margin=1.0).outcome == "open"
        and one(Tally(16, 16, 0, 0), margin=1.0).outcome == "kept"
    )


def test_no_questions_are_no_pass() -> None:
    assert one(Tally(0, 0, 0, 0)).outcome == "open"


def test_with_as_many_questions_as_were_told_the_gate_does_decide() -> None:
    for lost, gained, n in ((3, 1, 200), (5, 5, 300), (2, 0, 150), (1, 1, 200)):
        arm = Counts(Tally(n, n - 20, lost, gained, lost, gained))
        needed = decides_at(arm, Risk())
        times = needed / n
        later = Tally(
            *(round(getattr(arm.whole, name) * times) for name in Tally.__struct_fields__)
        )
        assert needed > n and one(later).outcome != "open"
        assert decide([arm], Risk())[0].outcome == "open"


def test_more_questions_are_told_where_prefixes_vary_more_than_questions() -> None:
    lumped = (Tally(50, 48, 4, 0, 4, 0), *[Tally(50, 48, 0, 0)] * 7)
    whole = Tally(400, 384, 4, 0, 4, 0)
    assert decides_at(Counts(whole, lumped), Risk()) > decides_at(Counts(whole), Risk()) > 400
