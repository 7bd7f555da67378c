"""Room in a pool: which pages were free all the while that an operation took, and which keys no
room was made for.
"""

from __future__ import annotations

from cachewitness.core.events import Unpublish
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.records import PageRecord


def any_free(ledger: Ledger, pool: int) -> bool:
    """Whether there is a page that nobody holds and no key names."""
    return ledger.records[pool].capacity > ledger.holdings.held[pool] + len(
        ledger.holdings.idle[pool]
    )


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
