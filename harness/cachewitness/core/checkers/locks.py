"""Pages of another tier that are held by a look-up, a load or a store: they are let go of when
those are over for whom they were taken.

Who looks a prefix up locks what it finds until it has loaded it, and who stores one until it is
there. A request that ends between, or that computes for itself what was found, loads nothing; the
lock that nobody gives back keeps its pages from eviction for good, or until a timeout.

The engine does not say for whom a page of a tier is held. It cannot be for a request that came
later; so once all who had come by then have ended it is held for nobody. A copy may still be under
way, and who made it hear of its end late: as many steps may pass as a request may have to wait for
what copies hold up (`progress_steps`).
"""

from __future__ import annotations

from typing import NamedTuple

from cachewitness.core.checkers.finding import Finding
from cachewitness.core.events import Aborted, Acquire, Finished, Header, Preempted, Release
from cachewitness.core.ledger.ledger import Ledger

LOCKS = "copy:"
"""How those who hold a page of a tier begin whom the engine does not name."""

WAITED = "ended while it waited"
"""What a sentence says of a request that may have asked and never got what it asked for."""

Place = tuple[int, int, str]
"""A pool, a page and who holds it."""


class _Lock(NamedTuple):
    """A page that is held: how many requests had come, and the step in which it was taken."""

    come: int
    step: int


class _Waited(NamedTuple):
    """A request that ended and held no page of the device: the how manieth it was, and when."""

    r: str
    number: int
    step: int


class TierLocks:
    """Who holds pages of other tiers, and since when for nobody."""

    def __init__(self) -> None:
        self._come = 0
        """How many requests have come."""
        self._numbers: dict[str, int] = {}
        """Of the requests that live: the how manieth each is."""
        self._with_pages: set[str] = set()
        """The requests that were given pages and have not lost them again."""
        self._waited: list[_Waited] = []
        self._locks: dict[Place, _Lock] = {}
        """In the order in which they were taken."""
        self._for_nobody: dict[Place, int] = {}
        """How many steps have ended since nobody is left for whom it may be held."""

    def came(self, r: str) -> None:
        """Count a request."""
        self._come += 1
        self._numbers[r] = self._come

    def over(self, event: Finished | Aborted | Preempted) -> None:
        """Forget a request that has ended, or that a preempted one has pages."""
        r = event.r
        if not isinstance(event, Preempted):
            number = self._numbers.pop(r, 0)
            if self._locks and r not in self._with_pages:
                self._waited.append(_Waited(r, number, event.step))
        self._with_pages.discard(r)

    def taken(self, header: Header, event: Acquire) -> None:
        """Take note of a request that has pages, and of pages of another tier that are held from
        now on.
        """
        if not event.holder.startswith(LOCKS):
            self._with_pages.add(event.holder)
        elif _is_of_tier(header, event.pool):
            for page in event.pages:
                self._locks[event.pool, page, event.holder] = _Lock(self._come, event.step)

    def dropped(self, event: Release) -> None:
        """Forget what is not held any more."""
        if event.holder.startswith(LOCKS):
            for page in event.pages:
                self._locks.pop((event.pool, page, event.holder), None)
                self._for_nobody.pop((event.pool, page, event.holder), None)

    def judge(self, ledger: Ledger, steps: int) -> list[Finding]:
        """Return what has been held for nobody in more than so many steps; it is found once."""
        if not self._locks:
            self._waited.clear()
            return []
        oldest = min(self._numbers.values(), default=self._come + 1)
        found = []
        for place, lock in [*self._locks.items()]:
            if lock.come >= oldest:
                break  # those behind it were taken later
            if place[:2] in ledger.contents.filling:
                self._for_nobody.pop(place, None)
                continue
            self._for_nobody[place] = waited = self._for_nobody.get(place, 0) + 1
            if waited > steps:
                found.append(_leak(place, lock, waited, self._who_waited(lock)))
                del self._locks[place], self._for_nobody[place]
        return found

    def _who_waited(self, lock: _Lock) -> str:
        """Return the first request that may have been looked up when a page was taken, and that
        ended while it waited; empty if all of them had pages.
        """
        fitting = (
            one.r for one in self._waited if one.number <= lock.come and one.step >= lock.step
        )
        return next(fitting, "")


def _is_of_tier(header: Header, pool: int) -> bool:
    return any(one.id == pool and one.tier != "local" for one in header.pools)


def _leak(place: Place, lock: _Lock, waited: int, r: str) -> Finding:
    pool, page, _ = place
    who = f"; {r} {WAITED}" if r else ""
    sentence = (
        f"Let page {page} of pool {pool} be held since step {lock.step}. Every request that had"
        f" come by then has ended, {waited} steps ago{who}, and no copy fills it; however it is"
        " still held, and nobody is left to give it back: a contradiction."
    )
    line = f"page {page} of another tier is held {waited} steps behind the end of all who asked"
    return Finding(anomaly="leak", sentence=sentence, line=f"{line}{who}")
