"""A pool whose free queue is in another order.

vLLM puts blocks without a key in front of the queue and keyed ones at its end. Who is evicted first
is free under everything that must hold, so an engine may line up otherwise: `fifo` appends whatever
is given back, `lifo` puts it in front, keyed or not.
"""

from __future__ import annotations

from collections.abc import Iterable

from cachewitness_reference.vllm.block_pool import BlockPool
from cachewitness_reference.vllm.key_index import KVCacheBlock
from cachewitness_reference.vllm_extended.config import FreeList


class OrderedPool(BlockPool):
    """A pool with the free list that is asked for."""

    def __init__(
        self,
        num_gpu_blocks: int,
        hash_block_size: int,
        enable_kv_cache_events: bool = False,
        free_list: FreeList = "lru",
    ) -> None:
        super().__init__(num_gpu_blocks, hash_block_size, enable_kv_cache_events)
        self.free_list = free_list

    # RELEASE

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Let go of blocks as vLLM does; then line up anew those that nobody holds any more."""
        blocks = list(ordered_blocks)
        super().free_blocks(blocks)
        if self.free_list == "lru":
            return
        freed = [block.block_id for block in blocks if block.ref_cnt == 0 and not block.is_null]
        if self.free_list == "fifo":
            for block_id in freed:
                self.free_block_queue.move_to_end(block_id)
        else:
            for block_id in dict.fromkeys(reversed(freed)):
                self.free_block_queue.move_to_end(block_id, last=False)
