"""Small histories in the notation of tests, and what a ledger says after them."""

from __future__ import annotations

from cachewitness.core.driving import check
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.records import Key
from cachewitness.workloads.notation import parse

FULL = """\
pool 0: 10 pages, null 0
group 0: full block 4
rules: alignment 4
"""
HYBRID = """\
pool 0: 12 pages, null 0
group 0: full block 4
group 1: recurrent block 4
rules: alignment 4
"""
R1 = """\
submit r1 a:8
acquire r1 | 1 2
publish 0/1 r1:4
step 1: r1 0..8 | 1 2
"""
"""r1 computes two blocks in pages 1 and 2, and publishes the first."""


def ledger_after(text: str) -> Ledger:
    """Return the ledger after a history."""
    history = parse(text)
    ledger = Ledger(history.header)
    for event in history.events:
        ledger.apply(event)
    return ledger


def found(text: str) -> list[str]:
    """Return the anomalies that all checkers find in a history."""
    return [finding.anomaly for finding in check(parse(text)).findings]


def keys_of(ledger: Ledger, group: int = 0) -> list[Key]:
    """Return the published keys of a group."""
    return [key for pages in ledger.keys.published[group].values() for key in pages.values()]
