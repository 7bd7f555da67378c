"""The paged cache of transformers' continuous batching as a bare allocator, drawn call by call; and
faults in its own code, each of which is killed.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

from cachewitness import machines
from cachewitness.engines.source_patch import Patches
from suites.support.block_pools import killed, passes
from suites.support.real_engines import needs_transformers

pytestmark = needs_transformers
FOLDER = "generation.continuous_batching.cache_allocators"
PATCHES = Patches(f"transformers.{FOLDER}")
FEWER = hypothesis.settings(machines.ALLOCATOR_SETTINGS, max_examples=300)


@pytest.fixture(autouse=True)
def unpatched() -> Iterator[None]:
    yield
    PATCHES.undo()


def part(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"transformers.{FOLDER}.{module}"), name)


class Pool(machines.Allocator):
    """`CachePool`: sectors of up to four blocks, taken as `PagedAttentionCache` takes them."""

    null_block = 0  # in a sector that padding reads
    misuse = "undefined"
    settings = FEWER

    def make(self, size: int) -> None:
        self.sector = next(count for count in (4, 3, 2, 1) if size % count == 0)
        self.pool = part("cache_pool", "CachePool")(size // self.sector, 1)
        self.pool.set_blocks_per_sector(0, self.sector)

    def alloc(self, n: int) -> Any:
        sectors = -(-max(n - self.pool.count_free_blocks(0), 0) // self.sector)
        if sectors > self.pool.num_free_sectors:
            return None
        for _ in range(sectors):
            self.pool.allocate_sector(0)
        return self.pool.get_free_blocks(0, n)

    def free(self, blocks: list[int]) -> None:
        self.pool.free_blocks(0, blocks)
        self.pool.try_to_free_sectors()

    def available(self) -> int:
        in_sectors = self.pool.num_free_sectors * self.sector
        return int(self.pool.count_free_blocks(0) + in_sectors)


class Ledger(Pool):
    """The same with `BlockLedger`, which counts references and keeps blocks that have hashes."""

    keys_per_block = 1
    keeps = True

    def make(self, size: int) -> None:
        super().make(size)
        self.ledger = part("cache_allocator", "BlockLedger")()

    def free(self, blocks: list[int]) -> None:
        super().free([block for block in blocks if self.ledger.release(block)])

    def share(self, block: int) -> None:
        self.ledger.acquire(block)

    def touch(self, block: int) -> None:
        self.ledger.acquire(block)

    def publish(self, key: str, block: int) -> bool:
        return self.ledger.register_new_hash(block, key) is None

    def lookup(self, key: str) -> Any:
        return self.ledger.hash_to_block.get(key)

    def evict(self, n: int) -> Any:
        evicted = self.ledger.evict_cached_blocks()
        self.pool.free_blocks(0, evicted)
        return evicted


@pytest.mark.parametrize("allocator", [Pool, Ledger])
def test_nothing_is_wrong_with_calls_that_are_allowed(
    allocator: type[machines.Allocator],
) -> None:
    passes(allocator)


FAULTS = {
    "sector-handed-back-in-use": (
        Pool,
        ("cache_pool", "RegularTrees", "delete_full_trees"),
        "if len(tree) == self.elems_per_tree",
        "if len(tree) >= self.elems_per_tree - 1",
        {"count", "handed-out-twice", "raised"},
    ),
    "part-of-a-sector-stays": (
        Pool,
        ("cache_pool", "RegularTrees", "pop_leaves"),
        "tree[:-num_leaves], tree[-num_leaves:]",
        "tree[:], tree[-num_leaves:]",
        {"count", "handed-out-twice"},
    ),
    "sharer-not-counted": (
        Ledger,
        ("cache_allocator", "BlockLedger", "acquire"),
        "self.shared_ref_counts.get(block_id, 1) + 1",
        "self.shared_ref_counts.get(block_id, 1)",
        {"count", "handed-out-twice"},
    ),
    "two-sharers-forgotten": (
        Ledger,
        ("cache_allocator", "BlockLedger", "release"),
        "if new_ref_count > 1:",
        "if new_ref_count > 2:",
        {"count", "handed-out-twice"},
    ),
    "hit-stays-evictable": (
        Ledger,
        ("cache_allocator", "BlockLedger", "acquire"),
        "self.cached_blocks.pop(block_id)",
        "pass",
        {"evicted-held", "count", "raised", "handed-out-twice"},
    ),
    "hash-survives-eviction": (
        Ledger,
        ("cache_allocator", "BlockLedger", "evict_cached_blocks"),
        "self.hash_to_block.pop(block_hash)",
        "pass",
        {"stale-key"},
    ),
}
"""A piece of transformers' own code, and what stands there instead."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_its_code_is_killed(name: str) -> None:
    allocator, place, old, new, kinds = FAULTS[name]
    PATCHES.text(*place, old, new)
    killed(allocator, kinds)
