"""The reference that runs beside an engine and makes the engine's free choices its own.

Which page is called what is nobody's business, so the reference hands out whichever free page it
likes, and this file keeps a table from the engine's pages to the reference's: the k-th page that
the engine took in an operation is the k-th that the reference took. Through this table the
reference is told which cached page the engine evicted where one has to go, and which of several
pages with one key the engine hit. Everything else it decides alone.

A choice that the reference does not have (a page that is not evictable there, one that is no
duplicate there) is not followed; the difference then shows in the keys or the counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest

from cachewitness._util.errors import UsageError
from cachewitness.core.events import (
    Acquire,
    Event,
    Header,
    Hit,
    Publish,
    Release,
    StepBegin,
    Unpublish,
)
from cachewitness.core.trace_format import Op, Trace
from cachewitness.engines import policy as policies
from cachewitness.engines.cache_state import ABSENT
from cachewitness.engines.policy import PolicyKind

Page = tuple[int, int]
"""A pool and a page of it."""


class Follower:
    """The reference of a trace's policy, in the release that the engine says it is; `engine` is how
    it describes itself.

    Raises UsageError if the policy's reference cannot follow, or refuses the trace's configuration
    in that release.
    """

    def __init__(self, trace: Trace, engine: Header) -> None:
        kind = policies.get(trace.header.policy)
        if kind.steer is None:
            raise UsageError(f"the reference of {kind.name} cannot follow an engine's free choices")
        release = release_of(kind, engine.engine_version)
        self.reference = kind.open(trace.header, {"release": release} if release else {})
        self._groups = self.reference.describe().groups
        self._pools = [group.pool for group in self._groups]
        self._aside = {
            group.source_group: group.id for group in self._groups if group.source_group >= 0
        }
        self._ours: dict[Page, int] = {}
        """The reference's page for each of the engine's, where they differ."""
        self._theirs: dict[Page, int] = {}
        self._taken: list[list[Page]] = []
        self._seen = self._paired = 0
        self._given_up: list[Page] = []
        self._hit: dict[str, list[Page]] = {}
        self._named: set[tuple[int, str, int]] = set()
        kind.steer(self.reference, self)

    def follow(self, op: Op, theirs: Sequence[Event]) -> list[Event]:
        """Carry an operation out with the choices that the engine's events tell, and return the
        reference's own events.
        """
        self._taken = [_taken(event) for event in theirs if isinstance(event, Acquire | StepBegin)]
        self._seen = self._paired = 0
        self._hit = {event.r: self._columns(event) for event in theirs if isinstance(event, Hit)}
        self._given_up = [*self._handed_out(theirs), *self._let_go(theirs)]
        self._named = {
            (event.group, event.r, event.length) for event in theirs if isinstance(event, Publish)
        }
        ours = self.reference.apply(op)
        self._pair(ours)
        return ours

    # --- choices ----------------------------------------------------------------------------------

    def free(self, pool: int, pages: Sequence[int]) -> int:
        """Hand out the page that the engine took next among those that are free; the first if it
        took none of them.
        """
        taken = self._next(pool, pages)
        return pages[0] if taken is None else taken

    def victim(self, pool: int, pages: Collection[int]) -> int | None:
        """Return the page that the engine evicted next among those that could go; None if it
        evicted none of them.
        """
        return self._next(pool, pages)

    def _next(self, pool: int, pages: Collection[int]) -> int | None:
        """Return the page among these that the engine took out of the pool next, and strike it
        off.
        """
        self._catch_up()
        for index, (place, page) in enumerate(self._given_up):
            mine = self._ours.get((place, page), page)
            if place == pool and mine in pages:
                del self._given_up[index]
                return mine
        return None

    def duplicate(self, r: str, group: int, pages: Sequence[int]) -> int:
        """Return the page that the engine hit for a request among those with the same key; the
        first if it hit none of them.
        """
        if r not in self._hit:
            return pages[0]
        self._catch_up()
        pool = self._pools[group]
        hit = {self._ours.get(place, place[1]) for place in self._hit[r] if place[0] == pool}
        return next((page for page in pages if page in hit), pages[0])

    def waits(self, r: str) -> bool:
        """Say whether the engine let a request wait in this operation."""
        return r not in self._hit

    def renamed(self, r: str, group: int, length: int) -> bool:
        """Say whether the engine gave the key of this prefix to the page that was computed last."""
        return (group, r, length) in self._named

    # --- which page is which ----------------------------------------------------------------------

    def _handed_out(self, theirs: Sequence[Event]) -> list[Page]:
        """Return the pages that came out of the engine's pools, in order: what was taken and not
        hit, and places of stores.
        """
        out: list[Page] = []
        for event in theirs:
            if isinstance(event, Acquire):
                copying = event.holder.startswith(("copy:", "store:"))
                hit = {
                    place
                    for r in (self._hit if copying else [event.holder])
                    for place in self._hit.get(r, ())
                }
                out += [place for place in _taken(event) if place not in hit]
            elif isinstance(event, StepBegin):
                out += [place for place in _taken(event) if place not in out]
        return out

    def _let_go(self, theirs: Sequence[Event]) -> Iterator[Page]:
        """Yield the pages whose key was evicted, then those that were let go with a key that
        ended before it was seen.
        """
        keyed = set()
        for event in theirs:
            if isinstance(event, Unpublish) and event.reason == "evict":
                yield self._pools[event.group], event.page
            elif isinstance(event, Publish):
                keyed.add((self._pools[event.group], event.page))
        for event in theirs:
            if isinstance(event, Release):
                yield from (
                    (event.pool, page) for page in event.pages if (event.pool, page) not in keyed
                )

    def _columns(self, hit: Hit) -> list[Page]:
        """Return the pages that a hit found on the device; a column that is fetched from another
        tier gets a page anew.
        """
        found = []
        for group, pages in zip(self._groups, hit.pages, strict=False):
            fetched = next(iter(hit.pages[self._aside.get(group.id, len(hit.pages)) :]), [])
            found += [
                (group.pool, page)
                for page, place in zip_longest(pages, fetched, fillvalue=ABSENT)
                if place == ABSENT
            ]
        return found

    def _catch_up(self) -> None:
        """Take note of the pages that the reference has taken so far in the operation under way."""
        self._pair(self.reference.diff.events)  # type: ignore[attr-defined]

    def _pair(self, ours: Sequence[Event]) -> None:
        """Say of each page that the reference took, beginning where the last call ended, which
        of the engine's it is.
        """
        for event in ours[self._seen :]:
            if isinstance(event, Acquire | StepBegin) and self._paired < len(self._taken):
                for (pool, theirs), (place, mine) in zip(
                    self._taken[self._paired], _taken(event), strict=False
                ):
                    if pool == place:
                        self._exchange(pool, theirs, mine)
                self._paired += 1
        self._seen = len(ours)

    def _exchange(self, pool: int, theirs: int, mine: int) -> None:
        """Let the engine's page be this one of the reference; what was its partner before goes
        to who had this one.
        """
        former = self._ours.get((pool, theirs), theirs)
        other = self._theirs.get((pool, mine), mine)
        if former != mine:
            self._ours[pool, theirs] = mine
            self._theirs[pool, mine] = theirs
            self._ours[pool, other] = former
            self._theirs[pool, former] = other


def _taken(event: Acquire | StepBegin) -> list[Page]:
    """Return the pages that were taken; a step says which places of another tier its stores
    took.
    """
    if isinstance(event, Acquire):
        return [(event.pool, page) for page in event.pages]
    return [(move.dst_pool, move.dst) for move in event.stores]


def release_of(kind: PolicyKind, engine_version: str) -> str:
    """Return the release of a policy's system that a version belongs to, exactly or by its first
    two numbers; empty: none.
    """
    short = ".".join(engine_version.split(".")[:2])
    return next((name for name in (engine_version, short) if name in kind.releases), "")
