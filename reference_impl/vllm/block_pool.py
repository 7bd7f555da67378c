"""The pool: every physical page of every group, who holds it and what it can be hit as.

A page is in exactly one of three states: held (reference count above 0), cached (nobody holds it, it has a key) or free
(neither). Cached and free pages wait in one queue, and allocation takes its head. A freed page without a key goes to the
front, to be used again while it is warm; one with a key goes to the end and is evicted when it reaches the front. A request
frees its last block first, so tails are evicted before the prefixes that they need. Page 0 is the null block: it stands for
columns that nobody needs and is in no state at all.

Who is evicted first is free under everything that must hold, so a fork may line up otherwise. Two other orders are here, as our
choice (`free_list`): `fifo` appends whatever is given back, `lifo` puts it in front, keyed or not.

A key appears when a block is allocated, before the step that fills it has run. Until the next step starts the key is
*pending*, and `withdraw_keys` takes it back if the step does not happen. vLLM has no such call; see the package docstring.

Source: vLLM, `v1/core/block_pool.py` and `v1/core/kv_cache_utils.py`, `FreeKVCacheBlockQueue` (0.33.0).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from reference_impl.primitives import BlockId
from reference_impl.vllm.events import AllBlocksCleared, KVCacheEvent
from reference_impl.vllm.key_index import KVCacheBlock
from reference_impl.vllm.keyed_blocks import KeyedBlocks
from reference_impl.vllm.kv_cache_interface import FreeList
from reference_impl.vllm.slow_tier import Transfer
from reference_impl.vllm.spec import NULL_BLOCK_ID
from reference_impl.vllm.tier import PlainTier, TierBlock, TierCopy


class BlockPool(KeyedBlocks):
    """All blocks, their keys, and the queue of those that nobody holds."""

    def __init__(
        self,
        num_gpu_blocks: int,
        hash_block_size: int,
        enable_kv_cache_events: bool = False,
        tier: PlainTier | None = None,
    ) -> None:
        super().__init__(num_gpu_blocks, hash_block_size, enable_kv_cache_events, tier)
        self.null_block = self.blocks[NULL_BLOCK_ID]
        self.null_block.is_null = True
        self.free_list: FreeList = "lru"
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
            self._dirty[block.block_id] = None
        return taken

    def get_new_snapshots(self, num_snapshots: int, pages: int) -> list[KVCacheBlock]:
        """Take `pages` blocks for each snapshot, tie them together and return the primaries."""
        taken = self.get_new_blocks(num_snapshots * pages)
        for first in range(0, len(taken), pages):
            primary, *companions = taken[first : first + pages]
            primary.companions = tuple(companions)
            for block in companions:
                block.primary = primary
        return taken[::pages]

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Hold blocks that were hit; cached ones leave the queue."""
        for block in blocks:
            if block.is_null:
                continue
            for page in (block, *block.companions) if block.companions else (block,):
                if page.ref_cnt == 0:
                    del self.free_block_queue[page.block_id]
                page.ref_cnt += 1
                self._dirty[page.block_id] = None

    # COMMIT

    def fetch_from_tier(self, request_id: str, source: TierBlock) -> KVCacheBlock:
        """Take a block for what only the tier has, and key it if it is filled before the step runs."""
        assert self.tier is not None and source.block_hash is not None and source.block_hash_num_tokens is not None
        (block,) = self.get_new_blocks(1)
        if not self.tier.delay:
            self._insert(request_id, source.block_hash, block, source.block_hash_num_tokens)
            self.written_before_step[block.block_id] = 0
        self.tier.fetch(source, block)
        return block

    def end_transfer(self, transfer: Transfer) -> None:
        """Key what was loaded, if somebody still waits for it, and let go of the block."""
        if transfer.waiting is not None and not transfer.failed:
            self._insert(transfer.waiting.request_id, transfer.key, transfer.block, transfer.num_tokens)
        self.free_blocks([transfer.block])

    def store_to_tier(self) -> list[TierCopy]:
        """Give what was keyed since the last call a place in the tier, and hold it until it has been copied there."""
        keyed, self.keys_to_store = self.keys_to_store, []
        stores: list[TierCopy] = []
        for request_id, block, key in keyed:
            if self.tier is not None and block.block_hash == key:
                place = self.tier.store(request_id, block)
                if place is not None:
                    stores.append((place, block))
        self.touch(block for _, block in stores)
        return stores

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
            pages = (block, *block.companions) if block.companions else (block,)
            for page in pages:
                assert page.ref_cnt > 0, f"block {page.block_id} is freed although nobody holds it"
                page.ref_cnt -= 1
                self._dirty[page.block_id] = None
            if block.ref_cnt == 0:
                if block.block_hash is None:
                    self._untie(block)
                in_front = block.block_hash is None if self.free_list == "lru" else self.free_list == "lifo"
                (evict_first if in_front else evict_last).extend(pages)
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
            if block.ref_cnt == 0 and block.block_hash is None:
                for page in (block, *block.companions):
                    self.free_block_queue.move_to_end(page.block_id, last=False)
                self._untie(block)

    def reset_prefix_cache(self) -> bool:
        """Forget every key; return False and change nothing while somebody holds a block."""
        if len(self.free_block_queue) != self.num_gpu_blocks - 1:
            return False
        for block in self.cached_block_hash_to_block.clear():
            self._set_key(block, None, None)
            self._untie(block)
        self.cached_block_hashes_by_block.clear()
        self.new_step_starts()
        if self.enable_kv_cache_events:
            self.kv_event_queue.append(AllBlocksCleared())
        return True

    # OBSERVATION

    def drain_dirty(self) -> list[BlockId]:
        """Return the blocks whose reference count or key changed since the last call, in order of the first change."""
        dirty = list(self._dirty)
        self._dirty.clear()
        return dirty

    def take_events(self) -> list[KVCacheEvent]:
        """Return the cache events since the last call."""
        events, self.kv_event_queue = self.kv_event_queue, []
        return events

    def _maybe_evict_cached_block(self, block: KVCacheBlock) -> None:
        """End the keys of a page that leaves the queue; the other pages of its snapshot are free now."""
        primary = block.primary or block
        pages = (primary, *primary.companions)
        self._drop_keys(primary)
        self._untie(primary)
        for page in reversed(pages):
            if page.block_id in self.free_block_queue:
                self.free_block_queue.move_to_end(page.block_id, last=False)
