"""Preemptions for nothing: a request loses its place, and nobody gains room by it.

Every answer is right, and what the request had computed is computed again. A preemption gives room
only if a page that nobody else holds is free when it is over. Pages that a step in flight, or a
copy, still needs come back later, so a scheduler that goes on to the next victim empties its queue
in one step and has nothing for it. Who is to be preempted, and whether anybody must be, is the
engine's own affair.
"""

from __future__ import annotations

from collections.abc import Collection

from cachewitness.core.checkers.finding import Finding
from cachewitness.core.checkers.wording import count
from cachewitness.core.events import Preempted, Release, StepBegin
from cachewitness.core.ledger.ledger import Ledger

VAIN = "vain-preemption"


class Preemptions:
    """Follows whom the engine preempts, until the next step begins."""

    def __init__(self) -> None:
        self._victims: dict[str, set[tuple[int, int]]] = {}
        """Who was preempted since the last step began, and of which no page is free since; by pool
        and page, what it held alone."""
        self._lost: set[str] = set()
        """Who holds pages that a load from another tier did not fill, and so begins anew."""

    def failed(self, lost: Collection[str]) -> None:
        """Take note of whom a copy that failed was for."""
        self._lost.update(lost)

    def preempted(self, ledger: Ledger, event: Preempted) -> None:
        """Take note of what the victim holds alone; who has given its pages back already holds
        none.
        """
        lost = event.r in self._lost
        self._lost.discard(event.r)
        if lost or not event.by_engine:
            return
        if held := _held_alone(ledger, event.r):
            self._victims[event.r] = held

    def released(self, ledger: Ledger, event: Release) -> None:
        """Forget a victim of whom a page becomes free by this."""
        if not self._victims:
            return
        records = ledger.records[event.pool]
        free = {
            (event.pool, page)
            for page in event.pages
            if page in records and records[page].holders == {event.holder: 1}
        }
        for r in [r for r, held in self._victims.items() if held & free]:
            del self._victims[r]

    def began(self, event: StepBegin) -> tuple[Finding, ...]:
        """Judge whether the victims gave anything back since they were preempted."""
        victims, self._victims = self._victims, {}
        return tuple(_vain(r, len(held), event.step) for r, held in victims.items())


def _held_alone(ledger: Ledger, r: str) -> set[tuple[int, int]]:
    return {
        (pool, page)
        for pool in {group.pool for group in ledger.local}
        for page, record in ledger.records[pool].items()
        if record.holders.keys() == {r}
    }


def _vain(r: str, held: int, step: int) -> Finding:
    sentence = (
        f"Let {r}, which the engine preempted, be a request that held {count(held, 'page')} alone,"
        f" of which none is free before step {step} begins: a contradiction."
    )
    line = (
        f"request {r} was preempted; of its {count(held, 'page')} none was free before step {step}"
    )
    return Finding(anomaly=VAIN, r=r, sentence=sentence, line=line)
