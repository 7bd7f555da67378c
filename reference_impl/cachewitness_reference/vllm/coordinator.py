"""The coordinator: the managers of all groups over one pool, and what is asked of all of them at
once.

With one group its answer is the answer; several have to agree on a length (`hybrid_coordinator`).

Source: vLLM, `v1/core/kv_cache_coordinator.py` (0.33.0).
"""

from __future__ import annotations

from collections.abc import Sequence

from cachewitness_reference.primitives import BlockHash, GroupId
from cachewitness_reference.vllm.block_pool import BlockPool
from cachewitness_reference.vllm.config import KVCacheConfig
from cachewitness_reference.vllm.full_attention import FullAttentionManager
from cachewitness_reference.vllm.key_index import KVCacheBlock
from cachewitness_reference.vllm.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from cachewitness_reference.vllm.mamba import MambaManager
from cachewitness_reference.vllm.request import Request
from cachewitness_reference.vllm.retention import replay_boundaries
from cachewitness_reference.vllm.single_type_manager import SingleTypeKVCacheManager
from cachewitness_reference.vllm.sliding_window import SlidingWindowManager

spec_manager_map: dict[type[KVCacheSpec], type[SingleTypeKVCacheManager]] = {
    FullAttentionSpec: FullAttentionManager,
    SlidingWindowSpec: SlidingWindowManager,
    MambaSpec: MambaManager,
}
"""Which manager serves groups of a kind."""

HitBlocks = tuple[list[KVCacheBlock], ...]
"""The columns that were hit, one list per group."""


class KVCacheCoordinator:
    """The managers of all groups over one pool. On its own it hits nothing, as when caching is
    off.
    """

    def __init__(self, config: KVCacheConfig, block_pool: BlockPool) -> None:
        self.config = config
        self.scheduler_block_size = config.scheduler_block_size
        self.enable_partial_hash_hits = config.enable_partial_hash_hits
        self.block_pool = block_pool
        self.single_type_managers = tuple(
            spec_manager_map[type(group.kv_cache_spec)](
                config, group.kv_cache_spec, block_pool, GroupId(i)
            )
            for i, group in enumerate(config.kv_cache_groups)
        )
        marked = {
            GroupId(i) for i, group in enumerate(config.kv_cache_groups) if group.is_eagle_group
        }
        every = {manager.kv_cache_group_id for manager in self.single_type_managers}
        self.eagle_group_ids = (marked or every) if config.options.use_eagle else set()
        for manager in self.single_type_managers:
            manager.records_new_block_ids = config.needs_kv_cache_zeroing and not isinstance(
                manager, MambaManager
            )

    # LOOKUP

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[HitBlocks, int, int]:
        """Return columns per group, the length of the hit, and by how much one group alone would
        exceed it (tokens).
        """
        return tuple([] for _ in self.single_type_managers), 0, 0

    # ALLOCATE

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[Sequence[KVCacheBlock]],
        total_computed_tokens: int,
        num_local_computed_tokens: int,
        apply_admission_cap: bool = False,
        num_known_tokens: int | None = None,
    ) -> int:
        """Return how many blocks leave the queue, over all groups; only attention needs blocks
        for more than is known.
        """
        num_blocks = 0
        for manager, blocks in zip(self.single_type_managers, new_computed_blocks, strict=True):
            tokens = (
                num_tokens
                if num_known_tokens is None or not manager.ignores_lookahead
                else num_known_tokens
            )
            num_blocks += manager.get_num_blocks_to_allocate(
                request_id,
                tokens,
                blocks,
                total_computed_tokens,
                num_local_computed_tokens,
                apply_admission_cap,
            )
        return num_blocks

    def allocate_new_computed_blocks(
        self,
        request_id: str,
        new_computed_blocks: Sequence[Sequence[KVCacheBlock]],
        num_local_computed_tokens: int,
        num_external_computed_tokens: int = 0,
    ) -> None:
        """Start the tables of a request with what it hit, on the device and elsewhere.

        Blocks to load into are taken last: by then everything hit on the device is held, and cannot
        be evicted for them.
        """
        total = num_local_computed_tokens + num_external_computed_tokens
        for manager, blocks in zip(self.single_type_managers, new_computed_blocks, strict=True):
            manager.add_local_computed_blocks(request_id, blocks, num_local_computed_tokens, total)
        for manager in self.single_type_managers if num_external_computed_tokens else ():
            manager.add_external_computed_blocks(request_id, total)

    def allocate_new_blocks(
        self, request_id: str, num_tokens: int, num_known_tokens: int | None = None
    ) -> HitBlocks:
        """Grow every table to `num_tokens` tokens, of recurrent groups to those known, and
        return the new blocks.
        """
        known = num_tokens if num_known_tokens is None else num_known_tokens
        return tuple(
            manager.allocate_new_blocks(
                request_id, known if manager.ignores_lookahead else num_tokens
            )
            for manager in self.single_type_managers
        )

    # COMMIT

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Key what the first `num_computed_tokens` tokens of a request fill."""
        use_eagle = bool(self.eagle_group_ids) and self.config.eagle_replay_boundaries
        replay = replay_boundaries(request.num_prompt_tokens, self.scheduler_block_size, use_eagle)
        for manager in self.single_type_managers:
            manager.cache_blocks(
                request, self.get_num_cacheable_tokens(num_computed_tokens, manager), replay
            )

    def commit_drafts(self, request_id: str, num_computed_tokens: int, num_accepted: int) -> None:
        """Bring home the states after the last `num_accepted` of the computed tokens; keys and
        values are where they belong.
        """
        for manager in self.single_type_managers:
            if isinstance(manager, MambaManager):
                manager.commit_drafts(request_id, num_computed_tokens, num_accepted)

    def get_num_cacheable_tokens(
        self, num_computed_tokens: int, manager: SingleTypeKVCacheManager
    ) -> int:
        """Return the longest prefix that a group may key."""
        return num_computed_tokens

    # RELEASE

    def remove_skipped_blocks(self, request_id: str, processed_computed_tokens: int) -> None:
        """Give back the columns that no later query of the request reads."""
        for manager in self.single_type_managers:
            manager.remove_skipped_blocks(request_id, processed_computed_tokens)

    def free(self, request_id: str) -> None:
        """Give back every table of a request."""
        for manager in self.single_type_managers:
            manager.free(request_id)

    def get_blocks(self, request_id: str) -> HitBlocks:
        """Return the tables of a request."""
        return tuple(
            manager.req_to_blocks.get(request_id, []) for manager in self.single_type_managers
        )

    def new_step_starts(self) -> None:
        """Commit the step before."""
        self.block_pool.new_step_starts()
        for manager in self.single_type_managers:
            manager.new_step_starts()


class UnitaryKVCacheCoordinator(KVCacheCoordinator):
    """One group: its own answer is the answer, at the granularity of its blocks."""

    def __init__(self, config: KVCacheConfig, block_pool: BlockPool) -> None:
        super().__init__(config, block_pool)
        (self.manager,) = self.single_type_managers
        self.manager.use_eagle = bool(self.eagle_group_ids)

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[HitBlocks, int, int]:
        """Return the hit of the only group; there is nobody to lag behind."""
        blocks, hit_length = self.manager.find_longest_cache_hit(
            block_hashes,
            max_cache_hit_length,
            [self.manager.kv_cache_group_id],
            self.block_pool,
            self.manager.kv_cache_spec,
            self.manager.use_eagle,
            self.manager.block_size,
        )
        return blocks, hit_length, 0
