"""Simple faults in vLLM's own code: one method of a manager, of the coordinator, of the block pool or of hashing is wrong.

What vLLM's unit tests are expected to see too; see `vllm_shipped` for what they did not.
"""

from __future__ import annotations

from typing import Any

from harness.engines.mutant import Mutant
from harness.engines.real_vllm.patch import COORDINATOR, MANAGER, POOL, SINGLE, UTILS, Patches, arguments, planted

PRUNED = ("MambaManager", "SlidingWindowManager")
ONLY = ("vllm",)


def mask_shifted(patches: Patches) -> None:
    """Keep the block after the one that is to be kept."""

    def reachable_block_mask(original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
        mask = original(*args, **kwargs)
        return mask if mask is None else [False, *mask[:-1]]

    for owner in PRUNED:
        patches.method(SINGLE, owner, "reachable_block_mask", reachable_block_mask)


def boundaries_dropped(patches: Patches) -> None:
    """Keep the interval's boundaries alone."""

    def reachable_block_mask(original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
        return original(**{**arguments(original, args, kwargs), "reachable_boundaries": ()})

    for owner in PRUNED:
        patches.method(SINGLE, owner, "reachable_block_mask", reachable_block_mask)


def mask_ignored(patches: Patches) -> None:
    """Key every full block whatever the mask says."""

    def cache_full_blocks(original: Any, pool: Any, *args: Any, **kwargs: Any) -> Any:
        return original(**{**arguments(original, args, kwargs), "block_mask": None})

    patches.method(POOL, "BlockPool", "cache_full_blocks", cache_full_blocks)


def null_published(patches: Patches) -> None:
    """Forget that null columns are skipped when keys are given out."""

    def cache_full_blocks(original: Any, pool: Any, *args: Any, **kwargs: Any) -> Any:
        pool.null_block.reset_hash()
        pool.null_block.is_null = False
        try:
            return original(*args, **kwargs)
        finally:
            pool.null_block.is_null = True

    patches.method(POOL, "BlockPool", "cache_full_blocks", cache_full_blocks)


def window_released_early(patches: Patches) -> None:
    """Count one token too many as out of the window."""
    patches.method(
        SINGLE, "SlidingWindowManager", "get_num_skipped_tokens", lambda original, single, count: original(count + 1)
    )


def window_looked_up_short(patches: Patches) -> None:
    """Be content with one block less than the window reaches into."""
    name = "_contiguous_blocks_for_hit"
    patches.method(SINGLE, "SlidingWindowManager", name, lambda original, cls, *a, **k: max(original(*a, **k) - 1, 1))


def hits_count_as_room(patches: Patches) -> None:
    """Forget that blocks that are hit leave the free queue."""
    patches.method(SINGLE, "SingleTypeKVCacheManager", "_get_num_evictable_blocks", lambda original, cls, blocks: 0)


def block_leaked(patches: Patches) -> None:
    """Forget the last of several blocks that are given back."""

    def free_blocks(original: Any, pool: Any, ordered_blocks: Any) -> None:
        blocks = list(ordered_blocks)
        original(blocks[:-1] if len(blocks) > 2 else blocks)

    patches.method(POOL, "BlockPool", "free_blocks", free_blocks)


def freed_twice(patches: Patches) -> None:
    """Give a shared block back twice."""

    def free_blocks(original: Any, pool: Any, ordered_blocks: Any) -> None:
        blocks = list(ordered_blocks)
        shared = [block for block in blocks if not block.is_null and block.ref_cnt > 1]
        original(blocks + shared[:1])

    patches.method(POOL, "BlockPool", "free_blocks", free_blocks)


def reset_forgets_nothing(patches: Patches) -> None:
    """Say that the cache was reset, and reset nothing."""
    patches.method(POOL, "BlockPool", "reset_prefix_cache", lambda original, pool: True)


def key_survives_eviction(patches: Patches) -> None:
    """Leave an evicted block in the index."""

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


def salt_left_out(patches: Patches) -> None:
    """Leave the salt out of the key."""
    _left_out(patches, "cache_salt")


def adapter_left_out(patches: Patches) -> None:
    """Leave the adapter out of the key."""
    _left_out(patches, "lora")


def parent_left_out(patches: Patches) -> None:
    """Hash each block by its own tokens alone."""

    def hash_block_tokens(original: Any, function: Any, parent: Any, *args: Any, **kwargs: Any) -> Any:
        return original(function, None, *args, **kwargs)

    patches.function(UTILS, "hash_block_tokens", hash_block_tokens)


def last_token_hit(patches: Patches) -> None:
    """Let the last token be hit as well."""

    def get_computed_blocks(original: Any, manager: Any, request: Any, max_cache_hit_length: Any = None) -> Any:
        return original(request, request.num_tokens)

    patches.method(MANAGER, "KVCacheManager", "get_computed_blocks", get_computed_blocks)


def tail_keyed_early(patches: Patches) -> None:
    """Key the block in which a chunk ends although the chunk does not fill it."""

    def cache_blocks(original: Any, coordinator: Any, request: Any, count: int) -> None:
        size = coordinator.single_type_managers[0].block_size
        original(request, min(count + size - 1, request.num_tokens))

    patches.method(COORDINATOR, "KVCacheCoordinator", "cache_blocks", cache_blocks)


def looked_up_short(patches: Patches) -> None:
    """Look for a hit one unit below what may be hit, to be on the safe side."""

    def find_longest_cache_hit(original: Any, coordinator: Any, block_hashes: Any, length: int) -> Any:
        return original(block_hashes, max(length - coordinator.scheduler_block_size, 0))

    for owner in ("UnitaryKVCacheCoordinator", "HybridKVCacheCoordinator"):
        patches.method(COORDINATOR, owner, "find_longest_cache_hit", find_longest_cache_hit)


def interval_halved(patches: Patches) -> None:
    """Take the retention interval for one of half its length."""

    def reachable_block_mask(original: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
        given = arguments(original, args, kwargs)
        interval = given["retention_interval"]
        return original(**{**given, "retention_interval": interval // 2 if interval else interval})

    for owner in PRUNED:
        patches.method(SINGLE, owner, "reachable_block_mask", reachable_block_mask)


def _simple(name: str, summary: str, anomaly: str, checker: str, fault: Any, group: str, mirrors: str = "") -> Mutant:
    return Mutant(f"vllm-{name}", summary, mirrors, anomaly, checker, planted(fault), ONLY, group=group)


SIMPLE = (
    _simple(
        "mask-shifted",
        "a retention mask is off by one",
        "lost-replay-boundary",
        "replay-boundary-retained",
        mask_shifted,
        "N",
    ),
    _simple(
        "boundaries-dropped",
        "a retention mask forgets the replay boundary",
        "lost-replay-boundary",
        "replay-boundary-retained",
        boundaries_dropped,
        "N",
    ),
    _simple("mask-ignored", "a retention mask is ignored", "over-dense-retention", "interval-sparsity", mask_ignored, "N"),
    _simple(
        "interval-halved",
        "a retention interval is taken for half of it",
        "over-dense-retention",
        "interval-sparsity",
        interval_halved,
        "M",
    ),
    _simple(
        "null-published",
        "the null block is given a key",
        "fabricated-snapshot",
        "no-fabricated-snapshots",
        null_published,
        "A",
    ),
    _simple(
        "window-released-early",
        "a window block is given back one token early",
        "premature-release",
        "window-liveness",
        window_released_early,
        "G",
    ),
    _simple(
        "window-looked-up-short",
        "a hit needs one window block less",
        "window-hole",
        "window-liveness",
        window_looked_up_short,
        "G",
    ),
    _simple("hits-count-as-room", "blocks that are hit count as free room", "died", "engine", hits_count_as_room, "H"),
    _simple("block-leaked", "one of several blocks is never given back", "leak", "ownership", block_leaked, "H"),
    _simple("freed-twice", "a shared block is given back twice", "double-free", "ownership", freed_twice, "H"),
    _simple("reset-forgets-nothing", "a reset reports success only", "stale-hit", "safety-law", reset_forgets_nothing, "L"),
    _simple("key-survives-eviction", "an evicted block is found", "stale-hit", "safety-law", key_survives_eviction, "I"),
    _simple("salt-left-out", "the salt is not in the key", "cross-identity-hit", "identity", salt_left_out, "I"),
    _simple("adapter-left-out", "the adapter is not in the key", "cross-identity-hit", "identity", adapter_left_out, "I"),
    _simple("parent-left-out", "a block's key is of its own tokens alone", "stale-hit", "safety-law", parent_left_out, "I"),
    _simple("last-token-hit", "the last token is hit as well", "nothing-to-compute", "safety-law", last_token_hit, "P"),
    _simple("tail-keyed-early", "a block is keyed before it is full", "partial-commit", "commit-order", tail_keyed_early, "B"),
    _simple("looked-up-short", "a look-up stops one unit early", "lost-hit", "reuse-floor", looked_up_short, "N"),
)
