"""Turns what becomes of a connector's memory into events, by comparing its pages with what they
were.

The memory is a pool of its own, with a group for each of the device's. Its keys, its free pages and
how often each page is held are the connector's own books; who holds a page is called a copy here,
whatever the connector holds it for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from cachewitness.core.events import Acquire, Event, Release, UnpublishReason
from cachewitness.engines.cache_state import Claim, Count, KeyId, Tables
from cachewitness.engines.observe_tier import TIER
from cachewitness.engines.page_accounts import WholeAccounts


class Books(NamedTuple):
    """What a connector's memory holds: its keys by (group of the device, page, key), references
    by page, and free pages.
    """

    keys: Mapping[KeyId, Claim]
    references: Mapping[int, int]
    free: int


class Memory(Protocol):
    """A connector's memory."""

    def books(self) -> Books:
        """Return what it holds now."""


class TierState:
    """A connector's memory as the comparison of a cache asks for it; no request has a table
    there.
    """

    def __init__(self, memory: Memory, groups: int) -> None:
        self._memory = memory
        self._groups = groups
        self._keys: dict[KeyId, Claim] = {}
        """A key stays what it was published as."""
        self.look()

    def look(self) -> None:
        """Take down what the memory holds now."""
        keys, self.held, free = self._memory.books()
        named = {
            (self._groups + group, page, key): claim for (group, page, key), claim in keys.items()
        }
        self._keys = {key: self._keys.get(key, claim) for key, claim in named.items()}
        cached = len({page for _, page, _ in keys if not self.held.get(page)})
        self._counts = {TIER: Count(free - cached, len(self.held), cached)}

    def tables(self, r: str) -> Tables:
        """Return nothing: a request holds no page of a connector's."""
        return []

    def keys(self) -> Mapping[KeyId, Claim]:
        """Return every key as of the last look."""
        return self._keys

    def counts(self) -> Mapping[int, Count]:
        """Return the books as of the last look."""
        return self._counts

    def references(self, pool: int, page: int) -> int | None:
        """Return how often a page is held."""
        return self.held.get(page, 0)


class ObservedMemory:
    """The memory of a connector, observed. `groups` is how many groups the device has."""

    def __init__(self, memory: Memory, groups: int) -> None:
        self._state = TierState(memory, groups)
        self._groups = groups
        self._accounts = WholeAccounts(self._state, [0] * groups + [TIER] * groups)
        self._holders: dict[int, list[tuple[str, int]]] = {}
        """Per page: who holds it, and for which group."""
        self._count = 0

    def changes(
        self, step: int, group_of: Callable[[int], int], reason: UnpublishReason = "evict"
    ) -> list[Event]:
        """Return what changed since the last call. `group_of` says for which of the device's
        groups a page is taken.
        """
        before = dict(self._state.held)
        self._state.look()
        call = (step, "", reason)
        self._accounts.compare_keys(call, ())
        moves: list[Event] = []
        touched = sorted({*before, *self._state.held})
        for page in touched:
            moves += self._hold(
                step, page, before.get(page, 0), self._state.held.get(page, 0), group_of
            )
        changed = [
            (TIER, page) for page in touched if before.get(page, 0) != self._state.held.get(page, 0)
        ]
        return _keys_before_drops(self._accounts.around(call, moves, changed))

    def _hold(
        self, step: int, page: int, before: int, now: int, group_of: Callable[[int], int]
    ) -> list[Event]:
        holders = self._holders.setdefault(page, [])
        if now > before:
            group = self._groups + group_of(page)
            names = [f"copy:tier-{self._count + index}" for index in range(1, now - before + 1)]
            self._count += len(names)
            holders += [(name, group) for name in names]
            return [
                Acquire(step=step, pool=TIER, group=group, pages=[page], holder=name)
                for name in names
            ]
        gone = [holders.pop(0) for _ in range(before - now)]
        return [
            Release(step=step, pool=TIER, group=group, pages=[page], holder=name)
            for name, group in gone
        ]


def _keys_before_drops(events: list[Event]) -> list[Event]:
    """Return the events with what is given back behind the keys: a page that keeps a key is
    never nobody's.
    """
    drops = [event for event in events if isinstance(event, Release)]
    others = [event for event in events if not isinstance(event, Release)]
    if not drops:
        return events
    end = next(
        (index for index, event in enumerate(others) if event.__struct_config__.tag == "counts"),
        len(others),
    )
    return [*others[:end], *drops, *others[end:]]


class KeyNames:
    """What the hashes of requests stand for: the first so many tokens of the request that got
    such a hash last.
    """

    def __init__(self, unit: int) -> None:
        self._unit = unit
        """Tokens for each hash."""
        self._named: dict[Hashable, Claim] = {}
        self._seen: dict[str, list[Hashable]] = {}
        """By request: the hashes that it had."""

    def learn(self, requests: Iterable[Any]) -> None:
        """Note the hashes that requests have got; a session that goes on may have lost its last."""
        for request in requests:
            hashes = request.block_hashes
            seen = self._seen.setdefault(request.request_id, [])
            while seen and seen[-1:] != hashes[len(seen) - 1 : len(seen)]:
                seen.pop()
            for index in range(len(seen), len(hashes)):
                self._named[hashes[index]] = Claim((index + 1) * self._unit, request.request_id)
            seen += hashes[len(seen) :]

    def forget(self) -> None:
        """Forget what was said under old weights; requests that live say it again."""
        self._named.clear()
        self._seen.clear()

    def claim(self, block_hash: Hashable) -> Claim:
        """Return the prefix that a hash stands for. Raises RuntimeError for one of no request."""
        if block_hash not in self._named:
            raise RuntimeError(
                "a page of the connector's memory carries a key that is of no request's hash chain"
            )
        return self._named[block_hash]
