"""Faults in what is found."""

from __future__ import annotations

from typing import Any

from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import BOTH, REFERENCE, core, groups, wrap
from cachewitness.engines.mutant import declared, mutant


@mutant(
    name="hit-is-maximum-over-groups",
    mirrors="LMCache/LMCache#4247, vllm-project/vllm#43090",
    anomaly="group-misalignment",
    checker="safety-law",
    group="C",
    engines=BOTH,
)
def hit_is_maximum_over_groups(engine: Driver) -> None:
    """The longest hit of any group counts for all of them.

    Report the longest hit of any group and let the others start there with null columns.
    """
    manager = core(engine)
    pool = manager.block_pool
    coordinator = manager.coordinator

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
                found.append(
                    cached[0]
                    if cached and type(single).__name__ == "FullAttentionManager"
                    else pool.null_block
                )
            columns.append(found)
        return tuple(columns), longest, 0

    wrap(coordinator, "find_longest_cache_hit", find_longest_cache_hit)


@mutant(
    name="lookup-one-unit-short",
    mirrors="vllm-project/vllm#43650",
    anomaly="lost-hit",
    checker="reuse-floor",
    group="N",
    engines=BOTH,
)
def lookup_one_unit_short(engine: Driver) -> None:
    """A look-up stops one unit too early.

    Look for a hit one unit below what may be hit, to be on the safe side.
    """
    coordinator = core(engine).coordinator
    unit = max(single.block_size for single in coordinator.single_type_managers)

    def find_longest_cache_hit(original: Any, block_hashes: Any, max_length: int) -> Any:
        return original(block_hashes, max(max_length - unit, 0))

    wrap(coordinator, "find_longest_cache_hit", find_longest_cache_hit)


@mutant(
    name="window-looked-up-short",
    mirrors="sgl-project/sglang#34870",
    anomaly="window-hole",
    checker="window-liveness",
    group="G",
    engines=BOTH,
)
def window_looked_up_short(engine: Driver) -> None:
    """A hit is content with one block less than the window reaches into."""
    pool = core(engine).block_pool
    coordinator = core(engine).coordinator
    windows = [
        group
        for group, single in enumerate(coordinator.single_type_managers)
        if single in groups(engine, "SlidingWindow")
    ]

    def find_longest_cache_hit(original: Any, *args: Any, **kwargs: Any) -> Any:
        answer = original(*args, **kwargs)
        for group in windows:
            held = [index for index, block in enumerate(answer[0][group]) if not block.is_null]
            if len(held) > 1:
                answer[0][group][held[0]] = pool.null_block
        return answer

    wrap(coordinator, "find_longest_cache_hit", find_longest_cache_hit)


@mutant(
    name="last-token-hit",
    mirrors="JamePeng/llama-cpp-python#178",
    anomaly="nothing-to-compute",
    checker="safety-law",
    group="P",
    engines=REFERENCE,
)
def last_token_hit(engine: Driver) -> None:
    """A prompt that is cached whole leaves no token to compute.

    Let the last token be hit as well.
    """

    def find_longest_cache_hit(original: Any, block_hashes: Any, max_length: int) -> Any:
        return original(block_hashes, max_length + 1)

    wrap(core(engine).coordinator, "find_longest_cache_hit", find_longest_cache_hit)


@mutant(
    name="key-kept-after-eviction",
    mirrors="vllm-project/vllm#4761, ovg-project/kvcached#362",
    anomaly="stale-hit",
    checker="safety-law",
    group="I",
    engines=BOTH,
)
def key_kept_after_eviction(engine: Driver) -> None:
    """An evicted block can still be found.

    Leave an evicted block in the index.
    """
    pool = core(engine).block_pool

    def _maybe_evict_cached_block(original: Any, block: Any) -> Any:
        key = block.block_hash
        done = original(block)
        if key is not None:
            pool.cached_block_hash_to_block.insert(key, block)
        return done

    wrap(pool, "_maybe_evict_cached_block", _maybe_evict_cached_block)


@mutant(
    name="reset-keeps-keys",
    mirrors="vllm-project/vllm#57727",
    anomaly="stale-hit",
    checker="safety-law",
    group="L",
    engines=BOTH,
)
def reset_keeps_keys(engine: Driver) -> None:
    """A reset reports success and forgets nothing."""
    wrap(core(engine), "reset_prefix_cache", lambda original: True)


@mutant(
    name="shared-prefix-boundary-forgotten",
    mirrors="vllm-project/vllm#45238",
    anomaly="lost-shared-prefix-boundary",
    checker="replay-boundary-retained",
    group="N",
    engines=REFERENCE,
)
def shared_prefix_boundary_forgotten(engine: Driver) -> None:
    """The state at a shared-prefix boundary is not kept, against the declared policy.

    Forget where a prefix shared with others goes on; the state there is not kept for the next
    sibling.
    """

    def get_computed_blocks(original: Any, request: Any) -> Any:
        blocks, hit, _ = original(request)
        return blocks, hit, 0

    wrap(core(engine), "get_computed_blocks", get_computed_blocks)


@mutant(
    name="hit-is-last-groups",
    mirrors="NVIDIA/TensorRT-LLM#10875",
    anomaly="group-misalignment",
    checker="safety-law",
    group="C",
    engines=REFERENCE,
)
def hit_is_last_groups(engine: Driver) -> None:
    """The group that is looked up last says how long a hit is."""
    coordinator = core(engine).coordinator

    def find_longest_cache_hit(original: Any, block_hashes: Any, max_length: int) -> Any:
        groups = getattr(coordinator, "attention_groups", ())
        if not groups:
            return original(block_hashes, max_length)
        hits = [coordinator._look_up(group, block_hashes, max_length, False) for group in groups]
        columns = coordinator._columns(hits, hits[-1][1])
        return columns, hits[-1][1], 0

    wrap(coordinator, "find_longest_cache_hit", find_longest_cache_hit)


@mutant(
    name="trimmed-hit-keeps-state",
    mirrors="ModelEngine-Group/unified-cache-management#1130",
    anomaly="state-position-skew",
    checker="safety-law",
    group="P",
    engines=REFERENCE,
)
def trimmed_hit_keeps_state(engine: Driver) -> None:
    """A hit of everything is cut by a token, and resumes from the state behind it.

    Leave a token to compute of a prompt that is cached whole, and go on from the state behind it.
    """

    def find_longest_cache_hit(original: Any, block_hashes: Any, max_length: int) -> Any:
        blocks, hit, further = original(block_hashes, max_length + 1)
        return blocks, min(hit, max_length), further

    wrap(core(engine).coordinator, "find_longest_cache_hit", find_longest_cache_hit)


@mutant(
    name="columns-in-anothers-units",
    mirrors="local-inference-lab/vllm#672",
    anomaly="group-misalignment",
    checker="safety-law",
    group="M",
    engines=REFERENCE,
)
def columns_in_anothers_units(engine: Driver) -> None:
    """A state's column is counted in blocks of another group.

    Put a state into the column that it would have if its group had the smallest block size of all.
    """
    coordinator = core(engine).coordinator
    finest = min(single.block_size for single in coordinator.single_type_managers)

    def find_longest_cache_hit(original: Any, *args: Any) -> Any:
        answer = original(*args)
        for single, blocks in zip(coordinator.single_type_managers, answer[0], strict=True):
            if blocks and single in groups(engine, "Mamba"):
                blocks[:-1] = [single._null_block] * (answer[1] // finest - 1)
        return answer

    wrap(coordinator, "find_longest_cache_hit", find_longest_cache_hit)


@mutant(
    name="windows-found-from-the-start-alone",
    mirrors="ml-explore/mlx-lm#1253",
    anomaly="lost-hit",
    checker="reuse-floor",
    group="N",
    engines=REFERENCE,
)
def windows_found_from_the_start_alone(engine: Driver) -> None:
    """A window is found only if everything before it is cached too."""
    coordinator = core(engine).coordinator

    def look_up(original: Any, group: Any, *args: Any) -> Any:
        blocks, hit = original(group, *args)
        gap = any(block.is_null for column in blocks for block in column)
        if gap and group.manager_cls.__name__ == "SlidingWindowManager":
            return tuple([] for _ in blocks), 0
        return blocks, hit

    if hasattr(coordinator, "_look_up"):
        wrap(coordinator, "_look_up", look_up)


@mutant(
    name="eagle-unit-given-back-twice",
    mirrors="vllm-project/vllm-ascend#9247",
    anomaly="lost-hit",
    checker="reuse-floor",
    group="N",
    engines=REFERENCE,
)
def eagle_unit_given_back_twice(engine: Driver) -> None:
    """What a speculative look-up matched beyond is given back twice."""
    coordinator = core(engine).coordinator
    unit = max(single.block_size for single in coordinator.single_type_managers)

    def find_longest_cache_hit(original: Any, block_hashes: Any, max_length: int) -> Any:
        return original(
            block_hashes, max(max_length - unit, 0) if coordinator.eagle_group_ids else max_length
        )

    wrap(coordinator, "find_longest_cache_hit", find_longest_cache_hit)


MUTANTS = declared(globals())
