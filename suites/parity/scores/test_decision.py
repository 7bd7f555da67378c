"""What counts amount to: each test finds the damage that the others miss, and is silent about
chance; nothing buys a pass.
"""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction
from statistics import stdev

import pytest

pytest.importorskip("scipy", reason="scipy is missing: pip install 'cachewitness[score]'")

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


def exact_tail(at_least: int, n: int, chance: float) -> float:
    """Add up the probabilities of so many successes and more as fractions."""
    share = Fraction(chance)
    return float(
        sum(math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(at_least, n + 1))
    )


def test_tails_of_the_binomial_are_sums() -> None:
    draw = random.Random(3)
    for _ in range(60):
        n = draw.randint(1, 60)
        chance = draw.random() ** 3
        k = draw.randint(0, n)
        assert binomial_tail(k, n, chance) == pytest.approx(exact_tail(k, n, chance), abs=1e-12)
        most = binomial_most(n, chance, 0.001)
        assert exact_tail(most + 1, n, chance) <= 0.001
        assert most == 0 or exact_tail(most, n, chance) > 0.001
        if k < n:
            upper = binomial_upper(k, n, 0.05)
            assert 1 - exact_tail(k + 1, n, upper) == pytest.approx(0.05, abs=1e-9)


@pytest.mark.parametrize(
    ("at_least", "n", "chance", "tail"), [(0, 0, 0.1, 1), (0, 5, 0, 1), (1, 5, 0, 0), (5, 5, 1, 1)]
)
def test_tails_of_the_binomial_have_their_ends(
    at_least: int, n: int, chance: float, tail: float
) -> None:
    assert binomial_tail(at_least, n, chance) == tail and binomial_upper(n, n, 0.05) == 1


STUDENT = {
    (1, 0.01): 31.820515953773963,
    (2, 0.05): 2.9199855803537247,
    (7, 0.05): 1.8945786050900062,
    (8, 0.2): 0.8888895177670197,
    (99, 0.001): 3.174603849755771,
}
"""By the finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4."""


@pytest.mark.parametrize("asked", STUDENT)
def test_quantiles_of_student_are_those_of_finite_sums(asked: tuple[int, float]) -> None:
    assert student(*asked) == pytest.approx(STUDENT[asked], abs=1e-9)


def test_sign_flips_count_all_signs_and_are_mcnemar_where_each_prefix_has_one_question() -> None:
    losses = [3, -1, 0, 2, 2, -4, 1]
    flipped = [
        sum(s * loss for s, loss in zip(signs, losses, strict=True))
        for signs in itertools.product((1, -1), repeat=7)
    ]
    assert sign_flips(losses) == sum(total >= sum(losses) for total in flipped) / 2**7
    assert sign_flips([1] * 9 + [-1] * 2 + [0] * 50) == pytest.approx(mcnemar(9, 2))


def test_the_bound_of_prefixes_of_one_question_is_that_of_a_mean() -> None:
    losses = [1] * 7 + [-1] * 3 + [0] * 90
    mean = -0.04
    error = stdev(losses) / math.sqrt(100)
    quantile = 1.6603911560169902  # of Student's t with 99 degrees of freedom
    assert clustered_lower(losses, [1] * 100) == pytest.approx(mean - quantile * error)


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
