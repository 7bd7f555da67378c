"""Simple faults in vLLM's own code: one method of a manager, of the coordinator, of the block pool
or of hashing is wrong.

What vLLM's unit tests are expected to see too; see `vllm_shipped` for what they did not.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from cachewitness.engines.mutant import declared, mutant
from cachewitness.engines.source_edits import Edit, edited
from cachewitness.engines.source_patch import Patches, arguments, planted
from cachewitness_faults.vllm.modules import COORDINATOR, MANAGER, POOL, SINGLE, UTILS

PRUNED = ("MambaManager", "SlidingWindowManager")
ONLY = ("vllm",)


@mutant(
    name="vllm-mask-shifted",
    mirrors="",
    anomaly="lost-replay-boundary",
    checker="replay-boundary-retained",
    group="N",
    engines=ONLY,
)
@planted
def mask_shifted(patches: Patches) -> None:
    """A retention mask is off by one.

    Keep the block after the one that is to be kept.
    """

    def reachable_block_mask(original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
        mask = original(*args, **kwargs)
        return mask if mask is None else [False, *mask[:-1]]

    for owner in PRUNED:
        patches.method(SINGLE, owner, "reachable_block_mask", reachable_block_mask)


@mutant(
    name="vllm-boundaries-dropped",
    mirrors="",
    anomaly="lost-replay-boundary",
    checker="replay-boundary-retained",
    group="N",
    engines=ONLY,
)
@planted
def boundaries_dropped(patches: Patches) -> None:
    """A retention mask forgets the replay boundary.

    Keep the interval's boundaries alone.
    """

    def reachable_block_mask(original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
        return original(**{**arguments(original, args, kwargs), "reachable_boundaries": ()})

    for owner in PRUNED:
        patches.method(SINGLE, owner, "reachable_block_mask", reachable_block_mask)


@mutant(
    name="vllm-mask-ignored",
    mirrors="",
    anomaly="over-dense-retention",
    checker="interval-sparsity",
    group="N",
    engines=ONLY,
)
@planted
def mask_ignored(patches: Patches) -> None:
    """A retention mask is ignored.

    Key every full block whatever the mask says.
    """

    def cache_full_blocks(original: Any, pool: Any, *args: Any, **kwargs: Any) -> Any:
        return original(**{**arguments(original, args, kwargs), "block_mask": None})

    patches.method(POOL, "BlockPool", "cache_full_blocks", cache_full_blocks)


@mutant(
    name="vllm-interval-halved",
    mirrors="",
    anomaly="over-dense-retention",
    checker="interval-sparsity",
    group="M",
    engines=ONLY,
)
@planted
def interval_halved(patches: Patches) -> None:
    """A retention interval is taken for half of it."""

    def reachable_block_mask(original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
        given = arguments(original, args, kwargs)
        interval = given["retention_interval"]
        return original(**{**given, "retention_interval": interval // 2 if interval else interval})

    for owner in PRUNED:
        patches.method(SINGLE, owner, "reachable_block_mask", reachable_block_mask)


@mutant(
    name="vllm-null-published",
    mirrors="",
    anomaly="fabricated-snapshot",
    checker="no-fabricated-snapshots",
    group="A",
    engines=ONLY,
)
@planted
def null_published(patches: Patches) -> None:
    """The null block is given a key.

    Forget that null columns are skipped when keys are given out.
    """

    def cache_full_blocks(original: Any, pool: Any, *args: Any, **kwargs: Any) -> Any:
        pool.null_block.reset_hash()
        pool.null_block.is_null = False
        try:
            return original(*args, **kwargs)
        finally:
            pool.null_block.is_null = True

    patches.method(POOL, "BlockPool", "cache_full_blocks", cache_full_blocks)


@mutant(
    name="vllm-window-released-early",
    mirrors="",
    anomaly="premature-release",
    checker="window-liveness",
    group="G",
    engines=ONLY,
)
@planted
def window_released_early(patches: Patches) -> None:
    """A window block is given back one token early.

    Count one token too many as out of the window.
    """
    patches.method(
        SINGLE,
        "SlidingWindowManager",
        "get_num_skipped_tokens",
        lambda original, single, count: original(count + 1),
    )


@mutant(
    name="vllm-window-looked-up-short",
    mirrors="",
    anomaly="window-hole",
    checker="window-liveness",
    group="G",
    engines=ONLY,
)
@planted
def window_looked_up_short(patches: Patches) -> None:
    """A hit needs one window block less.

    Be content with one block less than the window reaches into.
    """
    name = "_contiguous_blocks_for_hit"
    patches.method(
        SINGLE,
        "SlidingWindowManager",
        name,
        lambda original, cls, *a, **k: max(original(*a, **k) - 1, 1),
    )


@mutant(
    name="vllm-hits-count-as-room",
    mirrors="",
    anomaly="engine-crashed",
    checker="engine",
    group="H",
    engines=ONLY,
)
@planted
def hits_count_as_room(patches: Patches) -> None:
    """Blocks that are hit count as free room.

    Forget that blocks that are hit leave the free queue.
    """
    patches.method(
        SINGLE,
        "SingleTypeKVCacheManager",
        "_get_num_evictable_blocks",
        lambda original, cls, blocks: 0,
    )


@mutant(
    name="vllm-block-leaked",
    mirrors="",
    anomaly="leak",
    checker="ownership",
    group="H",
    engines=ONLY,
)
@planted
def block_leaked(patches: Patches) -> None:
    """One of several blocks is never given back."""

    def free_blocks(original: Any, pool: Any, ordered_blocks: Any) -> None:
        blocks = list(ordered_blocks)
        original(blocks[:-1] if len(blocks) > 2 else blocks)

    patches.method(POOL, "BlockPool", "free_blocks", free_blocks)


@mutant(
    name="vllm-freed-twice",
    mirrors="",
    anomaly="double-free",
    checker="ownership",
    group="H",
    engines=ONLY,
)
@planted
def freed_twice(patches: Patches) -> None:
    """A shared block is given back twice."""

    def free_blocks(original: Any, pool: Any, ordered_blocks: Any) -> None:
        blocks = list(ordered_blocks)
        shared = [block for block in blocks if not block.is_null and block.ref_cnt > 1]
        original(blocks + shared[:1])

    patches.method(POOL, "BlockPool", "free_blocks", free_blocks)


@mutant(
    name="vllm-reset-forgets-nothing",
    mirrors="",
    anomaly="stale-hit",
    checker="safety-law",
    group="L",
    engines=ONLY,
)
@planted
def reset_forgets_nothing(patches: Patches) -> None:
    """A reset reports success only.

    Say that the cache was reset, and reset nothing.
    """
    patches.method(POOL, "BlockPool", "reset_prefix_cache", lambda original, pool: True)


@mutant(
    name="vllm-key-survives-eviction",
    mirrors="",
    anomaly="stale-hit",
    checker="safety-law",
    group="I",
    engines=ONLY,
)
@planted
def key_survives_eviction(patches: Patches) -> None:
    """An evicted block is found.

    Leave an evicted block in the index.
    """

    def _maybe_evict_cached_block(original: Any, pool: Any, block: Any) -> Any:
        key = block.block_hash
        done = original(block)
        if key is not None:
            pool.cached_block_hash_to_block.insert(key, block)
        return done

    patches.method(POOL, "BlockPool", "_maybe_evict_cached_block", _maybe_evict_cached_block)


def _left_out(patches: Patches, tag: str) -> None:
    """Leave the parts with a tag out of the extra keys of blocks."""

    def generate_block_hash_extra_keys(original: Any, *args: Any, **kwargs: Any) -> Any:
        keys, further = original(*args, **kwargs)
        return tuple(part for part in keys or () if part[0] != tag) or None, further

    patches.function(UTILS, "generate_block_hash_extra_keys", generate_block_hash_extra_keys)


@mutant(
    name="vllm-salt-left-out",
    mirrors="",
    anomaly="cross-identity-hit",
    checker="identity",
    group="I",
    engines=ONLY,
)
@planted
def salt_left_out(patches: Patches) -> None:
    """The salt is not in the key.

    Leave the salt out of the key.
    """
    _left_out(patches, "cache_salt")


@mutant(
    name="vllm-adapter-left-out",
    mirrors="",
    anomaly="cross-identity-hit",
    checker="identity",
    group="I",
    engines=ONLY,
)
@planted
def adapter_left_out(patches: Patches) -> None:
    """The adapter is not in the key.

    Leave the adapter out of the key.
    """
    _left_out(patches, "lora")


@mutant(
    name="vllm-parent-left-out",
    mirrors="",
    anomaly="stale-hit",
    checker="safety-law",
    group="I",
    engines=ONLY,
)
@planted
def parent_left_out(patches: Patches) -> None:
    """A block's key is of its own tokens alone."""

    def hash_block_tokens(
        original: Any, function: Any, parent: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return original(function, None, *args, **kwargs)

    patches.function(UTILS, "hash_block_tokens", hash_block_tokens)


@mutant(
    name="vllm-last-token-hit",
    mirrors="",
    anomaly="nothing-to-compute",
    checker="safety-law",
    group="P",
    engines=ONLY,
)
@planted
def last_token_hit(patches: Patches) -> None:
    """The last token is hit as well."""

    def get_computed_blocks(
        original: Any, manager: Any, request: Any, max_cache_hit_length: Any = None
    ) -> Any:
        return original(request, request.num_tokens)

    patches.method(MANAGER, "KVCacheManager", "get_computed_blocks", get_computed_blocks)


@mutant(
    name="vllm-tail-keyed-early",
    mirrors="",
    anomaly="partial-commit",
    checker="commit-order",
    group="B",
    engines=ONLY,
)
@planted
def tail_keyed_early(patches: Patches) -> None:
    """A block is keyed before it is full.

    Key the block in which a chunk ends although the chunk does not fill it.
    """

    def cache_blocks(original: Any, coordinator: Any, request: Any, count: int) -> None:
        size = coordinator.single_type_managers[0].block_size
        original(request, min(count + size - 1, request.num_tokens))

    patches.method(COORDINATOR, "KVCacheCoordinator", "cache_blocks", cache_blocks)


@mutant(
    name="vllm-looked-up-short",
    mirrors="",
    anomaly="lost-hit",
    checker="reuse-floor",
    group="N",
    engines=ONLY,
)
@planted
def looked_up_short(patches: Patches) -> None:
    """A look-up stops one unit early.

    Look for a hit one unit below what may be hit, to be on the safe side.
    """

    def find_longest_cache_hit(
        original: Any, coordinator: Any, block_hashes: Any, length: int
    ) -> Any:
        return original(block_hashes, max(length - coordinator.scheduler_block_size, 0))

    for owner in ("UnitaryKVCacheCoordinator", "HybridKVCacheCoordinator"):
        patches.method(COORDINATOR, owner, "find_longest_cache_hit", find_longest_cache_hit)


_FORGETS = partial(
    edited, anomaly="premature-release", checker="window-liveness", level="scheduler", group="G"
)

SIMPLE = (
    *declared(globals()),
    _FORGETS(
        Edit(
            SINGLE,
            "RSWAManager",
            "remove_skipped_blocks",
            "window_start // bs",
            "cdiv(window_start, bs)",
        ),
        name="vllm-rswa-block-of-the-window-freed",
        what=(
            "The block in which the window over an answer begins is given back with those in front"
            " of it."
        ),
    ),
    _FORGETS(
        Edit(
            SINGLE,
            "RSWAManager",
            "remove_skipped_blocks",
            "cdiv(num_prompt_tokens, bs)",
            "num_prompt_tokens // bs",
        ),
        name="vllm-rswa-block-of-the-prompt-freed",
        what=(
            "The block in which the prompt ends is given back when the window over the answer has"
            " passed it."
        ),
    ),
    edited(
        Edit(
            SINGLE,
            "MambaManager",
            "pop_blocks_for_free",
            "self._num_retired_blocks.pop(request_id, None)",
            "pass",
        ),
        name="vllm-place-of-a-state-outlives-a-preemption",
        what="A preempted request keeps the place up to which its states were given back.",
        mirrors="vllm-project/vllm (last_state_block_idx of a request that was preempted)",
        anomaly="late-release",
        checker="timely-release",
        group="D",
        level="scheduler",
    ),
    edited(
        Edit(
            SINGLE,
            "SlidingWindowManager",
            "reachable_block_mask",
            "aligned = boundary_tokens // alignment_tokens * alignment_tokens",
            "aligned = boundary_tokens // block_size * block_size",
        ),
        name="vllm-window-kept-on-its-own-grid",
        what=(
            "The window that is kept for a replay ends at a block of its own group, where no hit"
            " ends."
        ),
        mirrors="vllm-project/vllm#53504 (the mask of windows whose blocks are finer than hits)",
        anomaly="lost-replay-boundary",
        checker="replay-boundary-retained",
        group="N",
    ),
)
