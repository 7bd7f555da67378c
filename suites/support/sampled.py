"""Which of many configurations a test takes: some of them, and all with CACHEWITNESS_TESTS=all.

`ci/stage_all.sh` sets it; for what needs torch: `CACHEWITNESS_TESTS=all ci/stage_toy.sh`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

Item = TypeVar("Item")
ALL = os.environ.get("CACHEWITNESS_TESTS") == "all"
STAGE_ALL, STAGE_ALL_TOY = "ci/stage_all.sh", "CACHEWITNESS_TESTS=all ci/stage_toy.sh"


def sampled(items: Sequence[Item], every: int = 3, first: int = 0) -> list[Item]:
    """Return every so many of the items, from one of them on; all of them if the tests are asked
    for all.
    """
    return list(items) if ALL else list(items[first % min(every, len(items)) :: every])


def chosen(items: Sequence[Item], *some: Item) -> list[Item]:
    """Return the items that are named; all of them if the tests are asked for all. A name that
    no item has is refused.
    """
    unknown = [item for item in some if item not in items]
    if unknown:
        raise ValueError(f"not among the items: {unknown}")
    return list(items) if ALL else list(some)


def fewer(every: int, some: int) -> int:
    """Return how many questions or operations a test takes: some, and every one if the tests are
    asked for all.
    """
    return every if ALL else some


def of_all(why: str, *, toy: bool = False) -> pytest.MarkDecorator:
    """Leave a test to the runs that take all; `why` says what tests the same here. The list of
    what was not run shows it.
    """
    return pytest.mark.skipif(not ALL, reason=f"{why}; all: {STAGE_ALL_TOY if toy else STAGE_ALL}")
