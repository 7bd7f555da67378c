"""Full attention: every earlier token is read, so every column is needed and nothing is given back
before the end.

A hit is the run of cached blocks from the first column on. With hashes finer than blocks it may
reach into the next block, at the one boundary where the prompt of an earlier request ended.

Source: vLLM, `v1/core/single_type_kv_cache_manager.py`, `FullAttentionManager` (0.33.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from cachewitness_reference.primitives import BlockHash, GroupId, Position
from cachewitness_reference.vllm.block_pool import BlockPool
from cachewitness_reference.vllm.key_index import KVCacheBlock
from cachewitness_reference.vllm.kv_cache_interface import KVCacheSpec
from cachewitness_reference.vllm.request import Request
from cachewitness_reference.vllm.single_type_manager import SingleTypeKVCacheManager, cdiv


class FullAttentionManager(SingleTypeKVCacheManager):
    """The tables of a full-attention group."""

    supports_fine_grained_hash_lookup: ClassVar[bool] = True

    # LOOKUP

    @classmethod
    def find_longest_cache_hit(
        cls,
        block_hashes: Sequence[BlockHash],
        max_length: int,
        kv_cache_group_ids: Sequence[GroupId],
        block_pool: BlockPool,
        kv_cache_spec: KVCacheSpec,
        drop_eagle_block: bool,
        alignment_tokens: int,
    ) -> tuple[tuple[list[KVCacheBlock], ...], int]:
        """Return the longest run of cached blocks from the start, as `SingleTypeKVCacheManager`
        describes it.
        """
        block_size = kv_cache_spec.block_size
        scale = block_size // block_pool.hash_block_size
        num_blocks = min(max_length // block_size, len(block_hashes) // scale)
        rows: list[list[KVCacheBlock]] = []  # one block per group, by column
        for index in range(scale - 1, num_blocks * scale, scale):
            cached = block_pool.get_cached_block(block_hashes[index], kv_cache_group_ids)
            if cached is None:
                break
            rows.append(cached)
        hit_length = len(rows) * block_size

        if alignment_tokens < block_size:
            # Reach into the first block that is not whole, longest boundary first.
            first = len(rows) * scale
            last = min(first + scale - 1, max_length // alignment_tokens, len(block_hashes))
            for index in range(last - 1, first - 1, -1):
                cached = block_pool.get_cached_block(block_hashes[index], kv_cache_group_ids)
                if cached is not None:
                    rows.append(cached)
                    hit_length = (index + 1) * alignment_tokens
                    break

        if drop_eagle_block and hit_length > 0:
            hit_length -= min(alignment_tokens, block_size)
        hit_length -= hit_length % alignment_tokens
        del rows[cdiv(hit_length, block_size) :]
        return tuple([row[i] for row in rows] for i in range(len(kv_cache_group_ids))), hit_length

    # ALLOCATE: as every kind.

    # COMMIT

    def cache_blocks(
        self, request: Request, num_tokens: int, replay: Sequence[Position]
    ) -> list[KVCacheBlock]:
        """Key whole blocks and, with finer hashes, the tail of the prompt inside its block."""
        keyed = super().cache_blocks(request, num_tokens, replay)
        if (
            self.block_size != self.block_pool.hash_block_size
            and self.config.release.partial_hash_hits
        ):
            self._cache_partial_tail_block(request, num_tokens)
        return keyed

    def _cache_partial_tail_block(self, request: Request, num_tokens: int) -> None:
        """Key the last hash boundary that a resend of the prompt can match, if it lies inside a
        block.

        A resend matches one token less than the prompt; with EAGLE the whole prompt, a unit of
        which it gives back.
        """
        unit = self.block_pool.hash_block_size
        limit = request.num_prompt_tokens - (0 if self.use_eagle else 1)
        boundary = min(limit // unit, len(request.block_hashes)) * unit
        if boundary == 0 or boundary > num_tokens or boundary % self.block_size == 0:
            return
        column = boundary // self.block_size
        blocks = self.req_to_blocks[request.request_id]
        if column < len(blocks):
            self.block_pool.cache_partial_block(
                request, blocks[column], boundary, self.kv_cache_group_id
            )

    # RELEASE: as every kind; no column is ever skipped.
