"""Room in a pool: which pages were free all the while that an operation took, and which keys no
room was made for.
"""

from __future__ import annotations

from collections import Counter

from cachewitness.core.events import Acquire, Preempted, Unpublish
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.records import PageRecord


class Shortage:
    """Whether the operation at hand asks for more pages of some pool than were free when it began.

    Who looks at an event has to say so before the ledger goes on.
    """

    def __init__(self) -> None:
        self._runs = 0
        self._operation = -1
        self._free = dict[int, int]()
        self._taken = Counter[int]()
        self._preempts = False

    def begins(self, ledger: Ledger) -> None:
        """Note what is free, if that was not done in this operation."""
        if self._operation == ledger.holdings.operation:
            return
        self._operation = ledger.holdings.operation
        self._taken.clear()
        self._preempts = False
        self._runs = 0
        for pool in ledger.header.pools:
            self._free[pool.id] = free_pages(ledger, pool.id)

    def take(self, ledger: Ledger, event: Acquire) -> None:
        """Note what is taken."""
        self.begins(ledger)
        self._taken[event.pool] += len(event.pages)

    def run(self, ledger: Ledger, requests: int) -> None:
        """Note how many requests it runs."""
        self.begins(ledger)
        self._runs = requests

    def preempt(self, ledger: Ledger, event: Preempted) -> None:
        """Note that a request loses its place, for whom room may be made that nobody takes yet."""
        self.begins(ledger)
        self._preempts = True

    def short(self, ledger: Ledger) -> bool:
        """Whether it asked for more than was free, of a pool that says what is asked beyond what
        is taken.
        """
        return self._preempts or any(
            self._taken[pool.id] + pool.eviction.asks * (self._runs + 1) > self._free[pool.id]
            for pool in ledger.header.pools
            if pool.eviction is not None
        )


def free_pages(ledger: Ledger, pool: int) -> int:
    """Return how many pages there are that nobody holds and no key names."""
    kept = ledger.holdings.held[pool] + len(ledger.holdings.idle[pool])
    return ledger.records[pool].capacity - kept


def any_free(ledger: Ledger, pool: int) -> bool:
    """Whether there is a page that nobody holds and no key names."""
    return free_pages(ledger, pool) > 0


def spare_pages(ledger: Ledger, pool: int) -> list[int]:
    """Return the pages that nobody held and no key named, from before the operation that is over
    to its end.
    """
    records = ledger.records[pool]
    holdings = ledger.holdings
    if not any_free(ledger, pool):
        return []
    before = records.pages_before(holdings.operation)
    untouched = [page for page in range(before) if page not in records and page not in records.null]
    return untouched + [
        page for page, record in records.usable.items() if _free_before(record, holdings.operation)
    ]


def goes_with_its_step(event: Unpublish, record: PageRecord) -> bool:
    """Whether a key is withdrawn with a page that was taken or keyed for the step that does not
    run.

    The page may have had that very key before: evicted and keyed anew in one call, it looks as if
    it had stayed.
    """
    return event.reason == "withdraw" and record.used_in >= event.step


def _free_before(record: PageRecord, operation: int) -> bool:
    return not record.holders and not record.keys and record.released < operation
