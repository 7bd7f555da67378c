"""Memory follows the pages that are touched, not the pool that is declared."""

from __future__ import annotations

import tracemalloc

import pytest

from cachewitness.core.checkers import fresh
from cachewitness.core.checkers.protocol import CheckerSet
from cachewitness.core.events import (
    Acquire,
    Counts,
    Group,
    Header,
    Pool,
    Publish,
    Rules,
    Run,
    StepBegin,
    StepEnd,
    Submitted,
    Write,
)
from cachewitness.core.ledger.records import PageRecord, PoolRecords
from suites.support.ledger_histories import FULL, R1, ledger_after

PAGES = 1_000_000
USED = 200
MEBIBYTES_MAX = 4


def test_a_pool_of_a_million_pages_takes_the_memory_of_those_that_are_used() -> None:
    """A request of 200 blocks under all checkers; a record for every page would take hundreds of
    mebibytes.
    """
    header = Header(
        "test", "manager", [Pool(0, PAGES, [0])], [Group(0, "full", 16)], rules=Rules(alignment=16)
    )
    table = list(range(PAGES - USED, PAGES))
    run = Run("r", 0, USED * 16, [table])
    tracemalloc.start()
    panel = CheckerSet(header, fresh())
    keys = [
        Publish(group=0, page=page, r="r", length=16 * (number + 1), step=1)
        for number, page in enumerate(table)
    ]
    for event in (
        Submitted(r="r", tokens=[7] * USED * 16),
        Acquire(pool=0, group=0, pages=table, holder="r"),
        *keys,
        StepBegin(step=1, runs=[run], asked=[("r", USED * 16)]),
        Write(pool=0, group=0, pages=table, r="r", start=0, stop=USED * 16, step=1),
        StepEnd(step=1),
        Counts(pool=0, free=PAGES - 1 - USED, held=USED, cached=0, step=1),
    ):
        assert not panel.observe(event)
    assert not panel.close()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MEBIBYTES_MAX << 20
    assert len(panel.ledger.records[0]) == USED
    assert not any(tally.crashed for tally in panel.tallies.values())


def test_a_page_that_nobody_touched_is_as_every_page_was_at_first() -> None:
    """Asking for its record makes one without content, holder or key."""
    ledger = ledger_after(FULL + R1)
    assert sorted(ledger.records[0]) == [1, 2]
    record = ledger.record(0, 7)
    assert record is not None and record is ledger.records[0][7]
    assert (record.node, record.holders, record.keys) == (PageRecord().node, {}, [])


def test_null_pages_and_pages_that_do_not_exist_have_no_usable_record() -> None:
    """A null page can be held, but never holds anything; beyond the pool there is nothing at
    all.
    """
    records = PoolRecords(Pool(0, 3, [0]))
    assert [records.find(page) is None for page in (-1, 0, 1, 2, 3)] == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert records[0] is records[0] and 0 not in records.usable and records.capacity == 2
    for page in (-1, 3):
        with pytest.raises(IndexError, match="of a pool of 3 pages"):
            records[page]
