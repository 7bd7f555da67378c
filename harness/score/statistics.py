"""Statistics of paired right-or-wrong answers, in plain Python.

Two runs answered the same n questions. `lost` were right in the first and wrong in the second, `gained` the other way round;
all others say nothing about a difference. What is asked of these two counts:

* Did the second run lose answers? Exact McNemar: given that m = lost + gained answers differ, each is as likely lost as gained.
* By how much can it be worse at most? Tango's score interval, since the usual one (Wald) has no width at all where nothing
  differs, which is where a cache is most often.
* What could have been seen? The minimum detectable effect of a one-sided test with that many questions.

Sources: McNemar, Psychometrika 12 (1947); Tango, Statistics in Medicine 17 (1998) 891-908; Connor, Biometrics 43 (1987)
207-211 for sample sizes; Holm, Scandinavian Journal of Statistics 6 (1979) 65-70. Effects and margins are shares of the
questions, 0.01 is one point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

ALPHA = 0.05
"""Error rate of each one-sided test."""
POWER = 0.8
_STEPS = 60
"""Halvings of an interval no longer than 2: finer than floating point."""


def mcnemar(lost: int, gained: int) -> float:
    """Return the exact one-sided p value of so many losses or more among all answers that differ."""
    differing = lost + gained
    at_least: int = sum(math.comb(differing, k) for k in range(lost, differing + 1))
    return at_least / (1 << differing)


def tango_lower(lost: int, gained: int, n: int, alpha: float = ALPHA) -> float:
    """Return the lower end of Tango's one-sided interval of the difference (gained - lost) / n.

    With 1 - alpha confidence the true difference is above it. Raises ValueError if n is smaller than the counts.
    """
    if lost < 0 or gained < 0 or n < max(1, lost + gained):
        raise ValueError(f"{lost} lost and {gained} gained of {n} questions")
    z = NormalDist().inv_cdf(1 - alpha)
    return _bisect(lambda difference: _tango(lost, gained, n, difference) >= z, -1.0, (gained - lost) / n)


def mde(n: int, discordance: float, alpha: float = ALPHA, power: float = POWER) -> float | None:
    """Return the smallest true loss that n questions show with this power if a share `discordance` of the answers differs.

    None if none is: even if every differing answer were a loss, the power would be less.
    """
    if discordance <= 0 or _questions(discordance, discordance, alpha, power) > n:
        return None
    return _bisect(lambda loss: _questions(loss, discordance, alpha, power) > n, 0.0, discordance)


def n_for_margin(discordance: float, margin: float, alpha: float = ALPHA, power: float = POWER) -> int:
    """Return how many questions show with this power that less than `margin` is lost, if in truth nothing is."""
    return math.ceil((_z(alpha) + _z(1 - power)) ** 2 * discordance / margin**2)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p values, in the order given: those of at most alpha stay significant among all the others."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def _tango(lost: int, gained: int, n: int, difference: float) -> float:
    """Return the score statistic of a true difference; `rate` is the most likely rate of losses under it."""
    a = 2 * n
    b = (2 * n - gained + lost) * difference - (gained + lost)
    c = -lost * difference * (1 - difference)
    rate = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
    variance = n * (2 * rate + difference * (1 - difference))
    distance = gained - lost - n * difference
    return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance) if distance else 0.0


def _questions(loss: float, discordance: float, alpha: float, power: float) -> float:
    """Return the questions that show a loss, if a share `discordance` of the answers differs (Connor's formula)."""
    return (_z(alpha) * math.sqrt(discordance) + _z(1 - power) * math.sqrt(max(0.0, discordance - loss**2))) ** 2 / loss**2


def _z(alpha: float) -> float:
    return NormalDist().inv_cdf(1 - alpha)


def _bisect(before: Callable[[float], bool], low: float, high: float) -> float:
    """Return where a condition that holds from `low` on and fails up to `high` changes."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if before(middle):
            low = middle
        else:
            high = middle
    return (low + high) / 2
