"""Faults in what is found."""

from __future__ import annotations

from typing import Any

from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import BOTH, REFERENCE, core, groups, wrap
from cachewitness.engines.mutant import declared, mutant


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
    name="prompt-logprobs-from-the-cache",
    mirrors="vllm-project/vllm v1/core/kv_cache_manager.py (prefix_cache_lookup_enabled)",
    anomaly="unwanted-hit",
    checker="safety-law",
    group="M",
    engines=BOTH,
)
def prompt_logprobs_from_the_cache(engine: Driver) -> None:
    """Who asks for log-probabilities of its prompt is given what is cached, without any.

    Look up every request, whatever its client wants to know of its prompt.
    """

    def get_computed_blocks(original: Any, request: Any) -> Any:
        skips = request.skip_reading_prefix_cache
        request.skip_reading_prefix_cache = False
        found = original(request)
        request.skip_reading_prefix_cache = skips
        return found

    wrap(core(engine), "get_computed_blocks", get_computed_blocks)


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


@mutant(
    name="second-full-group-beyond-the-hit",
    mirrors="vllm-project/vllm v1/core/kv_cache_coordinator.py (blocks of full attention cut)",
    anomaly="hit-beyond-resume",
    checker="safety-law",
    group="M",
    engines=REFERENCE,
)
def second_full_group_beyond_the_hit(engine: Driver) -> None:
    """Of two groups of full attention the first alone is cut to the hit; the other keeps the blocks
    that it found beyond.
    """
    coordinator = core(engine).coordinator
    if not hasattr(coordinator, "_columns"):
        return

    def columns(original: Any, hits: Any, hit_length: int) -> Any:
        found = [[list(blocks) for blocks in hit[0]] for hit in hits]
        cut = list(original(hits, hit_length))
        full = [
            (group, blocks)
            for group, blocks in zip(coordinator.attention_groups, found, strict=True)
            if type(group.spec).__name__ == "FullAttentionSpec"
        ]
        for group, whole in full[1:]:
            for group_id, blocks in zip(group.group_ids, whole, strict=True):
                cut[group_id] = blocks
        return tuple(cut)

    wrap(coordinator, "_columns", columns)


@mutant(
    name="eagle-peeks-at-no-block",
    mirrors="vllm-project/vllm v1/core/kv_cache_coordinator.py (the block that is given back)",
    anomaly="lost-hit",
    checker="reuse-floor",
    group="N",
    engines=REFERENCE,
)
def eagle_peeks_at_no_block(engine: Driver) -> None:
    """A speculative look-up gives a block back and has not looked one further, so a sibling's hit
    is a block shorter.
    """
    coordinator = core(engine).coordinator
    if hasattr(coordinator, "_with_margin"):
        wrap(coordinator, "_with_margin", lambda original, group, candidate, hashes: candidate)


@mutant(
    name="eagle-gives-nothing-back",
    mirrors="vllm-project/vllm#49071",
    anomaly="undropped-hit",
    checker="speculative-drop",
    group="P",
    engines=REFERENCE,
)
def eagle_gives_nothing_back(engine: Driver) -> None:
    """A speculative look-up uses all that it matches, so the drafter lacks the hidden states of
    the last block.
    """
    coordinator = core(engine).coordinator
    for group in getattr(coordinator, "attention_groups", ()):
        group.use_eagle = False
    if hasattr(coordinator, "manager"):
        coordinator.manager.use_eagle = False


MUTANTS = declared(globals())
