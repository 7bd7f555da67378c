"""Faults in what is found."""

from __future__ import annotations

from typing import Any

from harness.engines.fault_tools import BOTH, REFERENCE, core, groups, wrap
from harness.engines.manager_height import ManagerHeight
from harness.engines.mutant import Mutant


def hit_is_maximum_over_groups(engine: ManagerHeight) -> None:
    """Report the longest hit of any group and let the others start there with null columns."""
    manager = core(engine)
    pool, coordinator = manager.block_pool, manager.coordinator

    def find_longest_cache_hit(original: Any, block_hashes: Any, max_length: int) -> Any:
        blocks, hit, further = original(block_hashes, max_length)
        if not further:
            return blocks, hit, further
        longest = hit + further
        columns = []
        for group, single in enumerate(coordinator.single_type_managers):
            scale = single.block_size // pool.hash_block_size
            found = []
            for column in range(longest // single.block_size):
                cached = pool.get_cached_block(block_hashes[(column + 1) * scale - 1], [group])
                found.append(cached[0] if cached and type(single).__name__ == "FullAttentionManager" else pool.null_block)
            columns.append(found)
        return tuple(columns), longest, 0

    wrap(coordinator, "find_longest_cache_hit", find_longest_cache_hit)


def lookup_one_unit_short(engine: ManagerHeight) -> None:
    """Look for a hit one unit below what may be hit, to be on the safe side."""
    coordinator = core(engine).coordinator
    unit = max(single.block_size for single in coordinator.single_type_managers)

    def find_longest_cache_hit(original: Any, block_hashes: Any, max_length: int) -> Any:
        return original(block_hashes, max(max_length - unit, 0))

    wrap(coordinator, "find_longest_cache_hit", find_longest_cache_hit)


def window_looked_up_short(engine: ManagerHeight) -> None:
    """Be content with one block less than the window needs."""
    pool, coordinator = core(engine).block_pool, core(engine).coordinator
    windows = [
        group for group, single in enumerate(coordinator.single_type_managers) if single in groups(engine, "SlidingWindow")
    ]

    def find_longest_cache_hit(original: Any, *args: Any, **kwargs: Any) -> Any:
        answer = original(*args, **kwargs)
        for group in windows:
            held = [index for index, block in enumerate(answer[0][group]) if not block.is_null]
            if len(held) > 1:
                answer[0][group][held[0]] = pool.null_block
        return answer

    wrap(coordinator, "find_longest_cache_hit", find_longest_cache_hit)


def last_token_hit(engine: ManagerHeight) -> None:
    """Let the last token be hit as well."""

    def find_longest_cache_hit(original: Any, block_hashes: Any, max_length: int) -> Any:
        return original(block_hashes, max_length + 1)

    wrap(core(engine).coordinator, "find_longest_cache_hit", find_longest_cache_hit)


def key_kept_after_eviction(engine: ManagerHeight) -> None:
    """Leave an evicted block in the index."""
    pool = core(engine).block_pool

    def _maybe_evict_cached_block(original: Any, block: Any) -> Any:
        key = block.block_hash
        done = original(block)
        if key is not None:
            pool.cached_block_hash_to_block.insert(key, block)
        return done

    wrap(pool, "_maybe_evict_cached_block", _maybe_evict_cached_block)


def reset_keeps_keys(engine: ManagerHeight) -> None:
    """Say that the cache was reset, and reset nothing."""
    wrap(core(engine), "reset_prefix_cache", lambda original: True)


def shared_prefix_boundary_forgotten(engine: ManagerHeight) -> None:
    """Forget where a prefix shared with others goes on; the state there is not kept for the next sibling."""

    def get_computed_blocks(original: Any, request: Any) -> Any:
        blocks, hit, _ = original(request)
        return blocks, hit, 0

    wrap(core(engine), "get_computed_blocks", get_computed_blocks)


def hit_is_last_groups(engine: ManagerHeight) -> None:
    """Let the group that is looked up last say how long the hit is, whatever the others have."""
    coordinator = core(engine).coordinator

    def find_longest_cache_hit(original: Any, block_hashes: Any, max_length: int) -> Any:
        groups = getattr(coordinator, "attention_groups", ())
        if not groups:
            return original(block_hashes, max_length)
        hits = [coordinator._look_up(group, block_hashes, max_length, False) for group in groups]
        columns = coordinator._columns(hits, hits[-1][1])
        return columns, hits[-1][1], 0

    wrap(coordinator, "find_longest_cache_hit", find_longest_cache_hit)


def trimmed_hit_keeps_state(engine: ManagerHeight) -> None:
    """Leave a token to compute of a prompt that is cached whole, and go on from the state behind it."""

    def find_longest_cache_hit(original: Any, block_hashes: Any, max_length: int) -> Any:
        blocks, hit, further = original(block_hashes, max_length + 1)
        return blocks, min(hit, max_length), further

    wrap(core(engine).coordinator, "find_longest_cache_hit", find_longest_cache_hit)


def columns_in_anothers_units(engine: ManagerHeight) -> None:
    """Put a state into the column that it would have if its group had the smallest block size of all."""
    coordinator = core(engine).coordinator
    finest = min(single.block_size for single in coordinator.single_type_managers)

    def find_longest_cache_hit(original: Any, *args: Any) -> Any:
        answer = original(*args)
        for single, blocks in zip(coordinator.single_type_managers, answer[0], strict=True):
            if blocks and single in groups(engine, "Mamba"):
                blocks[:-1] = [single._null_block] * (answer[1] // finest - 1)
        return answer

    wrap(coordinator, "find_longest_cache_hit", find_longest_cache_hit)


def windows_found_from_the_start_alone(engine: ManagerHeight) -> None:
    """Refuse a window of which nothing is cached before it, as if everything before it were read."""
    coordinator = core(engine).coordinator

    def look_up(original: Any, group: Any, *args: Any) -> Any:
        blocks, hit = original(group, *args)
        gap = any(block.is_null for column in blocks for block in column)
        if gap and group.manager_cls.__name__ == "SlidingWindowManager":
            return tuple([] for _ in blocks), 0
        return blocks, hit

    if hasattr(coordinator, "_look_up"):
        wrap(coordinator, "_look_up", look_up)


def eagle_unit_given_back_twice(engine: ManagerHeight) -> None:
    """Give the unit back that a speculative look-up matched beyond, and another one for alignment."""
    coordinator = core(engine).coordinator
    unit = max(single.block_size for single in coordinator.single_type_managers)

    def find_longest_cache_hit(original: Any, block_hashes: Any, max_length: int) -> Any:
        return original(block_hashes, max(max_length - unit, 0) if coordinator.eagle_group_ids else max_length)

    wrap(coordinator, "find_longest_cache_hit", find_longest_cache_hit)


MUTANTS = (
    Mutant(
        "hit-is-maximum-over-groups",
        "the longest hit of any group counts for all of them",
        "LMCache/LMCache#4247, vllm-project/vllm#43090",
        "group-misalignment",
        "safety-law",
        hit_is_maximum_over_groups,
        BOTH,
        group="C",
    ),
    Mutant(
        "lookup-one-unit-short",
        "a look-up stops one unit too early",
        "vllm-project/vllm#43650",
        "lost-hit",
        "reuse-floor",
        lookup_one_unit_short,
        BOTH,
        group="N",
    ),
    Mutant(
        "window-looked-up-short",
        "a hit is content with one block less than the window reaches into",
        "sgl-project/sglang#34870",
        "window-hole",
        "window-liveness",
        window_looked_up_short,
        BOTH,
        group="G",
    ),
    Mutant(
        "last-token-hit",
        "a prompt that is cached whole leaves no token to compute",
        "JamePeng/llama-cpp-python#178",
        "nothing-to-compute",
        "safety-law",
        last_token_hit,
        REFERENCE,
        group="P",
    ),
    Mutant(
        "key-kept-after-eviction",
        "an evicted block can still be found",
        "vllm-project/vllm#4761, ovg-project/kvcached#362",
        "stale-hit",
        "safety-law",
        key_kept_after_eviction,
        BOTH,
        group="I",
    ),
    Mutant(
        "reset-keeps-keys",
        "a reset reports success and forgets nothing",
        "vllm-project/vllm#57727",
        "stale-hit",
        "safety-law",
        reset_keeps_keys,
        BOTH,
        group="L",
    ),
    Mutant(
        "shared-prefix-boundary-forgotten",
        "the state at a shared-prefix boundary is not kept, against the declared policy",
        "vllm-project/vllm#45238",
        "lost-shared-prefix-boundary",
        "replay-boundary-retained",
        shared_prefix_boundary_forgotten,
        REFERENCE,
        group="N",
    ),
    Mutant(
        "hit-is-last-groups",
        "the group that is looked up last says how long a hit is",
        "NVIDIA/TensorRT-LLM#10875",
        "group-misalignment",
        "safety-law",
        hit_is_last_groups,
        REFERENCE,
        group="C",
    ),
    Mutant(
        "trimmed-hit-keeps-state",
        "a hit of everything is cut by a token, and resumes from the state behind it",
        "ModelEngine-Group/unified-cache-management#1130",
        "state-position-skew",
        "safety-law",
        trimmed_hit_keeps_state,
        REFERENCE,
        group="P",
    ),
    Mutant(
        "columns-in-anothers-units",
        "a state's column is counted in blocks of another group",
        "local-inference-lab/vllm#672",
        "group-misalignment",
        "safety-law",
        columns_in_anothers_units,
        REFERENCE,
        group="M",
    ),
    Mutant(
        "windows-found-from-the-start-alone",
        "a window is found only if everything before it is cached too",
        "ml-explore/mlx-lm#1253",
        "lost-hit",
        "reuse-floor",
        windows_found_from_the_start_alone,
        REFERENCE,
        group="N",
    ),
    Mutant(
        "eagle-unit-given-back-twice",
        "what a speculative look-up matched beyond is given back twice",
        "vllm-project/vllm-ascend#9247",
        "lost-hit",
        "reuse-floor",
        eagle_unit_given_back_twice,
        REFERENCE,
        group="N",
    ),
)
