"""vLLM's block pool and its free queue as bare allocators, drawn call by call; and faults in their
own code, each of which is killed.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

import cachewitness
from cachewitness.engines.source_patch import Patches
from cachewitness.sessions.fuzz.allocator import Failure, find
from suites.support.block_pools import killed, passes
from suites.support.real_vllm import REAL, SOURCE

pytestmark = REAL
PATCHES = Patches("vllm.v1.core")


@pytest.fixture(autouse=True)
def source(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(SOURCE)
    yield
    PATCHES.undo()


def part(module: str) -> Any:
    """Return a module of vLLM's core."""
    from cachewitness.systems.vllm.source import load

    load(SOURCE)
    return importlib.import_module(f"vllm.v1.core.{module}")


class Queue(cachewitness.machines.Allocator):
    """`FreeKVCacheBlockQueue`: blocks wait in order, and leave it from its head."""

    order = "lru"
    misuse = "undefined"  # the queue does not count references

    def make(self, size: int) -> None:
        utils = part("kv_cache_utils")
        self.queue = utils.FreeKVCacheBlockQueue([utils.KVCacheBlock(i) for i in range(size)])

    def alloc(self, n: int) -> Any:
        return self.queue.popleft_n(n)

    def free(self, blocks: list[Any]) -> None:
        self.queue.append_n(blocks)

    def available(self) -> int:
        assert len(self.queue.get_all_free_blocks()) == self.queue.num_free_blocks
        return int(self.queue.num_free_blocks)


class OneByOne(Queue):
    """The same by the calls for one block."""

    alloc_max = 1

    def alloc(self, n: int) -> Any:
        return [self.queue.popleft()]

    def free(self, blocks: list[Any]) -> None:
        for block in blocks:
            self.queue.append(block)


class Blocks(cachewitness.machines.Allocator):
    """`BlockPool` with prefix caching."""

    null_block = 0
    order = "lru"
    misuse = "undefined"
    keys_per_block = 1
    keeps = True

    def make(self, size: int) -> None:
        self.pool = part("block_pool").BlockPool(size + 1, True, 16)
        self.keyed = part("kv_cache_utils").make_block_hash_with_group_id

    def key(self, key: str) -> Any:
        return self.keyed(key.encode(), 0)

    def alloc(self, n: int) -> Any:
        return self.pool.get_new_blocks(n)

    def free(self, blocks: list[Any]) -> None:
        self.pool.free_blocks(blocks)

    def share(self, block: Any) -> None:
        self.pool.touch([block])

    def touch(self, block: Any) -> None:
        self.pool.touch([block])

    def publish(self, key: str, block: Any) -> None:
        self.pool._insert_block_hash(self.key(key), block, 16)

    def lookup(self, key: str) -> Any:
        return self.pool.cached_block_hash_to_block.get_one_block(self.key(key))

    def unpublish(self, block: Any) -> None:
        self.pool.evict_blocks({block.block_id})

    def reset(self) -> Any:
        return self.pool.reset_prefix_cache()

    def available(self) -> int:
        return int(self.pool.get_num_free_blocks())

    def references(self, block: Any) -> int:
        return int(block.ref_cnt)


class Checked(Blocks):
    """The same, with what a second free does declared as a pool of ours would."""

    misuse = "raises"


@pytest.mark.parametrize("allocator", [Queue, OneByOne, Blocks])
def test_nothing_is_wrong_with_calls_that_are_allowed(
    allocator: type[cachewitness.machines.Allocator],
) -> None:
    passes(allocator)


def test_a_second_free_is_not_noticed() -> None:
    """What vllm#42571 met: `free_blocks` lowers the count of a free block below zero, or puts a
    block into the queue twice.
    """
    found = find(Checked)
    assert isinstance(found, Failure)
    assert found.kind in ("double-free", "use-after-free"), found.text
    assert "the pool took it" in found.text


FAULTS = {
    "two-popped-one-counted": (
        Queue,
        ("kv_cache_utils", "FreeKVCacheBlockQueue", "popleft_n"),
        "self.num_free_blocks -= n",
        "self.num_free_blocks -= 1",
        {"raised", "count"},
    ),
    "appended-in-front-of-the-last": (
        Queue,
        ("kv_cache_utils", "FreeKVCacheBlockQueue", "append_n"),
        "for block in blocks:",
        "for block in reversed(blocks):",
        {"order"},
    ),
    "hit-stays-in-the-queue": (
        Blocks,
        ("block_pool", "BlockPool", "touch"),
        "self.free_block_queue.remove(block)",
        "pass",
        {"count", "raised", "handed-out-twice"},
    ),
    "key-kept": (
        Blocks,
        ("block_pool", "BlockPool", "get_new_blocks"),
        "for block in ret:\nself._maybe_evict_cached_block(block)",
        "for block in ret:",
        {"stale-key", "raised"},
    ),
}
"""A piece of vLLM's own code, and what stands there instead."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_its_code_is_killed(name: str) -> None:
    allocator, (module, owner, method), old, new, kinds = FAULTS[name]
    part(module)
    PATCHES.text(module, owner, method, old, new)
    killed(allocator, kinds)
