"""What else took pages in a call is counted like what joined a table."""

from __future__ import annotations

from cachewitness.core.events import Acquire, Counts, Event
from cachewitness.engines.block_table_diff import BlockTableDiff
from cachewitness.engines.cache_state import Claim, Count, KeyId, Tables


class Pinned:
    """A cache of two pages without requests, of which page 1 is held by something else."""

    def __init__(self) -> None:
        self.held = 0

    def tables(self, r: str) -> Tables:
        return []

    def keys(self) -> dict[KeyId, Claim]:
        return {}

    def counts(self) -> dict[int, Count]:
        return {0: Count(2 - self.held, self.held, 0)}

    def references(self, pool: int, page: int) -> int:
        return self.held if page == 1 else 0


def test_references_of_a_page_that_something_else_took_are_told() -> None:
    cache = Pinned()
    diff = BlockTableDiff(cache, [0], {0: []}, {0: 2})
    cache.held = 1
    taken: list[Event] = [Acquire(pool=0, group=0, pages=[1], holder="pin:1")]
    diff.settle(further=lambda: taken)
    assert diff.events == [*taken, Counts(pool=0, free=1, held=1, cached=0, refs=[(1, 1)])]
