"""Which files of vLLM's are measured, which of vLLM's own tests run over them, and why a run
does not enter some functions.
"""

from __future__ import annotations

CACHE = (
    "v1/core/block_pool.py",
    "v1/core/kv_cache_coordinator.py",
    "v1/core/kv_cache_manager.py",
    "v1/core/kv_cache_utils.py",
    "v1/core/single_type_kv_cache_manager.py",
    "v1/request.py",
)
"""The cache core and the requests that it hashes."""
CORE = (*CACHE, "v1/core/sched/scheduler.py", "v1/core/sched/async_scheduler.py")
"""The same, and the schedulers."""
_CONNECTORS = "distributed/kv_transfer/kv_connector/v1"
CONNECTOR = (
    f"{_CONNECTORS}/multi_connector.py",
    f"{_CONNECTORS}/offloading_connector.py",
    f"{_CONNECTORS}/offloading/scheduler.py",
    f"{_CONNECTORS}/offloading/worker.py",
    f"{_CONNECTORS}/simple_cpu_offload_connector.py",
    "v1/kv_offload/cpu/manager.py",
    "v1/simple_kv_offload/manager.py",
    "v1/simple_kv_offload/worker.py",
)
OWN = {
    "own-tests": (
        "core/prefix_cache",
        "core/test_prefix_caching.py",
        "core/test_single_type_kv_cache_manager.py",
        "core/test_kv_cache_utils.py",
        "core/test_mamba_align_chunk_split.py",
        "core/test_prefix_replay.py",
        "core/test_swa_inflight_window_free.py",
        "core/test_deferred_block_free.py",
        "core/test_scheduler.py",
        "core/test_async_scheduler.py",
        "core/test_priority_scheduler_random.py",
        "core/test_priority_preemption_bug.py",
        "kv_connector/unit/test_multi_connector.py",
        "kv_connector/unit/test_simple_cpu_offload_connector.py",
        "kv_connector/unit/test_offloading_connector.py",
        "kv_connector/unit/offloading_connector/test_scheduler.py",
        "kv_connector/unit/test_invalid_blocks_correctness.py",
        "kv_connector/unit/test_kv_load_failure_recovery.py",
    ),
    "own-tests-of-offloading": ("simple_kv_offload", "kv_offload/cpu/test_manager.py"),
}
"""vLLM's own tests of these files, under `tests/v1`, but for those that start an engine or a
server."""
_HISPARSE = (
    "HiSparse: an import from another machine, which takes a connector beside it, or never asked"
    " (docs/systems/vllm-notes.md)"
)
_ENGINE = (
    "asked by the engine's loop, its statistics or its front end, for which the harness stands in"
)
WHY: tuple[tuple[str, str], ...] = (
    (r"_?HiSparse.*|BlockPool\.(unpin_blocks|_notify_reuse)|.*take_host_cow_copies", _HISPARSE),
    (
        r"CrossAttention.*",
        (
            "cross-attention: its blocks hold an encoder's states, which no token names; nothing is"
            " cached"
        ),
    ),
    (
        r"SinkFullAttention.*",
        "sinks: 0.33.0 raises a TypeError when it builds the manager (docs/systems/vllm-notes.md)",
    ),
    (
        r"CircularBuffer.*",
        "never asked: a ring has no keys, no window of its own, and no connector loads into it",
    ),
    (
        r".*(Lookahead|lookahead).*",
        "lookahead hashes are switched off: a key would cover tokens behind its block",
    ),
    (
        r".*(dcp|_kv_cache_device_name|get_none_hash_seed).*",
        "context parallelism, and what an engine sets up once for its workers",
    ),
    (
        r".*(get_computed_blocks_for_connector|find_longest_cache_hit_per_group)",
        (
            "for a connector that completes hits which differ by group (NIXL, between machines);"
            " none that is driven says so"
        ),
    ),
    (
        r".*record_blocks_for_zeroing",
        (
            "a load that fails in part is told by block, where there is one group alone; what"
            " zeroes its blocks has two, but for states alone, whose blocks are not zeroed, and one"
            " group of two precisions, which no layout has"
        ),
    ),
    (
        r"(KVCacheCoordinator|SingleTypeKVCacheManager)\.(find_longest_cache_hit|records_new_block_ids)|.*_unexpected_blocks_type",
        "abstract, or for what cannot be",
    ),
    (
        r".*(_stats|usage|common_prefix_blocks|__repr__|__str__|get_all_free_blocks|unhashed_block_ids.*|new_empty|__add__)",
        _ENGINE,
    ),
    (
        r"Scheduler\.(has_.*|get_num_.*|get_kv_.*|get_ec_.*|shutdown|reset_encoder_cache|get_request_counts|pause_state)",
        _ENGINE,
    ),
    (
        r"FreeKVCacheBlockQueue\.append",
        "not called by this release: blocks are given back several at a time",
    ),
    (
        r"KVCacheCoordinatorNoPrefixCache\.find_longest_cache_hit",
        "never asked: without prefix caching nothing is looked up",
    ),
    (
        r"Scheduler\.(get_grammar_bitmask|update_draft_token_ids_in_output)",
        "a grammar takes every token here: no mask is made",
    ),
)
"""Why functions are not entered, by a pattern of their names; the first that fits counts. Of any
other it is not known."""
