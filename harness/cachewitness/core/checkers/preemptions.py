"""Preemptions for nothing: a request loses its place, and nobody gains room by it.

Every answer is right, and what the request had computed is computed again. A preemption gives room
only if a page that nobody else holds is free when it is over. Pages that a step in flight, or a
copy, still needs come back later, so a scheduler that goes on to the next victim empties its queue
in one step and has nothing for it. And room is given for nothing where everybody who lives would
have had it anyway. Who is to be preempted is the engine's own affair.
"""

from __future__ import annotations

from cachewitness.core.checkers.finding import Finding
from cachewitness.core.checkers.protocol import Found
from cachewitness.core.checkers.wording import count
from cachewitness.core.events import Copy, Preempted, Release, StepBegin
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.page_bound import pages_of

VAIN = "vain-preemption"


class Preemptions:
    """Follows whom the engine preempts, until the next step begins."""

    def __init__(self) -> None:
        self._victims: dict[str, set[tuple[int, int]]] = {}
        """Who was preempted since the last step began, and of which no page is free since; by pool
        and page, what it held alone."""
        self._lost: set[str] = set()
        """Who holds pages that a load from another tier did not fill, and so begins anew."""

    def failed(self, ledger: Ledger, event: Copy) -> None:
        """Take note of whom a copy that failed was for."""
        for move in event.moves:
            self._lost.update(ledger.records[move.dst_pool][move.dst].holders)

    def preempted(self, ledger: Ledger, event: Preempted) -> Found:
        """Take note of what the victim holds alone, and judge whether anybody lacked room.

        Pages that were given back before the preemption was reported cannot be told from those
        that were free, so nothing is judged of such a victim.
        """
        if event.r in self._lost or not event.by_engine:
            self._lost.discard(event.r)
            return None
        if not ledger.holdings.pages_of.get(event.r, 0):
            return None
        if held := _held_alone(ledger, event.r):
            self._victims[event.r] = held
        if not _everybody_has_room(ledger):
            return None
        return (
            _vain(
                event.r,
                "has room beside all other requests that live, with all of their tokens",
                f"request {event.r} was preempted; the pools hold all requests at once",
            ),
        )

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
        return tuple(
            _vain(
                r,
                f"held {count(len(held), 'page')} alone, of which none is free before step"
                f" {event.step} begins",
                f"request {r} was preempted; of its {count(len(held), 'page')} none was free before"
                f" step {event.step}",
            )
            for r, held in victims.items()
        )


def _held_alone(ledger: Ledger, r: str) -> set[tuple[int, int]]:
    return {
        (pool, page)
        for pool in {group.pool for group in ledger.local}
        for page, record in ledger.records[pool].items()
        if record.holders.keys() == {r}
    }


def _everybody_has_room(ledger: Ledger) -> bool:
    """Whether the pools hold all live requests at once beyond doubt, beside what copies hold and
    with a block of each group to spare for each step in flight.
    """
    rules = ledger.header.rules
    return all(
        records.grows
        or sum(
            pages_of(groups, len(request.tokens), rules.drafts)
            for request in ledger.requests.live.values()
        )
        + rules.reserved_pages
        + len(groups) * len(ledger.open_steps)
        + sum(bool(record.holders.keys() - ledger.requests.live) for record in records.values())
        <= records.capacity
        for pool, records in ledger.records.items()
        if (groups := [group for group in ledger.local if group.pool == pool])
    )


def _vain(r: str, what: str, line: str) -> Finding:
    sentence = f"Let {r}, which the engine preempted, be a request that {what}: a contradiction."
    return Finding(anomaly=VAIN, r=r, sentence=sentence, line=line)
