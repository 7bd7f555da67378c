"""Bugs that shipped in vLLM whose fix cannot be undone here: the same mechanism is planted where it
can be reached.

Either the fix lies in what this package does not run (a kernel, the connector of another node), or
undoing it alone no longer has an effect, because a later change covers the case. What is wrong in
the cache then is what was wrong with the bug.
"""

from __future__ import annotations

from typing import Any

from cachewitness.engines.mutant import declared, mutant
from cachewitness.engines.source_edits import Edit, edited
from cachewitness.engines.source_patch import Patches, planted
from cachewitness_faults.vllm.modules import COORDINATOR, SCHEDULER, SINGLE

SPLIT = "_mamba_block_aligned_split"
HYBRID = "HybridKVCacheCoordinator"
ONLY = ("vllm",)


@mutant(
    name="vllm-gap-inside-a-block-never-closed",
    mirrors="vllm-project/vllm#40707",
    anomaly="no-progress",
    checker="progress",
    group="O",
    engines=ONLY,
)
@planted
def gap_inside_a_block_never_closed(patches: Patches) -> None:
    """A chunk that would end inside a block is cut to nothing, for ever.

    Round the end of every chunk but the last down to a block, also where that leaves nothing to
    compute.
    """

    def split(
        original: Any,
        scheduler: Any,
        request: Any,
        count: int,
        local: int = 0,
        *rest: Any,
        **kwargs: Any,
    ) -> Any:
        start = request.num_computed_tokens + local
        end = start + original(request, count, local, *rest, **kwargs)
        if end < max(request.num_prompt_tokens, request.num_tokens - 1):
            end -= end % scheduler.cache_config.block_size
        return max(end - start, 0)

    patches.method(SCHEDULER, "Scheduler", SPLIT, split)


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
    patches.method(
        SINGLE,
        "SingleTypeKVCacheManager",
        "_has_partial_local_hit",
        lambda original, single, *args: False,
    )


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

    def allocate_new_computed_blocks(
        original: Any, coordinator: Any, *args: Any, **kwargs: Any
    ) -> None:
        given = [*args, *kwargs.values()]
        if any(given[0] in single.num_cached_block for single in coordinator.single_type_managers):
            original(*args, **kwargs)
        else:
            late[id(coordinator)] = tuple(given)

    def allocate_new_blocks(
        original: Any, coordinator: Any, request_id: str, *args: Any, **kwargs: Any
    ) -> Any:
        held = late.pop(id(coordinator), None)
        new: list[Any] = []
        tokens = [*args, *kwargs.values()]
        for group, single in enumerate(coordinator.single_type_managers):
            if held is not None:
                single.add_local_computed_blocks(held[0], held[1][group], held[2], held[3])
                if held[3] > 0:
                    single.allocate_external_computed_blocks(held[0], held[2], held[3])
            cross = type(single).__name__ == "CrossAttentionManager"
            new.append(
                single.allocate_new_blocks(request_id, tokens[2] if cross else tokens[0], tokens[1])
            )
        return tuple(new)

    patches.method(
        COORDINATOR,
        "KVCacheCoordinator",
        "allocate_new_computed_blocks",
        allocate_new_computed_blocks,
    )
    patches.method(COORDINATOR, "KVCacheCoordinator", "allocate_new_blocks", allocate_new_blocks)


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

    List what has left a window with what is given back at the end, where the request may have got
    it anew.
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

    patches.method(
        SINGLE, "SlidingWindowManager", "_remove_blocks_in_range", _remove_blocks_in_range
    )
    patches.method(SINGLE, "SlidingWindowManager", "pop_blocks_for_free", pop_blocks_for_free)


IMITATED = (
    *declared(globals()),
    edited(
        Edit(
            SINGLE,
            "MambaManager",
            "remove_skipped_blocks",
            "cdiv(processed_computed_tokens, self.block_size) - 1",
            "cdiv(processed_computed_tokens, self.block_size)",
        ),
        name="vllm-state-freed-before-it-is-copied",
        what="A running state is given back before the step that goes on from it has copied it.",
        mirrors="vllm-project/vllm#33997",
        anomaly="aliased-write",
        checker="ownership",
        group="D",
    ),
)
