"""What the managers of all group kinds share: block tables, and the phases that every request goes
through.

A manager owns one table per request: column i holds the block of tokens [i·b, (i + 1)·b), or the
null block where nobody needs them any more. Tables only grow at the end, since a worker may already
hold a copy. The phases carry the same comments in every kind, so that two kinds read side by side:
# LOOKUP finds what is cached, # ALLOCATE counts and takes blocks, # COMMIT keys them, # RELEASE
gives them back.

Source: vLLM, `v1/core/single_type_kv_cache_manager.py`, `SingleTypeKVCacheManager` (0.33.0).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar

from cachewitness_reference.primitives import BlockHash, BlockId, GroupId, Position
from cachewitness_reference.vllm.block_pool import BlockPool
from cachewitness_reference.vllm.config import KVCacheConfig
from cachewitness_reference.vllm.key_index import BlockHashWithGroupId, KVCacheBlock
from cachewitness_reference.vllm.kv_cache_interface import KVCacheSpec
from cachewitness_reference.vllm.request import Request
from cachewitness_reference.vllm.retention import reachable_boundaries

PendingCopy = tuple[str, KVCacheBlock, KVCacheBlock]
"""A request, the block to copy from and the block to copy to."""


def cdiv(a: int, b: int) -> int:
    """Return a / b rounded up."""
    return -(-a // b)


class SingleTypeKVCacheManager(ABC):
    """The tables of one cache group."""

    supports_fine_grained_hash_lookup: ClassVar[bool] = False
    """Whether hits of this kind may end inside a block."""
    ignores_lookahead: ClassVar[bool] = False
    """Whether tokens that are only guessed get no column in the table."""

    def __init__(
        self,
        config: KVCacheConfig,
        kv_cache_spec: KVCacheSpec,
        block_pool: BlockPool,
        kv_cache_group_id: GroupId,
    ) -> None:
        self.config = config
        self.kv_cache_spec = kv_cache_spec
        self.block_size = kv_cache_spec.block_size
        self.block_pool = block_pool
        self.kv_cache_group_id = kv_cache_group_id
        self.cache_hit_alignment_tokens = config.scheduler_block_size
        self.use_eagle = False
        self.max_admission_blocks_per_request: int | None = None
        self.records_new_block_ids = False
        self.req_to_blocks: defaultdict[str, list[KVCacheBlock]] = defaultdict(list)
        self.num_cached_block: dict[str, int] = {}
        self.new_block_ids: list[BlockId] = []
        self.cached_blocks_this_step: set[BlockHashWithGroupId] = (
            set()
        )  # filled by recurrent groups alone
        self._null_block = block_pool.null_block
        self._partial_hit_reqs: dict[str, tuple[int, KVCacheBlock]] = {}
        self._pending_cow_copies: list[PendingCopy] = []

    # LOOKUP

    @classmethod
    @abstractmethod
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
        """Return the longest prefix of at most `max_length` tokens that all these groups have
        cached.

        One list of columns per group, null where a column is not needed, and the length in tokens:
        a multiple of `alignment_tokens`. With `drop_eagle_block` one unit has been matched and
        given back.
        """

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
        """Return how many blocks leave the queue if the request gets slots for `num_tokens` tokens
        in all.

        Cached blocks that were hit count, since holding them takes them out of the queue. The
        admission cap bounds what a request of this kind holds at once, for kinds that give blocks
        back as they go.
        """
        num_required_blocks = cdiv(num_tokens, self.block_size)
        if apply_admission_cap and self.max_admission_blocks_per_request is not None:
            num_required_blocks = min(num_required_blocks, self.max_admission_blocks_per_request)
        num_req_blocks = len(self.req_to_blocks.get(request_id, ()))
        if request_id in self.num_cached_block:
            assert not new_computed_blocks
            return max(num_required_blocks - num_req_blocks, 0)

        num_skipped_blocks = (
            max(self.get_num_skipped_tokens(total_computed_tokens), 0) // self.block_size
        )
        num_present = max(num_skipped_blocks, len(new_computed_blocks) + num_req_blocks)
        num_new_blocks = max(num_required_blocks - num_present, 0)
        held_anew = new_computed_blocks[max(0, num_skipped_blocks - num_req_blocks) :]
        if self._has_partial_local_hit(new_computed_blocks, num_local_computed_tokens):
            # A copy is made before the step runs, so what this step is yet to write cannot be
            # copied.
            written = self.block_pool.written_before_step.get(new_computed_blocks[-1].block_id)
            if written is not None and num_local_computed_tokens > written:
                return self.block_pool.num_gpu_blocks + 1
            num_new_blocks += 1
        return num_new_blocks + self._get_num_evictable_blocks(held_anew)

    def add_local_computed_blocks(
        self,
        request_id: str,
        new_computed_blocks: Sequence[KVCacheBlock],
        num_local_computed_tokens: int,
        total_computed_tokens: int,
    ) -> None:
        """Start the table of a request with the blocks that it hit; columns outside the window
        become null.

        The window is that of the query after `total_computed_tokens`, what is loaded from elsewhere
        counted.
        """
        req_blocks = self.req_to_blocks[request_id]
        assert not req_blocks
        num_skipped_blocks = (
            max(self.get_num_skipped_tokens(total_computed_tokens), 0) // self.block_size
        )
        new_computed_blocks = new_computed_blocks[num_skipped_blocks:]
        self.block_pool.touch(new_computed_blocks)
        req_blocks.extend([self._null_block] * num_skipped_blocks)
        req_blocks.extend(new_computed_blocks)
        self.num_cached_block[request_id] = len(req_blocks)
        if self._has_partial_local_hit(new_computed_blocks, num_local_computed_tokens):
            column = num_local_computed_tokens // self.block_size
            self._partial_hit_reqs[request_id] = (column, new_computed_blocks[-1])
            self.num_cached_block[request_id] = column

    def add_external_computed_blocks(self, request_id: str, total_computed_tokens: int) -> None:
        """Grow the table by blocks for what is loaded from elsewhere before the step runs, up to
        `total_computed_tokens`.
        """
        req_blocks = self.req_to_blocks[request_id]
        num_external_blocks = cdiv(total_computed_tokens, self.block_size) - len(req_blocks)
        req_blocks.extend(self.block_pool.get_new_blocks(max(num_external_blocks, 0)))

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> list[KVCacheBlock]:
        """Grow the table to `num_tokens` tokens; a block that was hit in part is replaced by a
        private copy first.
        """
        req_blocks = self.req_to_blocks[request_id]
        num_new_blocks = cdiv(num_tokens, self.block_size) - len(req_blocks)
        copies = (
            self._redirect_partial_hit(request_id) if request_id in self._partial_hit_reqs else []
        )
        if num_new_blocks <= 0:
            return copies
        new_blocks = self.block_pool.get_new_blocks(num_new_blocks)
        req_blocks.extend(new_blocks)
        if self.records_new_block_ids:
            self.new_block_ids.extend(block.block_id for block in new_blocks)
        return copies + new_blocks

    # COMMIT

    def cache_blocks(
        self, request: Request, num_tokens: int, replay: Sequence[Position]
    ) -> list[KVCacheBlock]:
        """Key what the first `num_tokens` tokens fill and retention keeps; return the blocks keyed.

        A column that the mask declines is passed over for good: it is never looked at again.
        """
        num_cached_blocks = self.num_cached_block.get(request.request_id, 0)
        num_hashed_tokens = len(request.block_hashes) * self.block_pool.hash_block_size
        num_full_blocks = min(num_tokens, num_hashed_tokens) // self.block_size
        if num_cached_blocks >= num_full_blocks:
            return []
        keyed = self.block_pool.cache_full_blocks(
            request,
            self.req_to_blocks[request.request_id],
            num_cached_blocks,
            num_full_blocks,
            self.block_size,
            self.kv_cache_group_id,
            self.reachable_block_mask(
                range(num_cached_blocks, num_full_blocks),
                reachable_boundaries(request, self.config, replay, self.use_eagle, self.block_size),
            ),
        )
        self.num_cached_block[request.request_id] = num_full_blocks
        return keyed

    def reachable_block_mask(
        self, columns: range, reachable: Sequence[Position]
    ) -> list[bool] | None:
        """Return which columns retention keeps; None keeps them all."""
        return None

    # RELEASE

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Return how many leading tokens the next query no longer reads."""
        return 0

    def remove_skipped_blocks(self, request_id: str, processed_computed_tokens: int) -> None:
        """Give back the columns that no query after `processed_computed_tokens` reads."""
        num_skipped_blocks = (
            self.get_num_skipped_tokens(processed_computed_tokens) // self.block_size
        )
        if num_skipped_blocks > 0 and request_id in self.req_to_blocks:
            self._remove_blocks_in_range(request_id, 0, num_skipped_blocks)

    def _remove_blocks_in_range(self, request_id: str, first_block: int, last_block: int) -> None:
        blocks = self.req_to_blocks[request_id]
        freed: list[KVCacheBlock] = []
        for column in range(min(last_block, len(blocks)) - 1, first_block - 1, -1):
            if blocks[column].is_null:
                break  # everything before was given back earlier
            freed.append(blocks[column])
            blocks[column] = self._null_block
        if freed:
            self.block_pool.free_blocks(freed)

    def free(self, request_id: str) -> None:
        """Give back the whole table, its tail first."""
        req_blocks = self.req_to_blocks.pop(request_id, [])
        self.num_cached_block.pop(request_id, None)
        self._partial_hit_reqs.pop(request_id, None)
        self.block_pool.free_blocks(reversed(req_blocks))

    def new_step_starts(self) -> None:
        """Let the states of the step before be hit."""
        self.cached_blocks_this_step.clear()

    # COPY ON WRITE

    def take_pending_cow_copies(self) -> list[PendingCopy]:
        """Return the copies due before the next step runs; both ends of each stay held until the
        caller frees them.
        """
        pending, self._pending_cow_copies = self._pending_cow_copies, []
        return pending

    def drop_pending_cow_copies(self, request_id: str) -> None:
        """Let go of the copies that a request asked for and nobody has taken yet."""
        dropped = [copy for copy in self._pending_cow_copies if copy[0] == request_id]
        self._pending_cow_copies = [
            copy for copy in self._pending_cow_copies if copy[0] != request_id
        ]
        for _, source_block, cow_block in dropped:
            self.block_pool.free_blocks([source_block, cow_block])

    def take_new_block_ids(self) -> list[BlockId]:
        """Return the blocks allocated since the last call that must be zeroed."""
        ids, self.new_block_ids = self.new_block_ids, []
        return ids

    def _redirect_partial_hit(self, request_id: str) -> list[KVCacheBlock]:
        column, source_block = self._partial_hit_reqs.pop(request_id)
        (cow_block,) = self.block_pool.get_new_blocks(1)
        self._apply_cow(request_id, column, source_block, cow_block)
        self.new_block_ids.append(cow_block.block_id)
        return [cow_block]

    def _apply_cow(
        self, request_id: str, column: int, source_block: KVCacheBlock, cow_block: KVCacheBlock
    ) -> None:
        """Let a request continue on a copy. The copy keeps the reference of the hit, and one
        more on its target.
        """
        req_blocks = self.req_to_blocks[request_id]
        assert req_blocks[column] is source_block and source_block.ref_cnt > 0
        req_blocks[column] = cow_block
        self.block_pool.touch([cow_block])
        self._pending_cow_copies.append((request_id, source_block, cow_block))

    def _copy_and_hold(
        self, request_id: str, source_block: KVCacheBlock, target_block: KVCacheBlock
    ) -> None:
        """Have a block copied over another before the step runs, and hold both until it has run."""
        self.block_pool.touch([source_block, target_block])
        self._pending_cow_copies.append((request_id, source_block, target_block))

    def _has_partial_local_hit(
        self, new_computed_blocks: Sequence[KVCacheBlock], num_local_computed_tokens: int
    ) -> bool:
        return bool(new_computed_blocks) and num_local_computed_tokens % self.block_size != 0

    def _get_num_evictable_blocks(self, blocks: Sequence[KVCacheBlock]) -> int:
        return sum(block.ref_cnt == 0 and not block.is_null for block in blocks)
