"""Who holds a page, how often, and that a page without holder and key is poisoned."""

from __future__ import annotations

import pytest

from cachewitness.core.driving import drive
from cachewitness.core.events import Counts
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.records import NOTHING
from cachewitness.engines import registry
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from suites.support.ledger_histories import FULL, R1, ledger_after


def test_a_page_without_holder_and_key_is_poisoned() -> None:
    """Of two pages given back, the one with a key keeps its content."""
    records = ledger_after(FULL + R1 + "release r1").records[0]
    assert records[2].node == NOTHING
    assert (records[1].node != NOTHING, records[1].stop) == (True, 4)


@pytest.mark.parametrize(
    ("before", "after"), [("release r1", ""), ("", "release r1")], ids=["key last", "holder last"]
)
def test_the_last_of_key_and_holder_poisons(before: str, after: str) -> None:
    """The order in which a page loses its key and its holder does not matter."""
    text = f"{FULL}{R1}{before}\nunpublish 0/1 evict\n"
    held = ledger_after(text)
    assert (held.records[0][1].node == NOTHING) == (not after)
    assert ledger_after(text + after).records[0][1].node == NOTHING


def test_holders_are_counted_with_multiplicity() -> None:
    """A page that a request takes twice is given back after the second drop, and counts once."""
    twice = ledger_after(FULL + "submit r1 a:4\nacquire r1 | 3 3\nrelease r1 | 3")
    assert (twice.records[0][3].holders, twice.holdings.held[0], twice.holdings.pages_of["r1"]) == (
        {"r1": 1},
        1,
        1,
    )
    none = ledger_after(FULL + "submit r1 a:4\nacquire r1 | 3 3\nrelease r1")
    assert (none.records[0][3].holders, none.holdings.held[0], none.holdings.pages_of["r1"]) == (
        {},
        0,
        0,
    )


@pytest.mark.parametrize("name", ["full", "full-mamba", "full-swa-mamba", "full-mamba-unequal"])
def test_counts_are_those_of_a_recount(name: str) -> None:
    """Held pages, and pages kept for a key alone, are at every count what counting all pages
    gives.
    """
    trace = random_trace(Configuration(layouts.load(name)).shape("manager"), 7, withdraw=True)
    history = drive(trace, registry.parse("reference").open(trace.header), []).history
    ledger = Ledger(history.header)
    counts = 0
    for event in history.events:
        ledger.apply(event)
        if isinstance(event, Counts):
            counts += 1
            records = ledger.records[0].values()
            assert ledger.holdings.held[0] == sum(bool(record.holders) for record in records)
            assert len(ledger.holdings.idle[0]) == sum(
                bool(record.keys) and not record.holders for record in records
            )
            assert all(
                record.node == NOTHING
                for record in records
                if not record.holders and not record.keys
            )
    assert counts > 20
