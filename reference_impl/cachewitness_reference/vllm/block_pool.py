"""The pool: every physical page of every group, who holds it and what it can be hit as.

A page is in exactly one of three states: held (reference count above 0), cached (nobody holds it,
it has a key) or free (neither). Cached and free pages wait in one queue, and allocation takes its
head. A freed page without a key goes to the front, to be used again while it is warm; one with a
key goes to the end and is evicted when it reaches the front. A request frees its last block first,
so tails are evicted before the prefixes that they need. Page 0 is the null block: it stands for
columns that nobody needs and is in no state at all.

A key appears when a block is allocated, before the step that fills it has run. Until the next step
starts the key is *pending*, and `withdraw_keys` takes it back if the step does not happen. vLLM has
no such call; see the package docstring.

Source: vLLM, `v1/core/block_pool.py` and `v1/core/kv_cache_utils.py`, `FreeKVCacheBlockQueue`
(0.33.0).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from cachewitness_reference.primitives import BlockId
from cachewitness_reference.vllm.events import AllBlocksCleared, KVCacheEvent
from cachewitness_reference.vllm.key_index import KVCacheBlock
from cachewitness_reference.vllm.keyed_blocks import KeyedBlocks
from cachewitness_reference.vllm.spec import NULL_BLOCK_ID


class BlockPool(KeyedBlocks):
    """All blocks, their keys, and the queue of those that nobody holds."""

    def __init__(
        self, num_gpu_blocks: int, hash_block_size: int, enable_kv_cache_events: bool = False
    ) -> None:
        super().__init__(num_gpu_blocks, hash_block_size, enable_kv_cache_events)
        self.null_block = self.blocks[NULL_BLOCK_ID]
        self.null_block.is_null = True
        self.free_block_queue: OrderedDict[BlockId, KVCacheBlock] = OrderedDict(
            (block.block_id, block) for block in self.blocks if not block.is_null
        )

    # LOOKUP

    def get_num_free_blocks(self) -> int:
        """Return how many blocks can be allocated, cached ones included."""
        return len(self.free_block_queue)

    # ALLOCATE

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take blocks from the head of the queue; whatever they were keyed as is evicted.

        Raises ValueError if there are fewer.
        """
        queue = self.free_block_queue
        if num_blocks > len(queue):
            raise ValueError(f"cannot get {num_blocks} blocks from the pool: {len(queue)} are free")
        taken = [queue.popitem(last=False)[1] for _ in range(num_blocks)]
        for block in taken:
            if block.block_hash is not None:
                self._maybe_evict_cached_block(block)
            assert block.ref_cnt == 0 and not block.is_null
            block.ref_cnt = 1
        return taken

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Hold blocks that were hit; cached ones leave the queue."""
        for block in blocks:
            if block.is_null:
                continue
            if block.ref_cnt == 0:
                del self.free_block_queue[block.block_id]
            block.ref_cnt += 1

    # COMMIT

    def new_step_starts(self) -> None:
        """Commit the keys of the step before: it has run."""
        self.pending_keys.clear()
        self.pending_writer.clear()
        self.written_before_step.clear()

    # RELEASE

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Let go of blocks, those to evict first in front."""
        evict_first: list[KVCacheBlock] = []
        evict_last: list[KVCacheBlock] = []
        for block in ordered_blocks:
            if block.is_null:
                continue
            assert block.ref_cnt > 0, f"block {block.block_id} is freed although nobody holds it"
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                (evict_first if block.block_hash is None else evict_last).append(block)
        queue = self.free_block_queue
        for block in reversed(evict_first):
            queue[block.block_id] = block
            queue.move_to_end(block.block_id, last=False)
        for block in evict_last:
            queue[block.block_id] = block

    def withdraw_keys(self, request_id: str) -> None:
        """Take back the keys that a request got in the step that is not going to run."""
        for block, key in self.pending_keys.pop(request_id, ()):
            if not self.cached_block_hash_to_block.contain(key, block.block_id):
                continue
            if block.block_hash == key:
                self._drop_keys(block)
            else:
                self.cached_block_hash_to_block.pop(key, block.block_id)
                del self.cached_block_hashes_by_block[block.block_id][key]
                self._emit_removed([key])
            if block.ref_cnt == 0 and block.block_hash is None:
                self.free_block_queue.move_to_end(block.block_id, last=False)

    def reset_prefix_cache(self) -> bool:
        """Forget every key; return False and change nothing while somebody holds a block."""
        if len(self.free_block_queue) != self.num_gpu_blocks - 1:
            return False
        for block in self.cached_block_hash_to_block.clear():
            self._set_key(block, None, None)
        self.cached_block_hashes_by_block.clear()
        self.new_step_starts()
        if self.enable_kv_cache_events:
            self.kv_event_queue.append(AllBlocksCleared())
        return True

    def take_events(self) -> list[KVCacheEvent]:
        """Return the cache events since the last call."""
        events, self.kv_event_queue = self.kv_event_queue, []
        return events

    def _maybe_evict_cached_block(self, block: KVCacheBlock) -> None:
        """End the keys of a block that leaves the queue."""
        self._drop_keys(block)
