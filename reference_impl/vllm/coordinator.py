"""The coordinator: many groups, one answer.

A hit must be a hit in every group at the same length. Full attention has every shorter prefix of what it has, so it only
ever trims; a window or a state exists at few lengths only, and accepting a shorter one may cost another group its own. So
the groups shrink a candidate in turn until a whole round accepts it. The length only falls, hence it ends.

Hits are multiples of the *alignment*: the LCM of the groups' block sizes, or the hash block where hits may end inside a
block. Groups with equal specs are looked up together. If one group alone matched further than all of them together, the
difference is a prefix that somebody shares and a prunable group has not kept: the shared-prefix junction.

EAGLE's drafter needs the hidden state of the token before the first new one, so attention groups match one unit beyond the
candidate and give it back, once per candidate.

Source: vLLM, `v1/core/kv_cache_coordinator.py` (0.33.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reference_impl.primitives import BlockHash, GroupId
from reference_impl.vllm.block_pool import BlockPool
from reference_impl.vllm.config import FullAttentionSpec, KVCacheConfig, KVCacheSpec, MambaSpec, SlidingWindowSpec
from reference_impl.vllm.full_attention import FullAttentionManager
from reference_impl.vllm.key_index import KVCacheBlock
from reference_impl.vllm.mamba import MambaManager
from reference_impl.vllm.request import Request
from reference_impl.vllm.retention import replay_boundaries
from reference_impl.vllm.single_type_manager import SingleTypeKVCacheManager, cdiv
from reference_impl.vllm.sliding_window import SlidingWindowManager
from reference_impl.vllm.tier import PlainTier

_MANAGERS: dict[type[KVCacheSpec], type[SingleTypeKVCacheManager]] = {
    FullAttentionSpec: FullAttentionManager,
    SlidingWindowSpec: SlidingWindowManager,
    MambaSpec: MambaManager,
}

HitBlocks = tuple[list[KVCacheBlock], ...]
"""The columns that were hit, one list per group."""


@dataclass
class SpecGroup:
    """Groups with one spec, looked up together. `use_eagle` if any of them has EAGLE's layers."""

    spec: KVCacheSpec
    group_ids: list[GroupId]
    manager_cls: type[SingleTypeKVCacheManager]
    use_eagle: bool


class KVCacheCoordinator:
    """The managers of all groups over one pool. On its own it hits nothing, as when caching is off."""

    def __init__(self, config: KVCacheConfig) -> None:
        self.config = config
        self.scheduler_block_size = config.scheduler_block_size
        self.enable_partial_hash_hits = config.enable_partial_hash_hits
        options = config.options
        self.tier = PlainTier(options.tier_slots) if options.tier_slots else None
        self.block_pool = BlockPool(config.num_blocks, config.hash_block_size, options.enable_kv_cache_events, self.tier)
        self.single_type_managers = tuple(
            _MANAGERS[type(group.kv_cache_spec)](config, group.kv_cache_spec, self.block_pool, GroupId(i))
            for i, group in enumerate(config.kv_cache_groups)
        )
        marked = {GroupId(i) for i, group in enumerate(config.kv_cache_groups) if group.is_eagle_group}
        every = {manager.kv_cache_group_id for manager in self.single_type_managers}
        self.eagle_group_ids = (marked or every) if config.options.use_eagle else set()
        for manager in self.single_type_managers:
            manager.records_new_block_ids = config.needs_kv_cache_zeroing and not isinstance(manager, MambaManager)

    # LOOKUP

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[HitBlocks, int, int]:
        """Return columns per group, the length of the hit, and by how much one group alone would exceed it (tokens)."""
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
        """Return how many blocks leave the queue, over all groups; only attention needs blocks for more than is known."""
        num_blocks = 0
        for manager, blocks in zip(self.single_type_managers, new_computed_blocks, strict=True):
            tokens = num_tokens if num_known_tokens is None or not manager.ignores_lookahead else num_known_tokens
            num_blocks += manager.get_num_blocks_to_allocate(
                request_id, tokens, blocks, total_computed_tokens, num_local_computed_tokens, apply_admission_cap
            )
        return num_blocks

    def allocate_new_computed_blocks(
        self, request_id: str, new_computed_blocks: Sequence[Sequence[KVCacheBlock]], num_local_computed_tokens: int
    ) -> None:
        """Start the tables of a request with what it hit."""
        for manager, blocks in zip(self.single_type_managers, new_computed_blocks, strict=True):
            manager.add_local_computed_blocks(request_id, blocks, num_local_computed_tokens)
        if self.tier is not None:  # only now that everything hit on the device is held, and cannot be evicted for it
            for manager in self.single_type_managers:
                manager.fetch_from_tier(request_id)

    def allocate_new_blocks(self, request_id: str, num_tokens: int, num_known_tokens: int | None = None) -> HitBlocks:
        """Grow every table to `num_tokens` tokens, of recurrent groups to those known, and return the new blocks."""
        known = num_tokens if num_known_tokens is None else num_known_tokens
        return tuple(
            manager.allocate_new_blocks(request_id, known if manager.ignores_lookahead else num_tokens)
            for manager in self.single_type_managers
        )

    # COMMIT

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Key what the first `num_computed_tokens` tokens of a request fill."""
        use_eagle = bool(self.eagle_group_ids) and self.config.eagle_replay_boundaries
        replay = replay_boundaries(request.num_prompt_tokens, self.scheduler_block_size, use_eagle)
        for manager in self.single_type_managers:
            manager.cache_blocks(request, self.get_num_cacheable_tokens(num_computed_tokens, manager), replay)

    def commit_drafts(self, request_id: str, num_computed_tokens: int, num_accepted: int) -> None:
        """Bring home the states after the last `num_accepted` of the computed tokens; keys and values are where they belong."""
        for manager in self.single_type_managers:
            if isinstance(manager, MambaManager):
                manager.commit_drafts(request_id, num_computed_tokens, num_accepted)

    def get_num_cacheable_tokens(self, num_computed_tokens: int, manager: SingleTypeKVCacheManager) -> int:
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
        return tuple(manager.req_to_blocks.get(request_id, []) for manager in self.single_type_managers)

    def new_step_starts(self) -> None:
        """Commit the step before."""
        self.block_pool.new_step_starts()
        for manager in self.single_type_managers:
            manager.new_step_starts()


class UnitaryKVCacheCoordinator(KVCacheCoordinator):
    """One group: its own answer is the answer, at the granularity of its blocks."""

    def __init__(self, config: KVCacheConfig) -> None:
        super().__init__(config)
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


class HybridKVCacheCoordinator(KVCacheCoordinator):
    """Several groups: the longest length that all of them accept."""

    def __init__(self, config: KVCacheConfig) -> None:
        super().__init__(config)
        self.hash_block_size = config.hash_block_size
        self.cache_hit_alignment_tokens = self.hash_block_size if self.enable_partial_hash_hits else self.scheduler_block_size
        self.attention_groups = self._spec_groups()
        for manager in self.single_type_managers:
            manager.cache_hit_alignment_tokens = self.cache_hit_alignment_tokens
        for group in self.attention_groups:
            for group_id in group.group_ids:
                self.single_type_managers[group_id].use_eagle = group.use_eagle

    def _spec_groups(self) -> list[SpecGroup]:
        groups: list[SpecGroup] = []
        for manager in self.single_type_managers:
            group_id, spec = manager.kv_cache_group_id, manager.kv_cache_spec
            use_eagle = group_id in self.eagle_group_ids
            same = next((group for group in groups if group.spec == spec), None)
            if same is None:
                groups.append(SpecGroup(spec, [group_id], type(manager), use_eagle))
            else:
                same.group_ids.append(group_id)
                same.use_eagle |= use_eagle
        # Full attention first: its answer bounds all the others.
        return sorted(groups, key=lambda group: not isinstance(group.spec, FullAttentionSpec))

    # LOOKUP

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_cache_hit_length: int
    ) -> tuple[HitBlocks, int, int]:
        """Shrink a candidate length until every group accepts it.

        With full attention and one other spec a single round suffices: what full attention has, it has at every length.
        """
        groups = self.attention_groups
        hits: list[tuple[HitBlocks, int] | None] = [None] * len(groups)
        one_round = len(groups) == 2 and isinstance(groups[0].spec, FullAttentionSpec)
        hit_length, longest = max_cache_hit_length, 0
        given_back: set[int] = set()  # groups that gave their EAGLE unit back at the current candidate
        while True:
            candidate = hit_length
            for index, group in enumerate(groups):
                known = hits[index]
                if known is not None and isinstance(group.spec, FullAttentionSpec):
                    candidate = min(candidate, known[1])
                    continue
                drop = group.use_eagle and index not in given_back
                if known is not None and known[1] == candidate and not group.use_eagle:
                    continue  # the same question has the same answer
                max_length = self._with_margin(group, candidate, block_hashes) if drop else candidate
                hit = self._look_up(group, block_hashes, max_length, drop)
                if drop:
                    given_back.add(index)
                elif hit[1] < candidate:
                    given_back.clear()
                hits[index] = hit
                candidate = hit[1]
                longest = max(longest, candidate)
            if candidate >= hit_length:
                break
            hit_length = candidate
            if one_round:
                break
        return self._columns(hits, hit_length), hit_length, longest - hit_length

    def _look_up(
        self, group: SpecGroup, block_hashes: Sequence[BlockHash], max_length: int, drop: bool
    ) -> tuple[HitBlocks, int]:
        return group.manager_cls.find_longest_cache_hit(
            block_hashes,
            max_length,
            group.group_ids,
            self.block_pool,
            group.spec,
            drop,
            self.cache_hit_alignment_tokens,
        )

    def _with_margin(self, group: SpecGroup, candidate: int, block_hashes: Sequence[BlockHash]) -> int:
        """Return the candidate and the unit that the group will give back; recurrent groups give nothing back."""
        if isinstance(group.spec, MambaSpec):
            return candidate
        fine = self.enable_partial_hash_hits and group.manager_cls.supports_fine_grained_hash_lookup
        margin = min(self.hash_block_size, group.spec.block_size) if fine else group.spec.block_size
        return min(candidate + margin, len(block_hashes) * self.hash_block_size)

    def _columns(self, hits: Sequence[tuple[HitBlocks, int] | None], hit_length: int) -> HitBlocks:
        columns: list[list[KVCacheBlock]] = [[] for _ in self.single_type_managers]
        for group, hit in zip(self.attention_groups, hits, strict=True):
            assert hit is not None
            for group_id, blocks in zip(group.group_ids, hit[0], strict=True):
                if isinstance(group.spec, FullAttentionSpec):
                    del blocks[cdiv(hit_length, group.spec.block_size) :]
                columns[group_id] = blocks
        return tuple(columns)

    # COMMIT

    def get_num_cacheable_tokens(self, num_computed_tokens: int, manager: SingleTypeKVCacheManager) -> int:
        """Return the longest prefix that a hit could use: aligned, and one block above for a group that gives it back."""
        aligned = self._align_cacheable(num_computed_tokens)
        if manager.use_eagle and aligned > 0:
            return min(num_computed_tokens, aligned + manager.block_size)
        return aligned

    def _align_cacheable(self, num_tokens: int) -> int:
        if self.enable_partial_hash_hits:
            return num_tokens
        return num_tokens // self.scheduler_block_size * self.scheduler_block_size


def get_kv_cache_coordinator(config: KVCacheConfig) -> KVCacheCoordinator:
    """Return the coordinator for a configuration."""
    if not config.options.enable_caching:
        return KVCacheCoordinator(config)
    if len(config.kv_cache_groups) == 1:
        return UnitaryKVCacheCoordinator(config)
    return HybridKVCacheCoordinator(config)
