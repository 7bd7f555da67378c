"""Pools that say which of their blocks changed, so that an observer need not look at every block
after every call.

The specification's pool has no use for this and does not know of it. Here each method that changes
a reference count or a key notes for which blocks it was called.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cachewitness_reference.primitives import BlockId
from cachewitness_reference.vllm.block_pool import BlockPool
from cachewitness_reference.vllm.config import KVCacheConfig
from cachewitness_reference.vllm.key_index import BlockHashWithGroupId, KVCacheBlock
from cachewitness_reference.vllm.kv_cache_manager import KVCacheManager
from cachewitness_reference.vllm_extended.assemble import PoolKinds, get_kv_cache_manager
from cachewitness_reference.vllm_extended.free_list import OrderedPool
from cachewitness_reference.vllm_extended.snapshots import SnapshotPool
from cachewitness_reference.vllm_extended.tiered_pool import TieredPool


class ReportingPool(BlockPool):
    """vLLM's pool; `drain_dirty` says which blocks changed."""

    def __init__(self, *args: Any) -> None:
        self._dirty: set[BlockId] = set()
        super().__init__(*args)

    def drain_dirty(self) -> set[BlockId]:
        """Return the blocks whose reference count or key may have changed since the last call."""
        dirty, self._dirty = self._dirty, set()
        return dirty

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take blocks from the head of the queue."""
        taken = super().get_new_blocks(num_blocks)
        self._dirty.update([block.block_id for block in taken])
        return taken

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Hold blocks that were hit."""
        held = [block for block in blocks if not block.is_null]
        self._dirty.update([block.block_id for block in held])
        super().touch(held)

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Let go of blocks."""
        freed = [block for block in ordered_blocks if not block.is_null]
        self._dirty.update([block.block_id for block in freed])
        super().free_blocks(freed)

    def _insert(
        self, request_id: str, key: BlockHashWithGroupId, block: KVCacheBlock, num_tokens: int
    ) -> None:
        had = block.block_hash
        if (
            had is not None
            and had != key
            and not self.cached_block_hash_to_block.contain(key, block.block_id)
        ):
            self._dirty.add(block.block_id)
        super()._insert(request_id, key, block, num_tokens)

    def _set_key(
        self, block: KVCacheBlock, key: BlockHashWithGroupId | None, num_tokens: int | None
    ) -> None:
        self._dirty.add(block.block_id)
        super()._set_key(block, key, num_tokens)


class _Ordered(OrderedPool, ReportingPool):
    pass


class _Snapshots(SnapshotPool, ReportingPool):
    pass


class _Tiered(TieredPool, ReportingPool):
    pass


_KINDS = PoolKinds(ReportingPool, _Ordered, _Snapshots, _Tiered)


def observable_manager(config: KVCacheConfig) -> KVCacheManager:
    """Return the manager of a configuration over a pool that says which blocks changed."""
    return get_kv_cache_manager(config, _KINDS)
