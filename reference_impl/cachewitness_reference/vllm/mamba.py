"""Mamba and other recurrent layers: one state says all that came before, and it is there at few
positions only.

In mode `align` slot p of the table holds the state after exactly (p + 1)·b tokens. A state is
written where a chunk ends, so the scheduler steers chunk ends onto block boundaries; the columns
between them are null. The last column is the running state, advanced in place. Once a later column
is written the earlier one is given back: live footprint stays at two blocks while what is cached
grows, which is what retention thins out.

Two rules keep states apart from attention blocks. A state keyed in this very step does not exist
yet and, unlike attention, cannot be read by another request in the same step: the hit waits for the
next (the same-step guard). And a state that is hit inside a block is about to be overwritten by
whoever continues: the newcomer gets a copy, while a running producer keeps its block and the key
moves to the copy.

Drafts are guesses, and a state cannot be taken back to before the last token. So the state after
each draft goes to a scratch page of its own, and the column keeps the state after the last known
token. When it is known which drafts stand, the state after the last of them is copied home before
the next step, and so is the state at a block boundary that they passed, if it is to be kept. vLLM
keeps its scratch pages behind the running column of the table; here they stand beside the table.

Mode `none` keeps one block per request and caches nothing; mode `all` (until 0.31) has a state in
every column.

Source: vLLM, `v1/core/single_type_kv_cache_manager.py`, `MambaManager`; `v1/kv_cache_interface.py`,
`get_mamba_prefill_checkpoint_position` (0.33.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from cachewitness_reference.primitives import BlockHash, GroupId, Position
from cachewitness_reference.vllm.block_pool import BlockPool
from cachewitness_reference.vllm.config import KVCacheConfig
from cachewitness_reference.vllm.key_index import KVCacheBlock
from cachewitness_reference.vllm.kv_cache_interface import KVCacheSpec, MambaSpec
from cachewitness_reference.vllm.request import Request
from cachewitness_reference.vllm.retention import mamba_mask
from cachewitness_reference.vllm.single_type_manager import SingleTypeKVCacheManager, cdiv


def get_mamba_prefill_checkpoint_position(
    num_tokens: int, unit: int, drop_eagle_block: bool
) -> Position:
    """Return the last boundary at which a request with these tokens can resume: a token short of
    the end, or a unit.
    """
    limit = num_tokens if drop_eagle_block else num_tokens - 1
    position = limit // unit * unit - (unit if drop_eagle_block else 0)
    return Position(max(position, 0))


class MambaManager(SingleTypeKVCacheManager):
    """The tables of a recurrent group."""

    supports_fine_grained_hash_lookup: ClassVar[bool] = True
    ignores_lookahead: ClassVar[bool] = True

    def __init__(
        self,
        config: KVCacheConfig,
        kv_cache_spec: KVCacheSpec,
        block_pool: BlockPool,
        kv_cache_group_id: GroupId,
    ) -> None:
        assert isinstance(kv_cache_spec, MambaSpec)
        super().__init__(config, kv_cache_spec, block_pool, kv_cache_group_id)
        self.mamba_cache_mode = kv_cache_spec.mamba_cache_mode
        self.retains_sparsely = config.release.retention == "sliding+mamba"
        self._num_retired_blocks: dict[str, int] = {}
        self._allocated_block_reqs: set[str] = set()
        self.num_speculative_blocks = config.options.num_speculative_tokens
        self.speculative_blocks: dict[str, list[KVCacheBlock]] = {}
        self._states_to_come: dict[str, KVCacheBlock] = {}

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
        """Return the rightmost cached state, as `SingleTypeKVCacheManager` describes it: null
        columns, then one block.

        Nothing is given back for EAGLE: drafters have no recurrent layers.
        """
        block_size = kv_cache_spec.block_size
        step = min(alignment_tokens, block_size)  # finer than a block only with partial hits
        scale = step // block_pool.hash_block_size
        for index in range(max_length // step - 1, -1, -1):
            hit_length = (index + 1) * step
            if hit_length % alignment_tokens:
                continue
            cached = block_pool.get_cached_block(
                block_hashes[(index + 1) * scale - 1], kv_cache_group_ids
            )
            if cached is not None:
                columns = [block_pool.null_block] * ((hit_length - 1) // block_size)
                return tuple([*columns, block] for block in cached), hit_length
        return tuple([] for _ in kv_cache_group_ids), 0

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
        """Return how many blocks leave the queue; more than there are if the state that was hit is
        of this step.

        A state that is loaded from elsewhere takes a block, and makes the one that was hit before
        it superfluous.
        """
        num_external_blocks = 1 if total_computed_tokens > num_local_computed_tokens else 0
        if num_external_blocks and self.mamba_cache_mode == "align":
            new_computed_blocks = ()
        if (
            new_computed_blocks
            and new_computed_blocks[-1].block_hash in self.cached_blocks_this_step
        ):
            return self.block_pool.num_gpu_blocks + 1
        if self.mamba_cache_mode != "align":
            return super().get_num_blocks_to_allocate(
                request_id,
                num_tokens,
                new_computed_blocks,
                total_computed_tokens,
                num_local_computed_tokens,
                apply_admission_cap,
            )
        num_present = len(new_computed_blocks) + len(self.req_to_blocks.get(request_id, ()))
        if num_external_blocks:
            num_present = cdiv(total_computed_tokens, self.block_size)
        num_new_blocks = min(max(cdiv(num_tokens, self.block_size) - num_present, 0), 1)
        partial = self._has_partial_local_hit(new_computed_blocks, num_local_computed_tokens)
        if partial or request_id in self._partial_hit_reqs:
            num_new_blocks += 1
        num_new_blocks += num_external_blocks
        scratch = 0 if request_id in self.speculative_blocks else self.num_speculative_blocks
        return num_new_blocks + scratch + self._get_num_evictable_blocks(new_computed_blocks)

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> list[KVCacheBlock]:
        """Add a column for the state after this chunk, null ones before it, and copy a state
        that was hit in part.
        """
        if self.mamba_cache_mode != "align":
            return super().allocate_new_blocks(request_id, num_tokens)
        req_blocks = self.req_to_blocks[request_id]
        if request_id not in self.speculative_blocks and self.num_speculative_blocks:
            self.speculative_blocks[request_id] = self.block_pool.get_new_blocks(
                self.num_speculative_blocks
            )
        num_required_blocks = cdiv(num_tokens, self.block_size)
        first_new = len(req_blocks)
        running = request_id in self._allocated_block_reqs
        self._allocated_block_reqs.add(request_id)
        if num_required_blocks <= first_new and request_id not in self._partial_hit_reqs:
            return []
        req_blocks.extend([self._null_block] * (num_required_blocks - 1 - first_new))
        num_states = max(num_required_blocks - len(req_blocks), 0)
        copies = (
            self._copy_partial_state(request_id, running)
            if request_id in self._partial_hit_reqs
            else []
        )
        req_blocks.extend(self.block_pool.get_new_blocks(num_states))
        if request_id in self._states_to_come:
            self._copy_and_hold(request_id, self._states_to_come.pop(request_id), req_blocks[-1])
        return copies + req_blocks[first_new:]

    def _copy_partial_state(self, request_id: str, running: bool) -> list[KVCacheBlock]:
        column, source_block = self._partial_hit_reqs.pop(request_id)
        (cow_block,) = self.block_pool.get_new_blocks(1)
        if not running:
            self._apply_cow(request_id, column, source_block, cow_block)
            return [cow_block]
        # A running producer keeps its block, since its table may not change; the copy keeps the
        # state, and the key.
        assert self.req_to_blocks[request_id][column] is source_block
        if source_block.block_hash is not None:
            self.block_pool.move_block_hashes(request_id, source_block, cow_block)
            assert cow_block.block_hash is not None
            self.cached_blocks_this_step.add(cow_block.block_hash)
        self.block_pool.touch([source_block])
        self._pending_cow_copies.append((request_id, source_block, cow_block))
        return []

    # COMMIT

    def cache_blocks(
        self, request: Request, num_tokens: int, replay: Sequence[Position]
    ) -> list[KVCacheBlock]:
        """Key the states that exist and retention keeps, the tail of the prompt inside its block
        included.
        """
        keyed = super().cache_blocks(request, num_tokens, replay)
        if self.mamba_cache_mode == "align" and self.config.release.partial_hash_hits:
            self._cache_partial_tail_block(request, num_tokens)
        for block in keyed:
            assert block.block_hash is not None
            self.cached_blocks_this_step.add(block.block_hash)
        return keyed

    def commit_drafts(self, request_id: str, num_computed_tokens: int, num_accepted: int) -> None:
        """Copy the state after the last draft that stood home, and the state at a boundary before
        it if that is keyed.

        If the last column was full, the state belongs into one that is yet to be allocated.
        """
        scratch = self.speculative_blocks[request_id]
        blocks = self.req_to_blocks[request_id]
        num_known = num_computed_tokens - num_accepted
        column = cdiv(num_known, self.block_size) - 1
        boundary = (column + 1) * self.block_size
        if num_computed_tokens <= boundary:
            self._copy_and_hold(request_id, scratch[num_accepted - 1], blocks[column])
            return
        if num_known < boundary and blocks[column].block_hash is not None:
            self._copy_and_hold(request_id, scratch[boundary - num_known - 1], blocks[column])
        self._states_to_come[request_id] = scratch[num_accepted - 1]

    def reachable_block_mask(
        self, columns: range, reachable: Sequence[Position]
    ) -> list[bool] | None:
        """Keep the states where a hit can end."""
        if not self.retains_sparsely:
            return None
        return mamba_mask(
            columns,
            block_size=self.block_size,
            alignment=self.cache_hit_alignment_tokens,
            interval=self.config.prefix_cache_retention_interval,
            reachable=reachable,
        )

    def _cache_partial_tail_block(self, request: Request, num_tokens: int) -> None:
        """Key the running state if this chunk ends where a resend of the prompt would resume."""
        unit = self.block_pool.hash_block_size
        drop = self.config.options.use_eagle and self.config.eagle_replay_boundaries
        if num_tokens == 0 or num_tokens != get_mamba_prefill_checkpoint_position(
            request.num_prompt_tokens, unit, drop
        ):
            return
        column = cdiv(num_tokens, self.block_size) - 1
        blocks = self.req_to_blocks[request.request_id]
        if (
            column >= len(blocks)
            or blocks[column].is_null
            or blocks[column].block_hash_num_tokens == num_tokens
        ):
            return
        block = blocks[column]
        key = self.block_pool.cache_partial_block(
            request, block, num_tokens, self.kv_cache_group_id
        )
        assert key is not None
        self.cached_blocks_this_step.add(key)
        if num_tokens % self.block_size:
            self._partial_hit_reqs[request.request_id] = (column, block)
            self.num_cached_block[request.request_id] = column

    # RELEASE

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Return how many leading tokens the state after the last one makes superfluous."""
        return num_computed_tokens - 1

    def _remove_blocks_in_range(self, request_id: str, first_block: int, last_block: int) -> None:
        if self.mamba_cache_mode != "align":
            super()._remove_blocks_in_range(request_id, first_block, last_block)
            return
        blocks = self.req_to_blocks[request_id]
        first_block = self._num_retired_blocks.get(request_id, 0)
        last_block = min(last_block, len(blocks))
        if first_block >= last_block:
            return
        freed: list[KVCacheBlock] = []
        for column in range(last_block - 1, first_block - 1, -1):
            if not blocks[column].is_null:
                freed.append(blocks[column])
                blocks[column] = self._null_block
        if freed:
            self.block_pool.free_blocks(freed)
        self._num_retired_blocks[request_id] = last_block

    def free(self, request_id: str) -> None:
        """Give back the whole table, its tail first."""
        self._allocated_block_reqs.discard(request_id)
        self._num_retired_blocks.pop(request_id, None)
        self._states_to_come.pop(request_id, None)
        self.block_pool.free_blocks(reversed(self.speculative_blocks.pop(request_id, [])))
        super().free(request_id)
