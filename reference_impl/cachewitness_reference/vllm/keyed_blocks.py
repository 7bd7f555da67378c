"""Keys on blocks: which block can be hit as which prefix.

A block may be hit at several lengths: its first key is on the block, further ones beside it. Keys
are put on blocks when they are allocated, before the step that fills them has run, so until the
next step starts a key is *pending*; who made it is remembered, since it goes if the step does not
happen. Who holds a block, and which one is handed out next, is the pool's (`block_pool`).

Source: vLLM, `v1/core/block_pool.py` (0.33.0).
"""

from __future__ import annotations

from collections.abc import Sequence

from cachewitness_reference.primitives import BlockHash, BlockId, GroupId
from cachewitness_reference.vllm.events import BlockRemoved, BlockStored, KVCacheEvent, untagged
from cachewitness_reference.vllm.key_index import (
    GROUP_SUFFIXES,
    BlockHashToBlockMap,
    BlockHashWithGroupId,
    KVCacheBlock,
    get_block_hash,
    get_group_id,
    make_block_hash_with_group_id,
)
from cachewitness_reference.vllm.request import Request


class KeyedBlocks:
    """All blocks and their keys."""

    def __init__(
        self, num_gpu_blocks: int, hash_block_size: int, enable_kv_cache_events: bool
    ) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self.hash_block_size = hash_block_size
        self.enable_kv_cache_events = enable_kv_cache_events
        self.blocks = [KVCacheBlock(BlockId(i)) for i in range(num_gpu_blocks)]
        self.cached_block_hash_to_block = BlockHashToBlockMap()
        self.cached_block_hashes_by_block: dict[BlockId, dict[BlockHashWithGroupId, int]] = {}
        self.kv_event_queue: list[KVCacheEvent] = []
        self.pending_keys: dict[str, list[tuple[KVCacheBlock, BlockHashWithGroupId]]] = {}
        self.pending_writer: dict[BlockId, str] = {}
        # Of blocks keyed in this step: up to which token they were written before it; the rest is
        # there when it has run.
        self.written_before_step: dict[BlockId, int] = {}

    # LOOKUP

    def get_cached_block(
        self, block_hash: BlockHash, kv_cache_group_ids: Sequence[GroupId]
    ) -> list[KVCacheBlock] | None:
        """Return one block per group that can be hit as this prefix, or None if some group has
        none.
        """
        get_one_block = self.cached_block_hash_to_block.get_one_block
        cached = []
        for group_id in kv_cache_group_ids:
            block = get_one_block(block_hash + GROUP_SUFFIXES[group_id])
            if block is None:
                return None
            cached.append(block)
        return cached

    # COMMIT

    def cache_full_blocks(
        self,
        request: Request,
        blocks: Sequence[KVCacheBlock],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: GroupId,
        block_mask: list[bool] | None = None,
    ) -> list[KVCacheBlock]:
        """Key the columns [num_cached_blocks, num_full_blocks) of a table and return the blocks
        keyed.

        The mask is purely subtractive: a null column is never keyed, whatever the mask says of it.
        """
        scale = block_size // self.hash_block_size
        keyed = []
        kept = []
        for column in range(num_cached_blocks, num_full_blocks):
            block = blocks[column]
            if block.is_null or (
                block_mask is not None and not block_mask[column - num_cached_blocks]
            ):
                continue
            num_tokens = (column + 1) * block_size
            if block.block_hash is not None:
                # A block that was hit as part of itself is now full: the longer key takes over.
                assert (
                    block.block_hash_num_tokens is not None
                    and block.block_hash_num_tokens < num_tokens
                )
                self._drop_keys(block)
            block_hash = request.block_hashes[(column + 1) * scale - 1]
            self._insert(
                request.request_id,
                make_block_hash_with_group_id(block_hash, kv_cache_group_id),
                block,
                num_tokens,
            )
            self.written_before_step[block.block_id] = request.num_computed_tokens
            keyed.append(block)
            kept.append(column)
        if self.enable_kv_cache_events and num_full_blocks > num_cached_blocks:
            self._emit_stored(
                request, kept, num_cached_blocks, num_full_blocks, block_size, kv_cache_group_id
            )
        return keyed

    def cache_partial_block(
        self, request: Request, block: KVCacheBlock, num_tokens: int, kv_cache_group_id: GroupId
    ) -> BlockHashWithGroupId | None:
        """Make a block hittable as the first `num_tokens` tokens, which end inside it; return the
        key.

        `num_tokens` is a multiple of the hash block size. Returns None for the null block, as vLLM
        does.
        """
        if block.is_null:
            return None
        index = num_tokens // self.hash_block_size
        key = make_block_hash_with_group_id(request.block_hashes[index - 1], kv_cache_group_id)
        known = block.block_hash == key or self.cached_block_hash_to_block.contain(
            key, block.block_id
        )
        if (
            not known
            and block.block_hash_num_tokens is not None
            and block.block_hash_num_tokens < num_tokens
        ):
            self._drop_keys(block)
        self._insert(request.request_id, key, block, num_tokens)
        self.written_before_step.setdefault(block.block_id, request.num_computed_tokens)
        if self.enable_kv_cache_events and not known:
            self._emit_stored(
                request, [index - 1], index - 1, index, self.hash_block_size, kv_cache_group_id
            )
        return key

    def move_block_hashes(
        self, request_id: str, src_block: KVCacheBlock, dst_block: KVCacheBlock
    ) -> None:
        """Let `dst_block` be hit as what `src_block` was; a copy that is on its way fills it. No
        event is due.
        """
        assert dst_block.block_hash is None and src_block.block_hash is not None
        assert src_block.block_hash_num_tokens is not None
        keys = {src_block.block_hash: src_block.block_hash_num_tokens}
        keys |= self.cached_block_hashes_by_block.get(src_block.block_id, {})
        self._remove_cached_block_hashes(src_block)
        for key, num_tokens in keys.items():
            self._insert(request_id, key, dst_block, num_tokens)
        self.written_before_step[dst_block.block_id] = 0

    def _insert(
        self, request_id: str, key: BlockHashWithGroupId, block: KVCacheBlock, num_tokens: int
    ) -> None:
        if block.block_hash == key or self.cached_block_hash_to_block.contain(key, block.block_id):
            return
        if block.block_hash is None:
            self._set_key(block, key, num_tokens)
        else:
            self.cached_block_hashes_by_block.setdefault(block.block_id, {})[key] = num_tokens
        self.cached_block_hash_to_block.insert(key, block)
        self.pending_keys.setdefault(request_id, []).append((block, key))
        self.pending_writer[block.block_id] = request_id

    def _set_key(
        self, block: KVCacheBlock, key: BlockHashWithGroupId | None, num_tokens: int | None
    ) -> None:
        block.block_hash = key
        block.block_hash_num_tokens = num_tokens

    def _remove_cached_block_hashes(self, block: KVCacheBlock) -> list[BlockHashWithGroupId]:
        assert block.block_hash is not None
        keys = [block.block_hash, *self.cached_block_hashes_by_block.pop(block.block_id, ())]
        for key in keys:
            self.cached_block_hash_to_block.pop(key, block.block_id)
        self._set_key(block, None, None)
        return keys

    def _drop_keys(self, block: KVCacheBlock) -> None:
        self._emit_removed(self._remove_cached_block_hashes(block))

    def _emit_removed(self, keys: list[BlockHashWithGroupId]) -> None:
        if self.enable_kv_cache_events:
            self.kv_event_queue.extend(
                BlockRemoved([get_block_hash(key)], get_group_id(key)) for key in keys
            )

    def _emit_stored(
        self,
        request: Request,
        kept: list[int],
        first: int,
        end: int,
        block_size: int,
        group_id: GroupId,
    ) -> None:
        scale = block_size // self.hash_block_size
        hashes = request.block_hashes
        self.kv_event_queue.append(
            BlockStored(
                block_hashes=[hashes[(column + 1) * scale - 1] for column in kept],
                parent_block_hash=hashes[first * scale - 1] if first else None,
                token_ids=request.all_token_ids[first * block_size : end * block_size],
                block_size=block_size,
                group_idx=group_id,
                lora_name=request.adapter or None,
                extra_keys=[
                    untagged(request.extra_keys(column * block_size, (column + 1) * block_size))
                    for column in kept
                ],
            )
        )
