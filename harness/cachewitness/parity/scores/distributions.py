"""Tails and quantiles of the binomial and of Student's distribution, as scipy computes them.

scipy comes with the extra `score`, so it is imported when something is computed: reports are read
without it.
"""

from __future__ import annotations

from functools import lru_cache

_CACHED = 1 << 16


@lru_cache(_CACHED)
def binomial_tail(at_least: int, n: int, chance: float) -> float:
    """Return the probability of `at_least` successes or more in n trials."""
    from scipy.stats import binom

    return float(binom.sf(at_least - 1, n, chance))


@lru_cache(_CACHED)
def binomial_most(n: int, chance: float, beta: float) -> int:
    """Return the number of successes that n trials exceed with probability `beta` at most."""
    from scipy.stats import binom

    return int(binom.isf(beta, n, chance))


@lru_cache(_CACHED)
def binomial_upper(successes: int, n: int, alpha: float) -> float:
    """Return the upper end of the exact one-sided interval (Clopper and Pearson, Biometrika 26
    (1934) 404-413) of a share of which so many of n were seen.
    """
    from scipy.stats import beta

    return float(beta.isf(alpha, successes + 1, n - successes)) if successes < n else 1.0


@lru_cache(_CACHED)
def student(degrees: int, alpha: float) -> float:
    """Return what Student's t with so many degrees of freedom exceeds with probability `alpha`."""
    from scipy.stats import t

    return float(t.isf(alpha, degrees))
