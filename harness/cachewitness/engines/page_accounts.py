"""How keys and counts of a cache changed in one call, around the pages that were taken and given
back in it.

Both classes keep what was reported last. `WholeAccounts` asks for every key and for the cache's own
counts after each call; `DirtyAccounts` looks at the pages that may have changed and counts for
itself, so its work does not grow with the pool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from cachewitness.core.events import (
    Acquire,
    Counts,
    Event,
    Publish,
    Release,
    Unpublish,
    UnpublishReason,
)
from cachewitness.core.intake import BadEvents
from cachewitness.engines.cache_state import (
    CacheState,
    Claim,
    Count,
    DirtyCacheState,
    KeyId,
    KeysByEntry,
    Tables,
)

Call = tuple[int, str, UnpublishReason]
"""The call that has just returned: its step, whom keys are published for, why keys ended in it."""


Keys = Mapping[KeyId, Claim] | KeysByEntry


def _beyond(
    some: Mapping[KeyId, Claim], others: Mapping[KeyId, Claim]
) -> Iterator[tuple[KeyId, Claim]]:
    """Yield what some keys claim and others do not; a claim that is one object on both sides is
    not looked into.
    """
    for key, claim in some.items():
        other = others.get(key)
        if other is not claim and other != claim:
            yield key, claim


class WholeAccounts:
    """Compares everything. `pools` is the pool of each group, `sizes` are the pages of each pool
    where they are known. What an adapter shows that cannot be is a BadEvents in words of its calls.
    """

    def __init__(
        self, state: CacheState, pools: Sequence[int], sizes: Mapping[int, int] | None = None
    ) -> None:
        self._state = state
        self._pools = pools
        self._sizes = {} if sizes is None else sizes
        self._keys = state.keys()
        self._times = (
            Counter(chain.from_iterable(self._keys.values()))
            if isinstance(self._keys, KeysByEntry)
            else Counter()
        )
        """In how many entries a key is, of a cache that shows its keys by entry."""
        self._counts: dict[int, Count] = dict(state.counts())
        self._ended: list[Event] = []
        self._begun: list[Publish] = []

    def compare_keys(self, call: Call, tables: Iterable[Tables]) -> None:
        """Note which keys ended and which began; `tables` are those from before the call."""
        step, served, reason = call
        self._ended = []
        self._begun = []
        now = self._state.keys()
        before = self._keys
        if now is before or now == before:
            return
        lost, come = self._between(before, now)
        for key, claim in come.items():
            self._check_key(key, claim, served)
        held = self._pages_held(lost, tables) if reason == "evict" else set()
        for (group, page, _), claim in lost.items():
            why: UnpublishReason = "replace" if (self._pools[group], page) in held else reason
            self._ended.append(
                Unpublish(step=step, group=group, page=page, length=claim.length, reason=why)
            )
        self._begun = [
            _publish(step, served, group, page, claim) for (group, page, _), claim in come.items()
        ]
        self._begun.sort(key=lambda event: (event.group, event.length, event.page))
        self._keys = now

    def _check_key(self, key: KeyId, claim: Claim, served: str) -> None:
        group, page, _ = key
        if not 0 <= group < len(self._pools):
            raise BadEvents(
                f"keys() has a key of group {group}; the header declares groups 0 to"
                f" {len(self._pools) - 1}"
            )
        size = self._sizes.get(self._pools[group])
        if size is not None and not 0 <= page < size:
            raise BadEvents(
                f"keys() has a key of page {page} in group {group}; pool {self._pools[group]} has"
                f" pages 0 to {size - 1}"
            )
        if not (claim.r or served):
            raise BadEvents(
                f"keys() has a new key of page {page} in group {group}, and nobody is named whose"
                " tokens it is of; name the request by settle(served=r), or in Claim(length, r)"
            )

    def _between(self, before: Keys, now: Keys) -> tuple[dict[KeyId, Claim], dict[KeyId, Claim]]:
        """Return the keys that ended and those that began."""
        if isinstance(before, KeysByEntry) and isinstance(now, KeysByEntry):
            return self._between_entries(before, now)
        assert not isinstance(before, KeysByEntry) and not isinstance(now, KeysByEntry), (
            "a cache shows its keys in one way"
        )
        return dict(_beyond(before, now)), dict(_beyond(now, before))

    def _between_entries(
        self, before: KeysByEntry, now: KeysByEntry
    ) -> tuple[dict[KeyId, Claim], dict[KeyId, Claim]]:
        changed: dict[KeyId, Claim] = {}
        was: dict[KeyId, int] = {}
        for entries, others, change in ((before, now, -1), (now, before, 1)):
            for claims in [claims for entry, claims in entries.items() if entry not in others]:
                changed.update(claims)
                for key in claims:
                    was.setdefault(key, self._times[key])
                    self._times[key] += change
        lost = {key: claim for key, claim in changed.items() if was[key] and not self._times[key]}
        come = {key: claim for key, claim in changed.items() if self._times[key] and not was[key]}
        for key in lost:
            del self._times[key]
        return lost, come

    def around(self, call: Call, moves: list[Event], touched: list[tuple[int, int]]) -> list[Event]:
        """Return the moves of the call between the keys that ended and those that began, then the
        counts that changed.

        A page that was keyed and given back in one call was keyed first: what nobody holds and no
        key names has no content any more. `touched` are the pages, with their pools, that joined or
        left a table.
        """
        left = _given_back(moves)
        early = [event for event in self._begun if (self._pools[event.group], event.page) in left]
        late = [event for event in self._begun if event not in early] if early else self._begun
        events = [*self._ended, *early, *moves, *late]
        now = self._state.counts()
        for pool, count in now.items():
            if self._sizes and pool not in self._sizes:
                raise BadEvents(
                    f"counts() has pool {pool}; the header declares {sorted(self._sizes)}"
                )
            refs = self._references(pool, touched)
            if count != self._counts.get(pool) or refs:
                events.append(Counts(step=call[0], pool=pool, refs=refs, **count._asdict()))
        self._counts = dict(now)
        return events

    def _references(self, pool: int, touched: list[tuple[int, int]]) -> list[tuple[int, int]]:
        counted = [
            (page, self._state.references(pool, page))
            for place, page in sorted(set(touched))
            if place == pool
        ]
        return [(page, count) for page, count in counted if count is not None]

    def _pages_held(self, keys: Iterable[KeyId], tables: Iterable[Tables]) -> set[tuple[int, int]]:
        """Return those of the keys' pages, with their pools, that were in somebody's table
        before this call.
        """
        asked = {(self._pools[group], page) for group, page, _ in keys}
        if not asked:
            return asked
        return {
            place
            for rows in tables
            for pool, row in zip(self._pools, rows, strict=False)
            for page in row
            if (place := (pool, page)) in asked
        }


def _given_back(moves: list[Event]) -> set[tuple[int, int]]:
    """Return the pages, with their pools, that were given back and that nobody took after that."""
    left: set[tuple[int, int]] = set()
    for move in moves:
        if isinstance(move, Release):
            left.update((move.pool, page) for page in move.pages)
        elif isinstance(move, Acquire):
            left.difference_update((move.pool, page) for page in move.pages)
    return left


class DirtyAccounts:
    """Compares the pages that may have changed, all of one pool. `null` are the pages that nobody
    owns.

    What was keyed and then left in the same call (blocks that drafts filled) is published before
    the moves.
    """

    def __init__(self, state: DirtyCacheState, pool: int, null: Container[int]) -> None:
        self._state = state
        self._pool = pool
        self._null = null
        self._refs = [references for _, references, _, _ in state.look(None)]
        self._keys = [key for _, _, key, _ in state.look(None)]
        self._claims: dict[int, Mapping[Hashable, Claim]] = {}
        self._pages_held = self._cached = 0

    def compare_keys(self, call: Call, tables: Iterable[Tables]) -> None:
        """Do nothing: `around` compares the keys of the pages that may have changed."""

    def around(self, call: Call, moves: list[Event], touched: list[tuple[int, int]]) -> list[Event]:
        """Return the moves of the call between the keys that ended and those that began, then
        the counts that changed.
        """
        looked_at = self._state.look(touched)
        if not looked_at:
            return moves
        events: list[Event] = []
        refs: list[tuple[int, int]] = []
        begun: list[Publish] = []
        taken: set[int] | None = None
        counted = False
        step, served, reason = call
        all_refs = self._refs
        all_keys = self._keys
        null = self._null
        for page, ref, key, several in looked_at:
            was = all_refs[page]
            had = all_keys[page]
            if several or key != had:
                why = reason
                # A page that was held cannot have been evicted unless the call took it; otherwise
                # its key was replaced in place.
                if why == "evict" and was > 0:
                    taken = _taken_by(served, moves) if taken is None else taken
                    why = "evict" if page in taken else "replace"
                begun += self._rekey(
                    step, served, page, why, events, gone=key is None and not several
                )
                all_keys[page] = key
            if page in null or (ref == was and (key is None) == (had is None)):
                continue
            counted = True
            self._pages_held += (ref > 0) - (was > 0)
            self._cached += (ref <= 0 and key is not None) - (was <= 0 and had is not None)
            if ref != was:
                all_refs[page] = ref
                refs.append((page, ref))
        # Keys that ended come before the moves and keys that began behind them: a page loses its
        # key before another request gets it.
        events += self._arranged(moves, begun) if begun else moves
        if counted:
            free = self._state.num_free() - self._cached
            events.append(
                Counts(
                    step=step,
                    pool=self._pool,
                    free=free,
                    held=self._pages_held,
                    cached=self._cached,
                    refs=refs,
                )
            )
        return events

    def _rekey(
        self,
        step: int,
        served: str,
        page: int,
        why: UnpublishReason,
        ended: list[Event],
        *,
        gone: bool,
    ) -> Iterable[Publish]:
        """Add the keys that a page lost to `ended`, and return what it gained; `gone`: it has no
        key any more.
        """
        group_of = self._state.group_of
        old = self._claims.pop(page, _NO_CLAIMS)
        new = _NO_CLAIMS if gone else self._state.keys_of(page, old)
        for key, claim in old.items():
            if not _same(new.get(key), claim):
                ended.append(
                    Unpublish(
                        step=step, group=group_of(key), page=page, length=claim.length, reason=why
                    )
                )
        if not new:
            return ()
        self._claims[page] = new
        return [
            _publish(step, served, group_of(key), page, claim)
            for key, claim in new.items()
            if not _same(old.get(key), claim)
        ]

    def _arranged(self, moves: list[Event], begun: list[Publish]) -> list[Event]:
        left: list[Event] = []
        kept: list[Event] = []
        for event in sorted(begun, key=_by_group_and_length):
            nobodys = event.page not in self._null and self._refs[event.page] <= 0
            (left if nobodys else kept).append(event)
        return [*left, *moves, *kept]


_NO_CLAIMS: Mapping[Hashable, Claim] = {}


def _same(one: Claim | None, other: Claim) -> bool:
    """Whether a key covers as many tokens, in the same pages, as another one of its page."""
    return one is not None and one.length == other.length and one.extra_pages == other.extra_pages


def _publish(step: int, served: str, group: int, page: int, claim: Claim) -> Publish:
    length, r, extra_pages = claim
    return Publish(
        step=step,
        group=group,
        page=page,
        r=r or served,
        length=length,
        extra_pages=list(extra_pages),
    )


def _by_group_and_length(event: Publish) -> tuple[int, int]:
    return event.group, event.length


def _taken_by(r: str, moves: list[Event]) -> set[int]:
    """Return the pages that the request itself took: what it held before and took again went
    through the free queue.
    """
    return {
        page
        for move in moves
        if isinstance(move, Acquire) and move.holder == r
        for page in move.pages
    }
