"""The pool over a second tier: keys are asked of the device first and of the tier then, and what
is keyed is stored there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cachewitness_reference.primitives import BlockHash, GroupId
from cachewitness_reference.vllm.key_index import (
    BlockHashWithGroupId,
    KVCacheBlock,
    make_block_hash_with_group_id,
)
from cachewitness_reference.vllm_extended.config import FreeList
from cachewitness_reference.vllm_extended.free_list import OrderedPool
from cachewitness_reference.vllm_extended.slow_tier import Transfer
from cachewitness_reference.vllm_extended.tier import PlainTier, TierBlock, TierCopy


class TieredPool(OrderedPool):
    """A pool that has a tier beside it."""

    def __init__(
        self,
        num_gpu_blocks: int,
        hash_block_size: int,
        enable_kv_cache_events: bool,
        free_list: FreeList,
        tier: PlainTier,
    ) -> None:
        super().__init__(num_gpu_blocks, hash_block_size, enable_kv_cache_events, free_list)
        self.tier = tier
        self.keys_to_store: list[tuple[str, KVCacheBlock, BlockHashWithGroupId]] = []

    # LOOKUP

    def get_cached_block(
        self, block_hash: BlockHash, kv_cache_group_ids: Sequence[GroupId]
    ) -> list[KVCacheBlock] | None:
        """Return one block per group that can be hit as this prefix; what the device does not
        have may be in the tier.
        """
        cached: list[KVCacheBlock] = []
        for group_id in kv_cache_group_ids:
            key = make_block_hash_with_group_id(block_hash, group_id)
            block = self.cached_block_hash_to_block.get_one_block(key) or self.tier.get(key)
            if block is None:
                return None
            cached.append(block)
        return cached

    # ALLOCATE

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Hold blocks that were hit on the device; what is in the tier is fetched later
        (`fetch_from_tier`).
        """
        super().touch(block for block in blocks if not isinstance(block, TierBlock))

    def fetch_from_tier(self, request_id: str, source: TierBlock) -> KVCacheBlock:
        """Take a block for what only the tier has, and key it if it is filled before the step
        runs.
        """
        assert source.block_hash is not None and source.block_hash_num_tokens is not None
        (block,) = self.get_new_blocks(1)
        if not self.tier.delay:
            self._insert(request_id, source.block_hash, block, source.block_hash_num_tokens)
            self.written_before_step[block.block_id] = 0
        self.tier.fetch(source, block)
        return block

    # COMMIT

    def _insert(
        self, request_id: str, key: BlockHashWithGroupId, block: KVCacheBlock, num_tokens: int
    ) -> None:
        known = block.block_hash == key or self.cached_block_hash_to_block.contain(
            key, block.block_id
        )
        super()._insert(request_id, key, block, num_tokens)
        if not known:
            self.keys_to_store.append((request_id, block, key))

    def store_to_tier(self) -> list[TierCopy]:
        """Give what was keyed since the last call a place in the tier, and hold it until it has
        been copied there.
        """
        keyed, self.keys_to_store = self.keys_to_store, []
        stores: list[TierCopy] = []
        for request_id, block, key in keyed:
            if block.block_hash == key:
                place = self.tier.store(request_id, block)
                if place is not None:
                    stores.append((place, block))
        self.touch(block for _, block in stores)
        return stores

    # RELEASE

    def end_transfer(self, transfer: Transfer) -> None:
        """Key what was loaded, if somebody still waits for it, and let go of the block."""
        if transfer.waiting is not None and not transfer.failed:
            self._insert(
                transfer.waiting.request_id, transfer.key, transfer.block, transfer.num_tokens
            )
        self.free_blocks([transfer.block])
