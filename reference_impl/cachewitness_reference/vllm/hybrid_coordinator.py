"""The coordinator: many groups, one answer.

A hit must be a hit in every group at the same length. Full attention has every shorter prefix of
what it has, so it only ever trims; a window or a state exists at few lengths only, and accepting a
shorter one may cost another group its own. So the groups shrink a candidate in turn until a whole
round accepts it. The length only falls, hence it ends.

Hits are multiples of the *alignment*: the LCM of the groups' block sizes, or the hash block where
hits may end inside a block. Groups with equal specs are looked up together. If one group alone
matched further than all of them together, the difference is a prefix that somebody shares and a
prunable group has not kept: the shared-prefix boundary.

EAGLE's drafter needs the hidden state of the token before the first new one, so attention groups
match one unit beyond the candidate and give it back, once per candidate.

Source: vLLM, `v1/core/kv_cache_coordinator.py` (0.33.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cachewitness_reference.primitives import BlockHash, GroupId
from cachewitness_reference.vllm.block_pool import BlockPool
from cachewitness_reference.vllm.config import KVCacheConfig
from cachewitness_reference.vllm.coordinator import (
    HitBlocks,
    KVCacheCoordinator,
    UnitaryKVCacheCoordinator,
)
from cachewitness_reference.vllm.key_index import KVCacheBlock
from cachewitness_reference.vllm.kv_cache_interface import FullAttentionSpec, KVCacheSpec, MambaSpec
from cachewitness_reference.vllm.single_type_manager import SingleTypeKVCacheManager, cdiv


@dataclass
class SpecGroup:
    """Groups with one spec, looked up together. `use_eagle` if any of them has EAGLE's layers."""

    spec: KVCacheSpec
    group_ids: list[GroupId]
    manager_cls: type[SingleTypeKVCacheManager]
    use_eagle: bool


class HybridKVCacheCoordinator(KVCacheCoordinator):
    """Several groups: the longest length that all of them accept."""

    def __init__(self, config: KVCacheConfig, block_pool: BlockPool) -> None:
        super().__init__(config, block_pool)
        self.hash_block_size = config.hash_block_size
        self.cache_hit_alignment_tokens = (
            self.hash_block_size if self.enable_partial_hash_hits else self.scheduler_block_size
        )
        self.attention_groups = self._spec_groups()
        for manager in self.single_type_managers:
            manager.cache_hit_alignment_tokens = self.cache_hit_alignment_tokens
        for group in self.attention_groups:
            for group_id in group.group_ids:
                self.single_type_managers[group_id].use_eagle = group.use_eagle

    def _spec_groups(self) -> list[SpecGroup]:
        groups: list[SpecGroup] = []
        for manager in self.single_type_managers:
            group_id = manager.kv_cache_group_id
            spec = manager.kv_cache_spec
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

        With full attention and one other spec a single round suffices: what full attention has, it
        has at every length.
        """
        groups = self.attention_groups
        hits: list[tuple[HitBlocks, int] | None] = [None] * len(groups)
        one_round = len(groups) == 2 and isinstance(groups[0].spec, FullAttentionSpec)
        hit_length = max_cache_hit_length
        longest = 0
        given_back: set[int] = (
            set()
        )  # groups that gave their EAGLE unit back at the current candidate
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
                max_length = (
                    self._with_margin(group, candidate, block_hashes) if drop else candidate
                )
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

    def _with_margin(
        self, group: SpecGroup, candidate: int, block_hashes: Sequence[BlockHash]
    ) -> int:
        """Return the candidate and the unit that the group will give back; recurrent groups give
        nothing back.
        """
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

    def get_num_cacheable_tokens(
        self, num_computed_tokens: int, manager: SingleTypeKVCacheManager
    ) -> int:
        """Return the longest prefix that a hit could use: aligned, and one block above for a
        group that gives it back.
        """
        aligned = self._align_cacheable(num_computed_tokens)
        if manager.use_eagle and aligned > 0:
            return min(num_computed_tokens, aligned + manager.block_size)
        return aligned

    def _align_cacheable(self, num_tokens: int) -> int:
        if self.enable_partial_hash_hits:
            return num_tokens
        return num_tokens // self.scheduler_block_size * self.scheduler_block_size


def get_kv_cache_coordinator(
    config: KVCacheConfig, block_pool: BlockPool | None = None
) -> KVCacheCoordinator:
    """Return the coordinator for a configuration, over a pool of its own unless one is given."""
    options = config.options
    pool = block_pool or BlockPool(
        config.num_blocks, config.hash_block_size, options.enable_kv_cache_events
    )
    if not options.enable_caching:
        return KVCacheCoordinator(config, pool)
    if len(config.kv_cache_groups) == 1:
        return UnitaryKVCacheCoordinator(config, pool)
    return HybridKVCacheCoordinator(config, pool)
