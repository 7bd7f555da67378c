"""Which of many configurations a test takes: some of them, and all with CACHEWITNESS_TESTS=all (`ci/stage_all.sh`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")
ALL = os.environ.get("CACHEWITNESS_TESTS") == "all"


def sampled(items: Sequence[Item], every: int = 3, first: int = 0) -> list[Item]:
    """Return every so many of the items, from one of them on; all of them if the tests are asked for all."""
    return list(items) if ALL else list(items[first % min(every, len(items)) :: every])
