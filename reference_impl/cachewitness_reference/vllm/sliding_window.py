"""Sliding window: the next query reads the last W tokens, itself included, so columns before them
become null.

A hit at p needs the blocks that cover [p − W + 1, p) and no others. It is looked for from the
right, and the columns before its window are null. A window tail can therefore survive without the
prefix that it came from, which full attention cannot. A window of one token needs no block before
it, so none is kept for it and, EAGLE apart, it never hits: that is what vLLM does.

Source: vLLM, `v1/core/single_type_kv_cache_manager.py`, `SlidingWindowManager` (0.33.0).
"""

from __future__ import annotations

from collections.abc import Sequence

from cachewitness_reference.primitives import BlockHash, GroupId, Position
from cachewitness_reference.vllm.block_pool import BlockPool
from cachewitness_reference.vllm.config import KVCacheConfig
from cachewitness_reference.vllm.key_index import KVCacheBlock
from cachewitness_reference.vllm.kv_cache_interface import KVCacheSpec, SlidingWindowSpec
from cachewitness_reference.vllm.retention import sliding_window_mask
from cachewitness_reference.vllm.single_type_manager import SingleTypeKVCacheManager, cdiv


def contiguous_blocks_for_hit(window: int, block_size: int, use_eagle: bool) -> int:
    """Return how many cached blocks in a row a hit needs; EAGLE matches one more and gives it
    back.
    """
    return cdiv(window - 1, block_size) + (1 if use_eagle else 0)


def _align_down(num_blocks: int, block_size: int, alignment_tokens: int) -> int:
    while num_blocks * block_size % alignment_tokens:
        num_blocks -= 1
    return num_blocks


class SlidingWindowManager(SingleTypeKVCacheManager):
    """The tables of a sliding-window group."""

    def __init__(
        self,
        config: KVCacheConfig,
        kv_cache_spec: KVCacheSpec,
        block_pool: BlockPool,
        kv_cache_group_id: GroupId,
    ) -> None:
        assert isinstance(kv_cache_spec, SlidingWindowSpec)
        super().__init__(config, kv_cache_spec, block_pool, kv_cache_group_id)
        self.sliding_window = kv_cache_spec.sliding_window
        options = config.options
        in_flight = (
            1 + options.async_depth
        ) * options.max_num_batched_tokens + 2 * options.num_speculative_tokens
        self.max_admission_blocks_per_request = kv_cache_spec.max_admission_blocks_per_request(
            in_flight, options.max_model_len
        )

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
        """Return the rightmost window that is cached whole, as `SingleTypeKVCacheManager` describes
        it.

        If none is, a run from the first column on is a hit all the same: before it there is nothing
        to read.
        """
        assert isinstance(kv_cache_spec, SlidingWindowSpec)
        block_size = kv_cache_spec.block_size
        scale = block_size // block_pool.hash_block_size
        need = contiguous_blocks_for_hit(kv_cache_spec.sliding_window, block_size, drop_eagle_block)
        eagle_drop_tokens = 1 if drop_eagle_block else 0
        num_blocks = max_length // block_size
        computed: tuple[list[KVCacheBlock], ...] = tuple(
            [block_pool.null_block] * num_blocks for _ in kv_cache_group_ids
        )
        run = 0
        run_end = 0
        for column in range(num_blocks - 1, -1, -1):
            cached = block_pool.get_cached_block(
                block_hashes[(column + 1) * scale - 1], kv_cache_group_ids
            )
            if cached is None:
                run = 0
                continue
            if run == 0:
                if (column + 1 - eagle_drop_tokens) * block_size % alignment_tokens:
                    continue  # a run may only end where a hit may
                run_end = column + 1
            for blocks, block in zip(computed, cached, strict=True):
                blocks[column] = block
            run += 1
            if run >= need:
                break
        else:
            run_end = _align_down(run, block_size, alignment_tokens)
        end = _align_down(max(run_end - eagle_drop_tokens, 0), block_size, alignment_tokens)
        for blocks in computed:
            del blocks[end:]
        return computed, end * block_size

    # ALLOCATE: as every kind; `get_num_skipped_tokens` below makes columns null.

    # COMMIT

    def reachable_block_mask(
        self, columns: range, reachable: Sequence[Position]
    ) -> list[bool] | None:
        """Keep the tails of windows where a hit can end."""
        return sliding_window_mask(
            columns,
            block_size=self.block_size,
            contiguous=contiguous_blocks_for_hit(
                self.sliding_window, self.block_size, self.use_eagle
            ),
            alignment=self.cache_hit_alignment_tokens,
            use_eagle=self.use_eagle,
            interval=self.config.prefix_cache_retention_interval,
            reachable=reachable,
        )

    # RELEASE

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Return how many leading tokens lie before the window of the next query."""
        return max(0, num_computed_tokens - self.sliding_window + 1)
