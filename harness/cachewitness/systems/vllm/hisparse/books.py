"""What vLLM shows of HiSparse's two pools: who holds which block, what is keyed, and its own
counts.

A request holds what its rows name, of a resident group after vLLM's changes of residency. A block
that is released and still read (`unpin_blocks`) is counted by the pool as free; here it is held by
whoever reads it (`_owners`), and by `copy:readable` where later requests may come to read it
(`copies`), as long as vLLM says so, and while a step in flight reads it. Transfers under way,
copies on the host and blocks that are given back later hold theirs as `copy:…`.

Sources: vLLM 0.33.0, `v1/hisparse/coordinator.py`; `v1/core/single_type_kv_cache_manager.py`,
`block_pool.py`; `v1/core/sched/scheduler.py`, `deferred_frees`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

from cachewitness.engines.cache_state import Claim, Count, KeyId, Tables
from cachewitness.engines.observe_pins import POOL
from cachewitness.systems.vllm.connectors.tier import KeyNames
from cachewitness.systems.vllm.hisparse.places import Places
from cachewitness.systems.vllm.source import Source

Holding = tuple[str, int, int]
"""Who holds a page, the ledger's group for which, and the page."""
READABLE = "copy:readable"
"""Who holds the blocks of the device whose content later requests may come to read."""


class Books:
    """The two pools of a scheduler's cache manager, as one cache of the ledger's."""

    def __init__(self, source: Source, scheduler: Any, places: Places, names: KeyNames) -> None:
        self._scheduler = scheduler
        self._places = places
        self._names = names
        self._managers = scheduler.kv_cache_manager.coordinator.single_type_managers
        self._resident = [self._managers[index] for index in places.resident]
        self._hot = [self._managers[index] for index in places.hot]
        self._host = self._managers[places.source]
        self._device_pool = scheduler.kv_cache_manager.block_pool
        self._host_pool = self._host.block_pool
        self.coordinator = self._host.coordinator
        self._hash_of = source.utils.get_block_hash
        self.in_flight: deque[set[Holding]] = deque()
        """Of each step in flight: the blocks of the device that it reads, as it was told. It runs
        before what comes later."""
        self._still_read: Counter[int] = Counter()
        """Pages that are read in flight alone, and by how many; as of the last look at who holds
        what."""
        self._keys: dict[KeyId, Claim] = {}
        """A key stays what it was published as."""
        self.clients: Mapping[str, Any] = {}
        """vLLM's objects of requests that the harness has not seen end: one may get its last key in
        the call that ends it."""

    # --- who holds what ---------------------------------------------------------------------------

    def holdings(self) -> Counter[Holding]:
        """Return who holds which page for which group, and how often."""
        held: Counter[Holding] = Counter()
        for r in {r for manager in self._managers for r in manager.req_to_blocks}:
            held.update(self._of_request(r))
        for blocks in self.coordinator.copies.values():
            held.update((READABLE, part, block.block_id) for part, block in enumerate(blocks))
        for holder, blocks in self._pinned():
            held.update(
                (holder, group, page) for block in blocks for group, page in self._pages_of(block)
            )
        read = {holding for step in self.in_flight for holding in step if holding not in held}
        held.update(read)
        self._still_read = Counter(page for _, _, page in read)
        return held

    def _of_request(self, r: str) -> Iterator[Holding]:
        places = self._places
        for block in self._managers[places.indexer].req_to_blocks.get(r, ()):
            yield r, places.of_indexer, block.block_id
        for part in places.parts:
            rows = (
                self._resident[part].get_residency_row(r),
                self._hot[part].req_to_blocks.get(r, ()),
            )
            yield from (
                (r, part, block.block_id) for row in rows for block in row if not block.is_null
            )
        for block in self._host.req_to_blocks.get(r, ()):
            yield from (
                (r, part, places.on_host(part, block.block_id))
                for part in places.parts
                if not block.is_null
            )

    def _pinned(self) -> Iterator[tuple[str, Iterable[Any]]]:
        """Yield the holders that are no requests, with their blocks."""
        coordinator = self.coordinator
        detached: dict[str, Any] = {}
        for number, spill in coordinator.pending_spills.items():
            yield f"copy:spill-{number}", [spill.host_block]
            if not spill.enqueue_applied:
                yield f"copy:spill-{number}", spill.resident_blocks
            publication = spill.request_state.publication
            if publication is not None and publication.detached_blocks is not None:
                detached[publication.request.request_id] = publication.detached_blocks
        for r, blocks in detached.items():
            yield f"copy:published-{r}", blocks
        for number, pair in coordinator._retained_copies.items():
            yield f"copy:host-{number}", pair
        for fence, blocks in self._scheduler.deferred_frees:
            yield f"copy:freed-{fence}", [block for block in blocks if not block.is_null]

    def _pages_of(self, block: Any) -> Iterator[tuple[int, int]]:
        """Yield the ledger's pages of a block of either pool, each with a group that it may be
        held for.
        """
        places = self._places
        if block.pool is self._host_pool:
            yield from ((part, places.on_host(part, block.block_id)) for part in places.parts)
        else:
            yield 0, block.block_id

    # --- what a cache shows -----------------------------------------------------------------------

    def tables(self, r: str) -> Tables:
        """Return nothing: holders are compared, not rows."""
        return []

    def keys(self) -> Mapping[KeyId, Claim]:
        """Return every key that can be hit: the indexer's on the device, and those on the host,
        once for each part.
        """
        self._names.learn([*self._scheduler.requests.values(), *self.clients.values()])
        places = self._places
        named: list[KeyId] = [
            (places.of_indexer, page, key) for page, key in _keyed(self._device_pool)
        ]
        for block, key in _keyed(self._host_pool):
            named += [(part, places.on_host(part, block), key) for part in places.parts]
        self._keys = {
            key: self._keys.get(key) or self._names.claim(self._hash_of(key[2])) for key in named
        }
        return self._keys

    def counts(self) -> Mapping[int, Count]:
        """Return the books of both pools, added: a block of the host is a page for each part."""
        owners = self.coordinator._owners
        parts = len(self._places.resident)
        read = {block for block, readers in owners.items() if readers}
        device = _count(
            self._device_pool, read.union(self.coordinator._copy_by_block, self._still_read)
        )
        host = _count(self._host_pool, ())
        return {
            POOL: Count(*(one + parts * other for one, other in zip(device, host, strict=True)))
        }

    def references(self, pool: int, page: int) -> int | None:
        """Return how often a page is held: the pool's count, and who still reads a block that
        was released.
        """
        return self.all_references()[page]

    def all_references(self) -> list[int]:
        """Return the same of every page."""
        owners = self.coordinator._owners
        readable = self.coordinator._copy_by_block
        still = self._still_read
        counted = [block.ref_cnt for block in self._device_pool.blocks]
        for page in {*owners, *readable, *still}:
            counted[page] += len(owners.get(page, ())) + (page in readable) + still[page]
        return counted + [block.ref_cnt for block in self._host_pool.blocks] * len(
            self._places.resident
        )


def _keyed(pool: Any) -> Iterator[tuple[int, Hashable]]:
    """Yield the blocks of a pool that have keys, with each: a block that is keyed in parts has
    further ones.
    """
    for block in pool.blocks:
        if block.block_hash is not None:
            yield block.block_id, block.block_hash
            yield from (
                (block.block_id, key)
                for key in pool.cached_block_hashes_by_block.get(block.block_id, ())
            )


def _count(pool: Any, read: Iterable[int]) -> Count:
    """Return the books of a pool; blocks that are still `read` and counted as free are held."""
    held = sum(block.ref_cnt > 0 for block in pool.blocks if not block.is_null)
    cached = sum(block.ref_cnt <= 0 and block.block_hash is not None for block in pool.blocks)
    released = sum(pool.blocks[block].ref_cnt <= 0 for block in read)
    return Count(pool.get_num_free_blocks() - cached - released, held + released, cached)
