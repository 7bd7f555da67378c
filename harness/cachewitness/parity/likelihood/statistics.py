"""Whether a change is larger than noise, and what it costs: statistics of pairs.

A pair is one question of one arm at the positions where noise was measured: the mean absolute
change of the arm against the cold run, and that of the noise arm, in nats. If the cache is sound
both have the same distribution, so the logarithm of their ratio is as likely positive as negative.

* **Size.** The mean logarithm by prefix, signs flipped, one-sided, with prefixes as observations:
  questions behind one prefix share what was restored. `FORGIVEN` is taken off first, since a hit is
  cut a little otherwise than any cold run. A change is excluded if the upper end of the interval of
  Student's t at `EXCLUDED` is below `TWICE`.
* **Prefix.** Whether one prefix moved more than chance moves any of the others: Student's t of the
  one that is furthest out against all others, times the number of prefixes, if it moved by `TWICE`
  the noise. It finds the one bad prefix, of which the size of all knows nothing. A change of
  `HIDDEN` times the noise behind one prefix of `PART` is excluded if the upper end of the interval
  of the prefixes that are furthest out is below it. Where it is not excluded, nothing passes.
* **Cost.** What a token drawn from the cold run costs more, beyond what it costs in the noise arm,
  in nats. The mean with the interval of Student's t between prefixes.

Sources: Grubbs, Technometrics 11 (1969) 1-21, for the one that is furthest out; Fisher, The Design
of Experiments (1935), chapter 3, for sign flips; Kullback and Leibler, Annals of Mathematical
Statistics 22 (1951) 79-86. Tests and quantiles are scipy's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from cachewitness.parity.scores.distributions import student
from cachewitness.parity.scores.statistics import ALPHA

FORGIVEN = 1.25
"""A change so many times the noise is none."""
TWICE = 2.0
"""What must be excluded for a pass: a change of so many times the noise."""
EXCLUDED = 0.01
"""The error rate of that exclusion."""
HIDDEN = 3.0
"""What must be excluded for a pass as well: a change of so many times the noise behind one prefix
of `PART` alone, all others being sound."""
PART = 8
"""One prefix of so many, one at least, may hide a change."""
FLOOR = 4e-6
"""In nats: what a change or noise of 0 counts as in a ratio. Float32 numbers between 16 and 32, as
the likeliest tokens' logits are, lie 1.9e-6 apart, and a logarithm is the difference of two."""
ROUNDING = 1e-9
"""Sums that lie so near are equal."""
FLIPPED_MAX = 12
"""Up to so many prefixes all signs are flipped; with more Student's t is as good."""
WEIGHTS = {"size": 0.5, "cost": 0.1, "prefix": 0.4}
"""How the error rate of an arm is divided."""


class Pair(msgspec.Struct, frozen=True):
    """One question of an arm: its prefix, the change and the noise at the same positions, and what
    a token costs beyond the noise, all in nats a token.
    """

    prefix: str
    change: float
    noise: float
    cost: float

    @property
    def ratio(self) -> float:
        """Return how many times the noise the change is."""
        return (self.change + FLOOR) / (self.noise + FLOOR)


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """How large a change is: the means in nats a token, how many times the noise (geometric mean
    over prefixes), the upper end of that ratio, and the p value of a ratio above `FORGIVEN`.
    """

    change: float
    noise: float
    ratio: float
    upper: float
    p: float


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What a token costs beyond the noise, in nats, with its 95 % interval; `p` is that of a cost
    above the margin.
    """

    mean: float
    lower: float
    upper: float
    p: float


class Worst(msgspec.Struct, frozen=True, kw_only=True):
    """The prefix that moved most: how many times its noise, and the p value of one that is so far
    out. `upper`: a change of more times the noise behind one prefix of `PART` is excluded with 95 %
    confidence; None: none is, since there are too few prefixes.
    """

    prefix: str
    ratio: float
    upper: float | None
    p: float


def size(pairs: Sequence[Pair]) -> Size:
    """Return the size of a change."""
    logs = by_prefix([(pair.prefix, math.log(pair.ratio)) for pair in pairs])
    mean = _mean(logs)
    wide = _standard_error(logs) * student(len(logs) - 1, EXCLUDED) if len(logs) > 1 else math.inf
    return Size(
        change=_mean([pair.change for pair in pairs]),
        noise=_mean([pair.noise for pair in pairs]),
        ratio=math.exp(mean),
        upper=math.exp(min(mean + wide, 700.0)),
        p=above([value - math.log(FORGIVEN) for value in logs]),
    )


def cost(pairs: Sequence[Pair], margin: float) -> Cost:
    """Return what a change costs."""
    costs = by_prefix([(pair.prefix, pair.cost) for pair in pairs])
    mean = _mean(costs)
    wide = _standard_error(costs) * student(len(costs) - 1, ALPHA / 2) if len(costs) > 1 else 1e9
    return Cost(
        mean=mean,
        lower=mean - wide,
        upper=mean + wide,
        p=_t_above([value - margin for value in costs]),
    )


def worst(pairs: Sequence[Pair]) -> Worst:
    """Return the prefix that moved most."""
    means = _by_prefix([(pair.prefix, math.log(pair.ratio)) for pair in pairs])
    prefix = max(means, key=means.__getitem__)
    most = means.pop(prefix)
    rest = [*means.values()]
    p = 1.0
    if len(rest) > 1 and most > math.log(TWICE):
        error = _standard_error(rest) * math.sqrt(len(rest) + 1)
        p = min(1.0, (len(rest) + 1) * _beyond(most - _mean(rest), error, len(rest) - 1))
    return Worst(prefix=prefix, ratio=math.exp(most), upper=_hidden([most, *rest]), p=p)


def _hidden(means: Sequence[float]) -> float | None:
    """Return how many times the noise a change behind one prefix of `PART` is at most, by the mean
    logarithms of all; None if these are too few.

    Those furthest out are taken for the changed ones, which can only be too many: the mean of the
    changed ones is never above that of those furthest out. The spread is that of the others.
    """
    count = max(1, len(means) // PART)
    ordered = sorted(means, reverse=True)
    others = ordered[count:]
    if len(others) < 2:
        return None
    error = _standard_error(others) * math.sqrt(len(others) / count)
    wide = error * student(len(others) - 1, ALPHA)
    return math.exp(min(_mean(ordered[:count]) + wide, 700.0))


def smallest(size: Size, cost: Cost, worst: Worst) -> tuple[float, str]:
    """Return the smallest p value of the tests, each divided by its share of the error rate, and
    which it is.
    """
    p, test = min(
        (size.p / WEIGHTS["size"], "size"),
        (cost.p / WEIGHTS["cost"], "cost"),
        (worst.p / WEIGHTS["prefix"], "prefix"),
    )
    return min(1.0, p), test


def by_prefix(values: Sequence[tuple[str, float]]) -> list[float]:
    """Return the mean of each prefix."""
    return [*_by_prefix(values).values()]


def _by_prefix(values: Sequence[tuple[str, float]]) -> dict[str, float]:
    grouped: dict[str, list[float]] = {}
    for prefix, value in values:
        grouped.setdefault(prefix, []).append(value)
    return {prefix: _mean(of_prefix) for prefix, of_prefix in grouped.items()}


def above(values: Sequence[float]) -> float:
    """Return the one-sided p value of a mean above 0, each value being as likely to have the other
    sign.

    All signs are flipped at once: scipy's `permutation_test` gives the same a hundred times more
    slowly, and the simulations of the error rates ask a million times.
    """
    if len(values) < 2 or len(values) > FLIPPED_MAX:
        return _t_above(values)
    sums = _signs(len(values)) @ values
    return float((sums >= math.fsum(values) - ROUNDING).mean())


@lru_cache
def _signs(count: int) -> Any:
    """Return all choices of so many signs [2 ** count, count]."""
    import numpy as np

    return 1 - 2 * (np.arange(2**count)[:, None] >> np.arange(count) & 1)


def _t_above(values: Sequence[float]) -> float:
    """Return the same by Student's t."""
    if len(values) < 2:
        return 1.0
    return _beyond(_mean(values), _standard_error(values), len(values) - 1)


def _beyond(value: float, error: float, degrees: int) -> float:
    """Return how often chance exceeds a value with such a standard error."""
    from scipy.special import stdtr

    if not error:
        return 0.0 if value > 0 else 1.0
    return float(stdtr(degrees, -value / error))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _standard_error(values: Sequence[float]) -> float:
    mean = _mean(values)
    spread = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return math.sqrt(spread / len(values))
