"""What a manager of vLLM's shape shows of itself whose groups lie in several block pools, each of
which numbers its blocks from 0.

vLLM has one pool that all groups alias. A plug-in for a platform may keep recurrent states in a
smaller one, and may give several groups the same block ids, each for tensors of its own: it
allocates for the first of them and has the others repeat that. Each such *mirrored* group has a
pool of its own here, with the keys of the group that it repeats.

Everything is compared whole after each call, since no one of the pools knows what became of the
others.

Source of the shape: tpu-inference 0.32.0, `core/hybrid_coordinator.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from cachewitness.core.events import Event, KvRemoved, KvStored
from cachewitness.engines.cache_state import Claim, Count, KeyId, Tables
from cachewitness.engines.observe_pins import POOL
from cachewitness.engines.observe_tier import TIER


def shared(managers: Sequence[Any], pool: Any) -> bool:
    """Return whether all groups, by their managers, alias one pool, the cache manager's own."""
    pools = {id(single.block_pool) for single in managers}
    return len(pools) == 1 and managers[0].block_pool.blocks is pool.blocks


def scratching(managers: Sequence[Any]) -> bool:
    """Return whether requests hold pages beside their tables: for states after drafts."""
    return any(getattr(single, "num_speculative_blocks", 0) for single in managers)


def pools_of(managers: Sequence[Any]) -> list[int]:
    """Return the pool of each group, by the managers of the groups: POOL alone, if all have one
    pool; the numbers of the others are above TIER.
    """
    owners = _owners(managers)
    numbers: dict[int, int] = {}
    pools: list[int] = []
    for group, owner in enumerate(owners):
        mirrored = managers[group].block_pool is not managers[owner].block_pool
        place = -1 - group if mirrored else owner
        pools.append(numbers.setdefault(place, POOL if not numbers else TIER + len(numbers)))
    return pools


def _owners(managers: Sequence[Any]) -> list[int]:
    """Return of each group the first one that has the same blocks."""
    first: dict[int, int] = {}
    return [
        first.setdefault(id(single.block_pool.blocks), group)
        for group, single in enumerate(managers)
    ]


class SeveralPoolsState:
    """Shows tables, keys and counts of all pools. `served` is the request of the call under way."""

    def __init__(self, managers: Sequence[Any], pools: Sequence[int], group_of: Any) -> None:
        self.served: Any = None
        self.scratching = scratching(managers)
        self._managers = managers
        self._group_of = group_of
        owners = _owners(managers)
        self._sharing: dict[int, list[int]] = {group: [group] for group in range(len(managers))}
        """By group: those that have its keys, itself and the groups that repeat it."""
        self._repeats: dict[int, int] = {}
        """By pool: how many groups hold each of its blocks when one request does."""
        self._pools = {pool: managers[group].block_pool for group, pool in enumerate(pools)}
        for group, owner in enumerate(owners):
            if pools[group] != pools[owner]:
                self._sharing[owner].append(group)
        for group, owner in enumerate(owners):
            self._repeats[pools[group]] = len(self._sharing[owner])
        self._owned = {id(pool.blocks): pool for pool in self._pools.values()}

    def null(self) -> dict[int, list[int]]:
        """Return by pool the pages that nobody owns."""
        return {
            number: [block.block_id for block in pool.blocks if block.is_null]
            for number, pool in self._pools.items()
        }

    def sizes(self) -> dict[int, int]:
        """Return by pool how many pages it has."""
        return {number: len(pool.blocks) for number, pool in self._pools.items()}

    def tables(self, r: str) -> Tables:
        """Return the ids of the blocks that a request holds, by group and column."""
        return [
            [block.block_id for block in single.req_to_blocks.get(r, ())]
            for single in self._managers
        ]

    def keys(self) -> Mapping[KeyId, Claim]:
        """Return the keys of all blocks; a key is one of each group that shares it."""
        return {
            (group, page, key): claim
            for page, key, claim in self._keys()
            for group in self._with(self._group_of(key))
        }

    def _keys(self) -> Iterator[tuple[int, Any, Claim]]:
        for pool in self._owned.values():
            for block in pool.blocks:
                if block.block_hash is not None:
                    yield block.block_id, block.block_hash, Claim(block.block_hash_num_tokens)

    def counts(self) -> Mapping[int, Count]:
        """Return how many blocks of each pool are free, held, and kept for their keys alone."""
        return {number: _count(pool) for number, pool in self._pools.items()}

    def fullest(self) -> int:
        """Return the pool of whose pages the largest part is held."""
        used = {
            number: count.held / (count.free + count.held + count.cached)
            for number, count in self.counts().items()
        }
        return max(used, key=lambda number: used[number])

    def references(self, pool: int, page: int) -> int | None:
        """Return how often a block is held for a group: groups that repeat one another hold it
        together.
        """
        count: int = self._pools[pool].blocks[page].ref_cnt
        each, over = divmod(count, self._repeats[pool])
        return count if over else each

    def note(self, pages: Iterable[int]) -> None:
        """Note nothing: all blocks are looked at."""

    def forget(self, r: str) -> None:
        """Forget nothing: nothing is kept of a request."""

    def each_group(self, events: Iterable[Event]) -> list[Event]:
        """Return key events with those of a group also for the groups that repeat it, of which
        routers are not told.
        """
        each: list[Event] = []
        for event in events:
            if isinstance(event, KvStored | KvRemoved):
                groups = self._with(event.group)
                each += [msgspec.structs.replace(event, group=group) for group in groups]
            else:
                each.append(event)
        return each

    def _with(self, group: int) -> list[int]:
        """Return a group and those that repeat it."""
        return self._sharing.get(group, [group])


def _count(pool: Any) -> Count:
    blocks = [block for block in pool.blocks if not block.is_null]
    held = sum(block.ref_cnt > 0 for block in blocks)
    cached = sum(block.ref_cnt <= 0 and block.block_hash is not None for block in blocks)
    return Count(pool.get_num_free_blocks() - cached, held, cached)
