"""Tails and quantiles of the binomial and of Student's distribution, in plain Python.

Sources: Clopper and Pearson, Biometrika 26 (1934) 404-413; for Student's distribution with whole
degrees of freedom the finite sums of Abramowitz and Stegun, Handbook of Mathematical Functions
(1964), 26.7.3 and 26.7.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

STEPS = 60
"""Halvings of an interval no longer than 2: finer than floating point."""
_CACHED = 1 << 16


@lru_cache(_CACHED)
def binomial_tail(at_least: int, n: int, chance: float) -> float:
    """Return the probability of `at_least` successes or more in n trials."""
    if at_least <= 0:
        return 1.0
    if at_least > n or chance <= 0:
        return 0.0
    if chance >= 1:
        return 1.0
    if at_least > n * chance:
        return _sum(at_least, n, chance)
    return 1 - _sum(n - at_least + 1, n, 1 - chance)  # the failures are the short tail


def _sum(first: int, n: int, chance: float) -> float:
    """Add up the probabilities of `first` successes and more, which is above the mean, so that
    they fall.
    """
    term = math.exp(
        math.lgamma(n + 1) - math.lgamma(first + 1) - math.lgamma(n - first + 1)
        + first * math.log(chance) + (n - first) * math.log1p(-chance)
    )  # fmt: skip
    total = 0.0
    odds = chance / (1 - chance)
    for k in range(first, n + 1):
        total += term
        term *= (n - k) / (k + 1) * odds
        if term < 1e-18 * total:
            break
    return total


@lru_cache(_CACHED)
def binomial_most(n: int, chance: float, beta: float) -> int:
    """Return the number of successes that n trials exceed with probability `beta` at most."""
    most = 0
    while binomial_tail(most + 1, n, chance) > beta:
        most += 1
    return most


@lru_cache(_CACHED)
def binomial_upper(successes: int, n: int, alpha: float) -> float:
    """Return the upper end of the exact one-sided interval (Clopper and Pearson) of a share of
    which so many of n were seen.
    """
    if successes >= n:
        return 1.0
    return bisect(lambda share: 1 - binomial_tail(successes + 1, n, share) > alpha, 0.0, 1.0)


@lru_cache(_CACHED)
def student(degrees: int, alpha: float) -> float:
    """Return what Student's t with so many degrees of freedom exceeds with probability `alpha`,
    below one half.
    """
    high = 1.0
    while _student_tail(high, degrees) > alpha:
        high *= 2
    return bisect(lambda t: _student_tail(t, degrees) > alpha, 0.0, high)


def _student_tail(t: float, degrees: int) -> float:
    angle = math.atan(t / math.sqrt(degrees))
    cosine = math.cos(angle)
    sine = math.sin(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = 0.0
    for k in range(1 + odd, degrees, 2):
        total += term
        term *= cosine * cosine * k / (k + 1)
    within = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return (1 - within) / 2


def bisect(before: Callable[[float], bool], low: float, high: float) -> float:
    """Return where a condition that holds from `low` on and fails up to `high` changes."""
    for _ in range(STEPS):
        middle = (low + high) / 2
        if before(middle):
            low = middle
        else:
            high = middle
    return (low + high) / 2
