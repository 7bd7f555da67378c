"""Victims: who goes first, by the order that an engine declares, as far as the ledger knows of last
uses.

The ledger knows when a page was taken, keyed, hit and given back, but not what else an engine
counts as a use. So a page has two times: by the first it was certainly used, after the second it
certainly was not. A page is the wrong victim only if another was certainly not used after the
victim certainly was; then that other one was to go first, whatever the engine counts.

Times are numbers of operations. What happens in one operation is of one time, so there the order is
free, save that of full attention a longer prefix goes before a shorter one, which it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from cachewitness.core.events import Eviction, Order
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.records import Key, PageRecord


class Times(msgspec.Struct, gc=False):
    """The operations in which a page was used last, as in `PageRecord`."""

    taken: int
    restored: int
    released: int
    keyed: int
    asked_for: int


class LastUse(NamedTuple):
    """Who gave a page back last (empty: nobody did yet, it was keyed), and in which step."""

    by: str
    step: int

    @property
    def description(self) -> str:
        """The use in words."""
        return f"given back by {self.by} in step {self.step}" if self.by else self.short

    @property
    def short(self) -> str:
        """The use in the words of a line."""
        return f"{self.by}, step {self.step}" if self.by else f"used in step {self.step}"


NOBODY: frozenset[str] = frozenset()


class Ended(msgspec.Struct, eq=False):
    """A key that ended in an operation, and how its page stood before: its holders, its uses,
    and the steps since the last.
    """

    key: Key
    pool: int
    record: PageRecord
    holders: frozenset[str]
    times: Times
    unused: int
    last_use: LastUse

    @staticmethod
    def of(key: Key, pool: int, record: PageRecord, step: int) -> Ended:
        """Return what is to be known of a key that is about to end in a step."""
        times = Times(
            record.taken,
            record.restored,
            record.released,
            record.keyed,
            record.asked_for,
        )
        holders = frozenset(record.holders) if record.holders else NOBODY
        return Ended(key, pool, record, holders, times, step - record.used_in, last_use(record))


def last_use(record: PageRecord) -> LastUse:
    """Return when a page was used last, as far as the ledger knows, and by whom."""
    return LastUse(record.released_by, record.released_in if record.released_by else record.used_in)


def _used(times: Times | PageRecord) -> int:
    return max(times.taken, times.restored, times.keyed)


def _perhaps_used(times: Times | PageRecord) -> int:
    return max(times.taken, times.restored, times.keyed, times.released, times.asked_for)


TIMES: dict[
    Order, tuple[Callable[[Times | PageRecord], int], Callable[[Times | PageRecord], int]]
] = {
    "lru": (lambda times: times.released, lambda times: times.released),
    "lru-used": (_used, _perhaps_used),
    "lru-leaves": (_used, _perhaps_used),
    "lru-restored": (lambda times: times.restored, lambda times: times.taken),
}
"""By order: by when a page was certainly used, and after when it certainly was not. In the order
`random` nobody is wrong.
"""


def spared_instead(
    ledger: Ledger, pool: int, eviction: Eviction, victims: list[Ended]
) -> tuple[Ended, int, str] | None:
    """Return a victim, a page of the pool that was to go before it and stayed, and why; None if
    there is no such pair.

    `victims` are keys over pages that nobody held when the operation began. If keys go together,
    who went first is the oldest.
    """
    order = eviction.order
    idle = ledger.holdings.idle[pool]
    if not victims or not idle or order == "random":
        return None
    certain, possible = TIMES[order]
    # The victim that was used last is the hardest to defend. Keys that go together have one
    # decision, that of the oldest; the others followed it.
    worst = (min if eviction.together else max)(victims, key=lambda one: certain(one.times))
    latest = certain(worst.times)
    for page, record in _older(idle, latest, possible, in_order=order == "lru"):
        # A page without a usable key is no candidate; one that a live request begins with may have
        # been used by a look-up that nobody reports.
        if any(key.usable for key in record.keys) and not (
            order != "lru" and _asked_for(ledger, record)
        ):
            return (
                worst,
                page,
                "was certainly not used after the other one was",
            )
    # In `lru` pages let go in one operation are of one age. vLLM gives a request's blocks back from
    # the end of its table, so the longer prefix is queued first.
    if order == "lru":
        together = [
            one for one in victims if one.times.released == latest and _by_request(one.record)
        ]
        if not any(ledger.groups[one.key.group].kind == "full" for one in together):
            return None
        tied = {
            page: r for page, r in _upto(idle, latest) if r.released == latest and _by_request(r)
        }
        return _longer_stays(ledger, together, tied)
    return _longer_stays(ledger, victims, ledger.records[pool]) if order == "lru-leaves" else None


def _older(
    idle: dict[int, PageRecord],
    latest: int,
    possible: Callable[[PageRecord], int],
    *,
    in_order: bool,
) -> Iterator[tuple[int, PageRecord]]:
    """Yield the idle pages that were not used any more by then. `in_order`: they stand in the
    order of that time.
    """
    for page, record in idle.items():
        if possible(record) < latest:
            yield page, record
        elif in_order:
            return


def _upto(idle: dict[int, PageRecord], latest: int) -> Iterator[tuple[int, PageRecord]]:
    for page, record in idle.items():
        if record.released > latest:
            return
        yield page, record


def _by_request(record: PageRecord) -> bool:
    """Whether a request let the page go, its table from the end on; copies that are over give
    theirs back as it comes.
    """
    return ":" not in record.released_by


def _asked_for(ledger: Ledger, record: PageRecord) -> bool:
    """Whether a request that is live begins with what the page is kept for: a look-up may have
    counted as a use.
    """
    return any(_begins_with(record, request.nodes) for request in ledger.requests.live.values())


def waiting_for(ledger: Ledger, record: PageRecord) -> str:
    """Return a request that has no pages and begins with what the page is kept for; empty if there
    is none.
    """
    return next(
        (
            request.r
            for request in ledger.requests.live.values()
            if not ledger.holdings.pages_of.get(request.r) and _begins_with(record, request.nodes)
        ),
        "",
    )


def _begins_with(record: PageRecord, nodes: list[int]) -> bool:
    return any(key.length < len(nodes) and nodes[key.length] == key.node for key in record.keys)


def _longer_stays(
    ledger: Ledger, victims: Iterable[Ended], others: dict[int, PageRecord]
) -> tuple[Ended, int, str] | None:
    """Return a victim and a page that keeps a longer prefix, which nobody can hit without the
    victim: full attention alone.
    """
    parent = ledger.trie.parent
    depth = ledger.trie.depth
    full = [one for one in victims if ledger.groups[one.key.group].kind == "full"]
    # Nothing shorter than the shortest victim can be needed by a page that stays, so neither keys
    # nor the walk towards the root go below it.
    shortest = min((one.key.length for one in full), default=0)
    gone: dict[int, dict[int, Ended]] = {one.key.group: {} for one in full}
    for one in full:
        gone[one.key.group][one.key.node] = one
    seen: dict[int, set[int]] = {group: set() for group in gone}
    for page, record in others.items() if gone else ():
        for key in record.keys:
            if key.length <= shortest or key.group not in gone or not key.usable or key.node < 0:
                continue
            ended = gone[key.group]
            passed = seen[key.group]
            node = parent[key.node]
            # `passed` keeps the walk linear: pages of one long prompt share their way to the root.
            while node >= 0 and depth[node] >= shortest and node not in passed:
                if node in ended:
                    return ended[node], page, "keeps a longer prefix, which goes first"
                passed.add(node)
                node = parent[node]
    return None
