"""Mechanisms of bugs that shipped in vLLM, past its own unit tests, planted into its code again.

They need more than one method called once: several steps, several groups of caches, block sizes that differ, speculative
look-ups, hits that end inside a block, the scheduler's cut of chunks together with what the managers keep.
"""

from __future__ import annotations

from typing import Any

from harness.engines.mutant import declared, mutant
from harness.engines.real_vllm.patch import COORDINATOR, MANAGER, POOL, SCHEDULER, SINGLE, UTILS, Patches, planted

SPLIT = "_mamba_block_aligned_split"
HYBRID = "HybridKVCacheCoordinator"
ONLY = ("vllm",)


@mutant(
    name="vllm-chunk-ends-off-the-grid",
    mirrors="vllm-project/vllm#47861, vllm-project/vllm#48970",
    anomaly="fabricated-snapshot",
    checker="no-fabricated-snapshots",
    group="A",
    engines=ONLY,
)
@planted
def chunk_ends_off_the_grid(patches: Patches) -> None:
    """A chunk ends between boundaries, and its state is keyed at the next.

    Let a chunk end wherever the budget ends; the running state is later keyed as if it stood at the boundary.
    """
    patches.method(SCHEDULER, "Scheduler", SPLIT, lambda original, scheduler, request, count, *a, **k: count)


@mutant(
    name="vllm-split-on-the-smallest-grid",
    mirrors="vllm-project/vllm#54076",
    anomaly="fabricated-snapshot",
    checker="no-fabricated-snapshots",
    group="M",
    engines=ONLY,
)
@planted
def split_on_the_smallest_grid(patches: Patches) -> None:
    """Chunks are cut in units of the smallest block.

    Cut chunks in units of the smallest block of all groups, where a state's block is larger.
    """

    def split(original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        config = scheduler.cache_config
        whole, config.block_size = config.block_size, scheduler.hash_block_size
        try:
            return original(*args, **kwargs)
        finally:
            config.block_size = whole

    patches.method(SCHEDULER, "Scheduler", SPLIT, split)


@mutant(
    name="vllm-gap-inside-a-block-never-closed",
    mirrors="vllm-project/vllm#40707",
    anomaly="stuck",
    checker="progress",
    group="O",
    engines=ONLY,
)
@planted
def gap_inside_a_block_never_closed(patches: Patches) -> None:
    """A chunk that would end inside a block is cut to nothing, for ever.

    Round the end of every chunk but the last down to a block, also where that leaves nothing to compute.
    """

    def split(original: Any, scheduler: Any, request: Any, count: int, local: int = 0, *rest: Any, **kwargs: Any) -> Any:
        start = request.num_computed_tokens + local
        end = start + original(request, count, local, *rest, **kwargs)
        if end < max(request.num_prompt_tokens, request.num_tokens - 1):
            end -= end % scheduler.cache_config.block_size
        return max(end - start, 0)

    patches.method(SCHEDULER, "Scheduler", SPLIT, split)


@mutant(
    name="vllm-state-of-the-same-step-hit",
    mirrors="vllm-project/vllm#29387",
    anomaly="uncommitted-hit",
    checker="commit-order",
    group="B",
    engines=ONLY,
)
@planted
def state_of_the_same_step_hit(patches: Patches) -> None:
    """A state that this very step is to write is hit.

    Forget which states are only about to be written by the step that is being put together.
    """

    def get_num_blocks_to_allocate(original: Any, single: Any, *args: Any, **kwargs: Any) -> Any:
        single.cached_blocks_this_step.clear()
        return original(*args, **kwargs)

    patches.method(SINGLE, "MambaManager", "get_num_blocks_to_allocate", get_num_blocks_to_allocate)


@mutant(
    name="vllm-running-tail-keeps-its-key",
    mirrors="vllm-project/vllm#48375, vllm-project/vllm#57128",
    anomaly="state-position-skew",
    checker="safety-law",
    group="A",
    engines=ONLY,
)
@planted
def running_tail_keeps_its_key(patches: Patches) -> None:
    """The end of a prompt stays keyed at a block that is written on.

    Leave the key of a prompt's end at the block that the request goes on writing, not at the copy that was made.
    """
    patches.method(POOL, "BlockPool", "move_block_hashes", lambda original, pool, source, copy: None)


@mutant(
    name="vllm-partial-hit-written-in-place",
    mirrors="vllm-project/vllm#56196",
    anomaly="aliased-write",
    checker="ownership",
    group="H",
    engines=ONLY,
)
@planted
def partial_hit_written_in_place(patches: Patches) -> None:
    """A hit that ends inside a block goes on in that block."""
    patches.method(SINGLE, "SingleTypeKVCacheManager", "_has_partial_local_hit", lambda original, single, *args: False)


@mutant(
    name="vllm-connector-hit-resumed",
    mirrors="vllm-project/vllm#53505, vllm-project/vllm#46453",
    anomaly="group-misalignment",
    checker="safety-law",
    group="C",
    engines=ONLY,
)
@planted
def connector_hit_resumed(patches: Patches) -> None:
    """A hit that a connector was to complete is resumed without it.

    Look up as with a connector, which would bring the state, and go on from there although none brought anything.
    """
    inside: list[Any] = []

    def get_computed_blocks(original: Any, manager: Any, request: Any, max_cache_hit_length: Any = None) -> Any:
        if inside:
            return original(request, max_cache_hit_length)
        inside.append(request)
        try:
            return manager.get_computed_blocks_for_connector(request, max_cache_hit_length)[:3]
        finally:
            inside.pop()

    patches.method(MANAGER, "KVCacheManager", "get_computed_blocks", get_computed_blocks)


@mutant(
    name="vllm-longest-hit-of-any-group",
    mirrors="vllm-project/vllm#43090, LMCache/LMCache#4247",
    anomaly="group-misalignment",
    checker="safety-law",
    group="C",
    engines=ONLY,
)
@planted
def longest_hit_of_any_group(patches: Patches) -> None:
    """The longest hit of any group counts for all.

    Report the longest hit of any group and let the others start there with null columns.
    """

    def find_longest_cache_hit(original: Any, coordinator: Any, block_hashes: Any, length: int) -> Any:
        found, hits = coordinator.find_longest_cache_hit_per_group(block_hashes, length)
        longest, null = max(hits), coordinator.block_pool.null_block
        columns = [
            blocks + [null] * (-(-longest // single.block_size) - len(blocks))
            for blocks, single in zip(found, coordinator.single_type_managers, strict=True)
        ]
        return tuple(columns), longest, 0

    patches.method(COORDINATOR, HYBRID, "find_longest_cache_hit", find_longest_cache_hit)


@mutant(
    name="vllm-boundary-above-what-eagle-may-use",
    mirrors="vllm-project/vllm#53504",
    anomaly="lost-replay-boundary",
    checker="replay-boundary-retained",
    group="N",
    engines=ONLY,
)
@planted
def boundary_above_what_eagle_may_use(patches: Patches) -> None:
    """The state that is kept for a replay lies above what a speculative look-up may use.

    Keep the boundary of a plain replay, which a speculative look-up gives back.
    """
    patches.function(COORDINATOR, "replay_boundaries", lambda original, tokens, *args, **kwargs: (tokens - 1,))


@mutant(
    name="vllm-eagle-unit-dropped-in-every-round",
    mirrors="vllm-project/vllm#51771, vllm-project/vllm#54360",
    anomaly="lost-hit",
    checker="reuse-floor",
    group="N",
    engines=ONLY,
)
@planted
def eagle_unit_dropped_in_every_round(patches: Patches) -> None:
    """Three groups that agree on a hit give a unit back in every round."""
    dropping = [False]

    def whole(original: Any, coordinator: Any, *args: Any) -> Any:
        dropping[0] = bool(coordinator.drop_eagle_group_ids)
        try:
            return original(*args)
        finally:
            dropping[0] = False

    def one(original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
        if dropping[0]:
            kwargs["drop_eagle_block"] = True
        return original(*args, **kwargs)

    patches.method(COORDINATOR, HYBRID, "find_longest_cache_hit", whole)
    patches.method(SINGLE, "SlidingWindowManager", "find_longest_cache_hit", one)


@mutant(
    name="vllm-eagle-tail-not-keyed",
    mirrors="vllm-project/vllm#52419",
    anomaly="lost-replay-boundary",
    checker="replay-boundary-retained",
    group="N",
    engines=ONLY,
)
@planted
def eagle_tail_not_keyed(patches: Patches) -> None:
    """The end of a prompt inside a block is not keyed.

    Round what is keyed down to the coarse grid although hits end on the fine one.
    """

    def _align_cacheable(original: Any, coordinator: Any, count: int) -> Any:
        return count // coordinator.scheduler_block_size * coordinator.scheduler_block_size

    patches.method(COORDINATOR, HYBRID, "_align_cacheable", _align_cacheable)


@mutant(
    name="vllm-allocated-before-the-next-group-holds",
    mirrors="vllm-project/vllm#33775",
    anomaly="aliased-write",
    checker="ownership",
    group="H",
    engines=ONLY,
)
@planted
def allocated_before_the_next_group_holds(patches: Patches) -> None:
    """A group takes new blocks before the next one holds its hits."""
    late: dict[int, tuple[Any, ...]] = {}

    def allocate_new_computed_blocks(original: Any, coordinator: Any, *args: Any, **kwargs: Any) -> None:
        given = [*args, *kwargs.values()]
        if any(given[0] in single.num_cached_block for single in coordinator.single_type_managers):
            original(*args, **kwargs)
        else:
            late[id(coordinator)] = tuple(given)

    def allocate_new_blocks(original: Any, coordinator: Any, request_id: str, *args: Any, **kwargs: Any) -> Any:
        held = late.pop(id(coordinator), None)
        new: list[Any] = []
        tokens = [*args, *kwargs.values()]
        for group, single in enumerate(coordinator.single_type_managers):
            if held is not None:
                single.add_local_computed_blocks(held[0], held[1][group], held[2], held[3])
                if held[3] > 0:
                    single.allocate_external_computed_blocks(held[0], held[2], held[3])
            cross = type(single).__name__ == "CrossAttentionManager"
            new.append(single.allocate_new_blocks(request_id, tokens[2] if cross else tokens[0], tokens[1]))
        return tuple(new)

    patches.method(COORDINATOR, "KVCacheCoordinator", "allocate_new_computed_blocks", allocate_new_computed_blocks)
    patches.method(COORDINATOR, "KVCacheCoordinator", "allocate_new_blocks", allocate_new_blocks)


@mutant(
    name="vllm-freed-by-what-is-only-scheduled",
    mirrors="vllm-project/vllm#33997",
    anomaly="premature-release",
    checker="window-liveness",
    group="G",
    engines=ONLY,
)
@planted
def freed_by_what_is_only_scheduled(patches: Patches) -> None:
    """A window is freed by tokens that are not computed yet.

    Free what has left the window by the count that will stand when the step has run.
    """
    ahead = [0]

    def allocate_slots(original: Any, manager: Any, request: Any, count: int, *args: Any, **kwargs: Any) -> Any:
        ahead[0] = count
        try:
            return original(request, count, *args, **kwargs)
        finally:
            ahead[0] = 0

    def remove_skipped_blocks(original: Any, single: Any, request_id: str, count: int, *args: Any, **kwargs: Any) -> Any:
        return original(request_id, count + ahead[0], *args, **kwargs)

    patches.method(MANAGER, "KVCacheManager", "allocate_slots", allocate_slots)
    patches.method(SINGLE, "SlidingWindowManager", "remove_skipped_blocks", remove_skipped_blocks)


@mutant(
    name="vllm-state-freed-before-it-is-copied",
    mirrors="vllm-project/vllm#33997",
    anomaly="premature-release",
    checker="window-liveness",
    group="D",
    engines=ONLY,
)
@planted
def state_freed_before_it_is_copied(patches: Patches) -> None:
    """A running state is given back before it was read.

    Give the running state back when the next block is taken, before the next step has read it.
    """

    def remove_skipped_blocks(original: Any, single: Any, request_id: str, count: int, *args: Any, **kwargs: Any) -> Any:
        return original(request_id, count + single.block_size, *args, **kwargs)

    patches.method(SINGLE, "MambaManager", "remove_skipped_blocks", remove_skipped_blocks)


@mutant(
    name="vllm-window-block-listed-twice",
    mirrors="vllm-project/vllm#42571",
    anomaly="double-free",
    checker="ownership",
    group="H",
    engines=ONLY,
)
@planted
def window_block_listed_twice(patches: Patches) -> None:
    """A block that a request got twice is given back twice.

    List what has left a window with what is given back at the end, where the request may have got it anew.
    """
    left: dict[tuple[int, str], list[Any]] = {}

    def _remove_blocks_in_range(original: Any, single: Any, request_id: str, *args: Any) -> None:
        before = list(single.req_to_blocks.get(request_id, ()))
        original(request_id, *args)
        after = single.req_to_blocks.get(request_id, ())
        gone = [old for old, new in zip(before, after, strict=True) if old is not new]
        left.setdefault((id(single), request_id), []).extend(gone)

    def pop_blocks_for_free(original: Any, single: Any, request_id: str) -> Any:
        blocks = original(request_id)
        again = left.pop((id(single), request_id), [])
        return blocks + [block for block in again if any(block is held for held in blocks)]

    patches.method(SINGLE, "SlidingWindowManager", "_remove_blocks_in_range", _remove_blocks_in_range)
    patches.method(SINGLE, "SlidingWindowManager", "pop_blocks_for_free", pop_blocks_for_free)


@mutant(
    name="vllm-image-at-the-end-left-out",
    mirrors="vllm-project/vllm#36622",
    anomaly="cross-identity-hit",
    checker="identity",
    group="I",
    engines=ONLY,
)
@planted
def image_at_the_end_left_out(patches: Patches) -> None:
    """An image that ends with a block is not in its key.

    Leave an image out of the key of the block whose end it reaches exactly.
    """

    def _gen_mm_extra_hash_keys(original: Any, request: Any, start: int, end: int, first: int) -> Any:
        keys, further = original(request, start, end, first)
        places = {feature.identifier: feature.mm_position for feature in request.mm_features}
        ended = {name for name, place in places.items() if place.offset + place.length == end}
        return [key for key in keys if key[1] not in ended], further

    patches.function(UTILS, "_gen_mm_extra_hash_keys", _gen_mm_extra_hash_keys)


@mutant(
    name="vllm-parts-of-identity-untagged",
    mirrors="vllm-project/vllm#44701",
    anomaly="cross-identity-hit",
    checker="identity",
    group="I",
    engines=ONLY,
)
@planted
def parts_of_identity_untagged(patches: Patches) -> None:
    """A salt and an adapter of one name make one key.

    Put a salt and an adapter into the key by their bare names.
    """

    def generate_block_hash_extra_keys(original: Any, *args: Any, **kwargs: Any) -> Any:
        keys, further = original(*args, **kwargs)
        bare = {"lora": 2, "cache_salt": 2}
        return tuple(part[1 : bare[part[0]]] if part[0] in bare else part for part in keys or ()) or None, further

    patches.function(UTILS, "generate_block_hash_extra_keys", generate_block_hash_extra_keys)


SHIPPED = declared(globals())
