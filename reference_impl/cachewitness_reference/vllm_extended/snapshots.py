"""Snapshots of several pages: a recurrent state that takes more than one block is held, keyed and
evicted as one.

The first of its pages, the *primary*, stands in the table and carries the key; the others are its
*extra pages*. They share its reference count and show its key. When one of them leaves the free
queue all lose the key, and the others go to the front.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from cachewitness_reference.primitives import BlockId, GroupId
from cachewitness_reference.vllm.block_pool import BlockPool
from cachewitness_reference.vllm.config import KVCacheConfig
from cachewitness_reference.vllm.coordinator import spec_manager_map
from cachewitness_reference.vllm.key_index import BlockHashWithGroupId, KVCacheBlock
from cachewitness_reference.vllm.kv_cache_interface import KVCacheSpec
from cachewitness_reference.vllm.mamba import MambaManager
from cachewitness_reference.vllm.spec import NULL_BLOCK_ID
from cachewitness_reference.vllm_extended.config import FreeList, SnapshotSpec
from cachewitness_reference.vllm_extended.free_list import OrderedPool


class SnapshotBlock(KVCacheBlock):
    """A page that may be part of a snapshot: its first, with `extra pages`, or one of those, with
    a `primary`.
    """

    __slots__ = ("extra_pages", "primary")

    def __init__(self, block_id: BlockId) -> None:
        super().__init__(block_id)
        self.extra_pages: tuple[SnapshotBlock, ...] = ()
        self.primary: SnapshotBlock | None = None


def pages_of(block: KVCacheBlock) -> tuple[KVCacheBlock, ...]:
    """Return a block and its extra_pages."""
    assert isinstance(block, SnapshotBlock)
    return (block, *block.extra_pages)


class SnapshotPool(OrderedPool):
    """A pool in which blocks can be tied together."""

    def __init__(
        self,
        num_gpu_blocks: int,
        hash_block_size: int,
        enable_kv_cache_events: bool = False,
        free_list: FreeList = "lru",
    ) -> None:
        super().__init__(num_gpu_blocks, hash_block_size, enable_kv_cache_events, free_list)
        self.blocks = [SnapshotBlock(block.block_id) for block in self.blocks]
        self.null_block = self.blocks[NULL_BLOCK_ID]
        self.null_block.is_null = True
        self.free_block_queue = OrderedDict(
            (block_id, self.blocks[block_id]) for block_id in self.free_block_queue
        )

    # ALLOCATE

    def take_extra_pages(self, primary: KVCacheBlock, count: int) -> None:
        """Take `count` blocks more and tie them to one that was just taken."""
        assert isinstance(primary, SnapshotBlock) and not primary.extra_pages
        extra_pages = [
            block for block in self.get_new_blocks(count) if isinstance(block, SnapshotBlock)
        ]
        primary.extra_pages = tuple(extra_pages)
        for block in extra_pages:
            block.primary = primary

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Hold all pages of what was hit."""
        super().touch(page for block in blocks for page in pages_of(block))

    # COMMIT

    def _set_key(
        self, block: KVCacheBlock, key: BlockHashWithGroupId | None, num_tokens: int | None
    ) -> None:
        for page in pages_of(block):
            super()._set_key(page, key, num_tokens)

    # RELEASE

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Let go of all pages; without a key a snapshot is one no longer."""
        blocks = list(ordered_blocks)
        super().free_blocks([page for block in blocks for page in pages_of(block)])
        for block in blocks:
            if block.ref_cnt == 0 and block.block_hash is None:
                _untie(block)

    def withdraw_keys(self, request_id: str) -> None:
        """Take back the keys of a request; what nobody holds and has no key any more is free,
        page by page.
        """
        index = self.cached_block_hash_to_block
        pending = self.pending_keys.get(request_id, ())
        keyed = [block for block, key in pending if index.contain(key, block.block_id)]
        super().withdraw_keys(request_id)
        for block in keyed:
            if block.ref_cnt == 0 and block.block_hash is None:
                for page in pages_of(block):
                    self.free_block_queue.move_to_end(page.block_id, last=False)
                _untie(block)

    def reset_prefix_cache(self) -> bool:
        """Forget every key and untie every snapshot; return False and change nothing while
        somebody holds a block.
        """
        done = super().reset_prefix_cache()
        for block in self.blocks if done else ():
            _untie(block)
        return done

    def _maybe_evict_cached_block(self, block: KVCacheBlock) -> None:
        """End the key of a snapshot one of whose pages leaves the queue; the others are free
        now, and go first.
        """
        assert isinstance(block, SnapshotBlock)
        primary = block.primary or block
        pages = pages_of(primary)
        super()._maybe_evict_cached_block(primary)
        _untie(primary)
        for page in reversed(pages):
            if page.block_id in self.free_block_queue:
                self.free_block_queue.move_to_end(page.block_id, last=False)


def _untie(block: KVCacheBlock) -> None:
    assert isinstance(block, SnapshotBlock)
    for page in block.extra_pages:
        page.primary = None
    block.extra_pages = ()


class SnapshotManager(MambaManager):
    """The tables of a recurrent group whose states take several blocks; a table names the first
    of each.
    """

    def __init__(
        self,
        config: KVCacheConfig,
        kv_cache_spec: KVCacheSpec,
        block_pool: BlockPool,
        kv_cache_group_id: GroupId,
    ) -> None:
        assert isinstance(kv_cache_spec, SnapshotSpec) and isinstance(block_pool, SnapshotPool)
        super().__init__(config, kv_cache_spec, block_pool, kv_cache_group_id)
        self.snapshot_pool = block_pool
        self.pages_per_snapshot = kv_cache_spec.pages_per_snapshot

    # LOOKUP: as for states of one block.

    # ALLOCATE

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock],
        total_computed_tokens: int,
        num_local_computed_tokens: int,
        apply_admission_cap: bool = False,
    ) -> int:
        """Return how many blocks leave the queue: as many for each new state as it has pages,
        and those that were hit.
        """
        needed = super().get_num_blocks_to_allocate(
            request_id,
            num_tokens,
            new_computed_blocks,
            total_computed_tokens,
            num_local_computed_tokens,
            apply_admission_cap,
        )
        if needed > self.block_pool.num_gpu_blocks:
            return needed
        loaded = total_computed_tokens > num_local_computed_tokens
        held_anew = 0 if loaded else self._get_num_evictable_blocks(new_computed_blocks)
        return (needed - held_anew) * self.pages_per_snapshot + held_anew

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> list[KVCacheBlock]:
        """Add a column for the state after this chunk, with all its pages."""
        new_blocks = super().allocate_new_blocks(request_id, num_tokens)
        for block in new_blocks:
            if not block.is_null:
                self.snapshot_pool.take_extra_pages(block, self.pages_per_snapshot - 1)
        return new_blocks

    def _get_num_evictable_blocks(self, blocks: Sequence[KVCacheBlock]) -> int:
        return sum(
            len(pages_of(block)) for block in blocks if block.ref_cnt == 0 and not block.is_null
        )

    # COMMIT and RELEASE: as for states of one block; the pool knows which pages are tied.


spec_manager_map[SnapshotSpec] = SnapshotManager
