"""Every cause that a finding may have, so that a list of expected failures names no other."""

from __future__ import annotations

from collections.abc import Iterator

from cachewitness.core.checkers.finding import CAUSES
from cachewitness.workloads.avoided import MEANINGS, is_cause

FACTS = (
    *("resets", "hits", "requests-that-lost-their-place-or-ended", "runs"),
    *("columns-that-are-not-null", "pages", "transfers", "tokens-accepted"),
    *("published-keys", "unpublished-keys", "pages-taken"),
)
"""In which fact an engine and the reference differ: the causes of a divergence."""
SINGLE = (*CAUSES, *FACTS)
"""Causes that stand alone; those of answers may be joined by `+`, two by `&`."""


def known(cause: str) -> bool:
    """Whether some finding may have this cause."""
    return cause in SINGLE or is_cause(cause)


def names() -> Iterator[str]:
    """Yield every cause, none of them joined."""
    yield from SINGLE
    yield from MEANINGS
