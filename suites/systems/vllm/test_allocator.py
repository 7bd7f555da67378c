"""vLLM's block pool and its free queue as bare allocators, drawn call by call."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

import cachewitness
from cachewitness.sessions.fuzz.allocator import Failure, find
from suites.support.real_vllm import REAL, SOURCE

pytestmark = REAL


@pytest.fixture(autouse=True)
def source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SOURCE)


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
    assert find(allocator) is None


def test_a_second_free_is_not_noticed() -> None:
    """What vllm#42571 met: `free_blocks` lowers the count of a free block below zero, or puts a
    block into the queue twice.
    """
    found = find(Checked)
    assert isinstance(found, Failure)
    assert found.kind in ("double-free", "use-after-free"), found.text
    assert "the pool took it" in found.text
