"""Statistics of paired right-or-wrong answers.

Two runs answered the same n questions. `lost` were right in the first and wrong in the second,
`gained` the other way round; all others say nothing about a difference. What is asked of these two
counts:

* Did the second run lose answers? Exact McNemar: given that m = lost + gained answers differ, each
  is as likely lost as gained.
* By how much can it be worse at most? Tango's score interval, since the usual one (Wald) has no
  width at all where nothing differs, which is where a cache is most often.
* What could have been seen? The minimum detectable effect of a one-sided test with that many
  questions.
* And if questions share a prefix, so that chance may change many answers at once? Then the prefix
  is what counts: the sign of its whole loss is flipped (McNemar's test is this with prefixes of one
  question), and the interval is that of their mean.

Sources: McNemar, Psychometrika 12 (1947); Fisher, The Design of Experiments (1935), chapter 3, for
sign flips; Tango, Statistics in Medicine 17 (1998) 891-908; Connor, Biometrics 43 (1987) 207-211
for sample sizes; Cochran, Sampling Techniques (1977), chapter 9, for the variance between clusters;
Holm, Scandinavian Journal of Statistics 6 (1979) 65-70. Effects and margins are shares of the
questions, 0.01 is one point.

Distributions and the search for roots are scipy's. What it has not is written here: the exact test
by sign flips over clusters (its permutation test draws a sample where there are many), Tango's
interval, the sample sizes, and Holm's correction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

from cachewitness.parity.scores.distributions import binomial_tail, student

ALPHA = 0.05
"""Error rate of each one-sided test."""
POWER = 0.8
_CACHED = 1 << 16


def mcnemar(lost: int, gained: int) -> float:
    """Return the exact one-sided p value of so many losses or more among all answers that
    differ.
    """
    return binomial_tail(lost, lost + gained, 0.5)


def sign_flips(losses: Sequence[int]) -> float:
    """Return the exact one-sided p value of what the prefixes lost net, each being as likely to
    have gained as much.

    Right however strongly the answers behind one prefix hang together, as long as those of
    different prefixes do not.
    """
    return _sign_flips(tuple(sorted(abs(loss) for loss in losses if loss)), sum(losses))


@lru_cache(_CACHED)
def _sign_flips(sizes: tuple[int, ...], total: int) -> float:
    ways = {0: 1}
    for size in sizes:
        flipped: dict[int, int] = {}
        for reached, count in ways.items():
            for sign in (size, -size):
                flipped[reached + sign] = flipped.get(reached + sign, 0) + count
        ways = flipped
    return sum(count for reached, count in ways.items() if reached >= total) / (1 << len(sizes))


def clustered_lower(losses: Sequence[int], questions: Sequence[int], alpha: float = ALPHA) -> float:
    """Return the lower end of the one-sided interval of the mean change of a question, prefixes
    being what varies.

    The variance is that of a ratio between clusters, with Student's t for so many prefixes less
    one; there must be two.
    """
    count = len(losses)
    n = sum(questions)
    mean = sum(losses) / n
    spread = sum((loss - mean * size) ** 2 for loss, size in zip(losses, questions, strict=True))
    return -mean - student(count - 1, alpha) * math.sqrt(spread * count / (count - 1)) / n


@lru_cache(_CACHED)
def tango_lower(lost: int, gained: int, n: int, alpha: float = ALPHA) -> float:
    """Return the lower end of Tango's one-sided interval of the difference (gained - lost) / n.

    With 1 - alpha confidence the true difference is above it. Raises ValueError if n is smaller
    than the counts.
    """
    if lost < 0 or gained < 0 or n < max(1, lost + gained):
        raise ValueError(f"{lost} lost and {gained} gained of {n} questions")
    if lost == n:
        return -1.0
    from scipy.optimize import bisect

    # Halving, since the statistic is infinite at -1, where methods that interpolate fail.
    return float(
        bisect(
            lambda difference: _tango(lost, gained, n, difference) - _z(alpha),
            -1.0,
            (gained - lost) / n,
        )
    )


def mde(n: int, discordance: float, alpha: float = ALPHA, power: float = POWER) -> float | None:
    """Return the smallest true loss that n questions show with this power if a share `discordance`
    of the answers differs.

    None if none is: even if every differing answer were a loss, the power would be less.
    """

    def shown(loss: float) -> float:
        """Return by how many standard errors a loss is more than what shows (Connor's formula)."""
        chance = math.sqrt(discordance)
        missed = math.sqrt(max(0.0, discordance - loss**2))
        return loss * math.sqrt(n) - _z(alpha) * chance - _z(1 - power) * missed

    if discordance <= 0 or shown(discordance) < 0:
        return None
    from scipy.optimize import bisect

    return float(bisect(shown, 0.0, discordance))


def n_for_margin(
    discordance: float, margin: float, alpha: float = ALPHA, power: float = POWER
) -> int:
    """Return how many questions show with this power that less than `margin` is lost, if in
    truth nothing is.
    """
    return math.ceil((_z(alpha) + _z(1 - power)) ** 2 * discordance / margin**2)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p values, in the order given: those of at most alpha stay
    significant among all the others.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def _tango(lost: int, gained: int, n: int, difference: float) -> float:
    """Return the score statistic of a true difference; `rate` is the most likely rate of losses
    under it.
    """
    a = 2 * n
    b = (2 * n - gained + lost) * difference - (gained + lost)
    c = -lost * difference * (1 - difference)
    rate = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
    variance = n * (2 * rate + difference * (1 - difference))
    distance = gained - lost - n * difference
    return (
        distance / math.sqrt(variance)
        if variance > 0
        else math.copysign(math.inf, distance)
        if distance
        else 0.0
    )


def _z(alpha: float) -> float:
    return NormalDist().inv_cdf(1 - alpha)
