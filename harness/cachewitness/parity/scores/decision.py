"""Whether counts of lost and gained answers are a loss, surely none, or open: a pure function of
counts.

What is counted is what the arm answered wrong that the cold run answered right. Chance does that
too, so the arm is compared with the cold run repeated: `alone` were lost by the arm and not by the
repetition, `again` the other way round. Three tests look for a loss, each with its share of the
error rate; Holm's correction is over the arms.

* **net**: losing prevails over gaining. Flips the sign of each prefix; without prefixes that is
  McNemar's exact test.
* **noise**: the arm loses more than the repetition, even if as many losses are forgiven as a true
  rate of one margin, or of a fortieth, costs by chance. A fortieth is what is lost where one answer
  in twenty differs, which a cached run may have of rounding at other places even where two cold
  runs never differ. Gains do not count, so an arm that ruins as many answers as it happens to mend
  is found.
* **share**: of one prefix more than half of the right answers are lost, or more than three times
  the share that the repetition loses; where no prefixes are shared, more than a tenth of all. It
  finds the one bad prefix, of which the other two, for which a prefix is one observation, know
  nothing.

An arm passes if two bounds, each with its full error rate, exclude a loss of the margin: that of
the net change, and that of what is lost beyond the repetition. Where there is no repetition, all
that is lost must be less than the margin. So gains buy nothing. Where prefixes are shared, the
bounds must hold with prefixes for observations as well, and none of them may have lost
significantly more than a tenth: what chance moves together is one observation, which proves no loss
and allows no pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from cachewitness.parity.scores.distributions import binomial_most, binomial_tail, binomial_upper
from cachewitness.parity.scores.statistics import (
    ALPHA,
    clustered_lower,
    holm,
    mcnemar,
    n_for_margin,
    sign_flips,
    tango_lower,
)

Test = Literal["net", "noise", "share"]
WEIGHTS: dict[Test, float] = {"net": 0.6, "noise": 0.3, "share": 0.1}
"""How the error rate of an arm is divided; without a repetition `net` has that of `noise` too."""
CHANCE_LOSS = 0.025
"""What chance alone costs where one answer in twenty differs between two runs, as a share of the
questions."""
FORGIVEN_BETA = 0.001
"""How often such a rate, or that of one margin if it is larger, costs more answers than are
forgiven."""
NOISE_SHARE = 0.1
"""Independent noise takes no larger share of the right answers of one prefix, or of all questions.
"""
LUMP_SHARE = 0.5
"""So large a share of one prefix may be lost by chance at once, because its questions were read
another way together."""
NOISE_TIMES = 3
"""Or so many times the share that the repetition of the cold run loses."""
NOISE_MAX = 0.1
"""The share of scores about which two cold runs may disagree; with more, nothing passes. Chance
takes a few in a hundred."""
MIN_PREFIXES = 6
"""With fewer shared prefixes no net loss can be significant (two to the fifth is 32), and nothing
passes by its score."""
MIN_QUESTIONS = 16
"""With fewer questions nothing passes."""
N_MAX = 10_000_000


class Risk(msgspec.Struct, frozen=True, kw_only=True):
    """The largest loss that is accepted if it cannot be excluded (0.01 is one point), and the
    error rate of each verdict.
    """

    margin: float = 0.01
    alpha: float = ALPHA


class Tally(msgspec.Struct, frozen=True):
    """What one arm did to n questions, of which the cold run answered `right`; `alone` and
    `again` as above.
    """

    n: int
    right: int
    lost: int
    gained: int
    alone: int = 0
    again: int = 0


class Counts(msgspec.Struct, frozen=True):
    """An arm: all questions, and by shared prefix if they share any. `repeated`: there is a
    second cold run.
    """

    whole: Tally
    prefixes: tuple[Tally, ...] = ()
    repeated: bool = True


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What the counts of an arm amount to; `lower` is the lower bound of the change, as a share
    of the questions.
    """

    outcome: Literal["lost", "kept", "open"]
    test: Test
    p: float
    p_adjusted: float
    lower: float


def decide(arms: Sequence[Counts], risk: Risk) -> list[Decision]:
    """Decide every arm of a run."""
    found = [smallest(arm, risk) for arm in arms]
    adjusted = holm([p for p, _ in found])
    return [
        _decision(arm, *one, p, risk) for arm, one, p in zip(arms, found, adjusted, strict=True)
    ]


def _decision(arm: Counts, p: float, test: Test, p_adjusted: float, risk: Risk) -> Decision:
    lower = lower_bound(arm, risk)
    enough = arm.whole.n >= MIN_QUESTIONS and (
        not arm.prefixes or len(arm.prefixes) >= MIN_PREFIXES
    )
    kept = enough and lower > -risk.margin and not suspect(arm, risk)
    outcome: Literal["lost", "kept", "open"] = (
        "lost" if p_adjusted < risk.alpha else "kept" if kept else "open"
    )
    return Decision(outcome=outcome, test=test, p=p, p_adjusted=p_adjusted, lower=lower)


def smallest(arm: Counts, risk: Risk) -> tuple[float, Test]:
    """Return the smallest p value of the three tests, each divided by its share of the error
    rate, and which it is.
    """
    share = _share(arm, LUMP_SHARE if arm.prefixes else NOISE_SHARE)
    found: list[tuple[float, Test]] = [(share / WEIGHTS["share"], "share")]
    if arm.repeated:
        found += [
            (_net(arm) / WEIGHTS["net"], "net"),
            (_noise(arm, risk) / WEIGHTS["noise"], "noise"),
        ]
    else:
        found.append((_net(arm) / (WEIGHTS["net"] + WEIGHTS["noise"]), "net"))
    p, test = min(found)
    return min(1.0, p), test


def _net(arm: Counts) -> float:
    if not arm.prefixes:
        return mcnemar(arm.whole.lost, arm.whole.gained)
    return sign_flips([tally.lost - tally.gained for tally in arm.prefixes])


def _noise(arm: Counts, risk: Risk) -> float:
    forgiven = binomial_most(arm.whole.n, max(risk.margin, CHANCE_LOSS), FORGIVEN_BETA)
    if not arm.prefixes:
        return mcnemar(max(0, arm.whole.alone - forgiven), arm.whole.again) + FORGIVEN_BETA
    return (
        sign_flips(_forgive([tally.alone - tally.again for tally in arm.prefixes], forgiven))
        + FORGIVEN_BETA
    )


def _forgive(losses: list[int], forgiven: int) -> list[int]:
    """Take losses off where there are most, which leaves the least to be seen."""
    for _ in range(forgiven):
        worst = max(range(len(losses)), key=losses.__getitem__)
        if losses[worst] <= 0:
            break
        losses[worst] -= 1
    return losses


def suspect(arm: Counts, risk: Risk) -> bool:
    """Return whether one prefix lost more than independent noise takes, which keeps an arm from
    passing.
    """
    return bool(arm.prefixes) and _share(arm, NOISE_SHARE) < risk.alpha


def _share(arm: Counts, share: float) -> float:
    """Return the p value of the worst prefix, if chance takes such a share, or three times what
    the repetition loses.
    """
    whole = arm.whole
    repeated = (
        (whole.lost - whole.alone + whole.again) / max(1, whole.right) if arm.repeated else 0.0
    )
    most = min(1.0, max(share, NOISE_TIMES * repeated))
    tallies = arm.prefixes or (whole,)
    return min(
        1.0, len(tallies) * min(binomial_tail(tally.lost, tally.right, most) for tally in tallies)
    )


def lower_bound(arm: Counts, risk: Risk) -> float:
    """Return the lower bound of the change: the lower one of the net change and of what is lost
    beyond the repetition.
    """
    whole = arm.whole
    prefixes = arm.prefixes
    if not whole.n:
        return -1.0
    net = [tango_lower(whole.lost, whole.gained, whole.n, risk.alpha)]
    net += _clustered((tally.lost - tally.gained for tally in prefixes), prefixes, risk)
    if not arm.repeated:
        beyond = [-binomial_upper(whole.lost, whole.n, risk.alpha)]
        return min(net + beyond + _clustered((tally.lost for tally in prefixes), prefixes, risk))
    beyond = [tango_lower(whole.alone, whole.again, whole.n, risk.alpha)]
    return min(
        net + beyond + _clustered((tally.alone - tally.again for tally in prefixes), prefixes, risk)
    )


def _clustered(losses: Iterable[int], prefixes: Sequence[Tally], risk: Risk) -> list[float]:
    if len(prefixes) < MIN_PREFIXES:
        return []
    return [clustered_lower(list(losses), [tally.n for tally in prefixes], risk.alpha)]


def decides_at(arm: Counts, risk: Risk) -> int:
    """Return how many questions would decide, if answers went on to differ at the rates seen so
    far; 0 if none would.

    Never fewer than would show with power 80 % that nothing is lost, if nothing is. Where questions
    share prefixes it is an estimate, larger by as much as prefixes make the variance larger than
    questions would.
    """
    whole = arm.whole
    size = max(
        whole.n, MIN_QUESTIONS, n_for_margin((whole.lost + whole.gained) / whole.n, risk.margin)
    )
    while size <= N_MAX:
        later = _grown(arm, size)
        if smallest(later, risk)[0] < risk.alpha or lower_bound(later, risk) > -risk.margin:
            return round(size * _design_effect(arm, risk))
        size += max(1, size // 100)
    return 0


def _grown(arm: Counts, size: int) -> Counts:
    """Return the arm with so many questions, independent ones."""
    fields = {
        name: round(getattr(arm.whole, name) * size / arm.whole.n)
        for name in Tally.__struct_fields__
    }
    return Counts(Tally(**fields), (), arm.repeated)


def _design_effect(arm: Counts, risk: Risk) -> float:
    """Return how much larger the variance of the net loss is between prefixes than between
    questions, at least 1.
    """
    whole = arm.whole
    wide = _clustered((tally.lost - tally.gained for tally in arm.prefixes), arm.prefixes, risk)
    change = (whole.gained - whole.lost) / whole.n
    near = change - tango_lower(whole.lost, whole.gained, whole.n, risk.alpha)
    return max([1.0, *(((change - lower) / near) ** 2 for lower in wide)])
