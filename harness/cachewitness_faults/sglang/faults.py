"""Faults in the installed SGLang: a piece of the source of its tree, its components or its
look-up is changed while it runs.
"""

from __future__ import annotations

from functools import partial

from cachewitness.engines.source_edits import Edit, edited
from cachewitness.systems.sglang.source import PATCHES

NAME = "sglang"

TREE, CACHE = "mem_cache.unified_cache.unified_tree_core", "mem_cache.unified_radix_cache"
STATES = "mem_cache.unified_cache.components.mamba"
WINDOWS = "mem_cache.unified_cache.components.swa"
REQUESTS = "mem_cache.common"

fault = partial(edited, engine=NAME, patches=PATCHES)

FAULTS = (
    fault(
        Edit(
            STATES,
            "MambaComponent",
            "prepare_for_caching_req",
            "self.cache.req_to_token_pool.mamba_pool.copy_from("
            " translate(req.kv.mamba_pool_idx.unsqueeze(0)), translate(mamba_value_donated), )",
            "translate(mamba_value_donated)",
        ),
        name="sglang-state-without-a-copy",
        what="The slot that a chunk leaves in the tree is not filled from the request's own state.",
        anomaly="fabricated-snapshot",
        checker="no-fabricated-snapshots",
        group="A",
    ),
    fault(
        Edit(
            STATES,
            "MambaComponent",
            "prepare_for_caching_req",
            "insert_params.mamba_value = mamba_value_donated return cache_len",
            "insert_params.mamba_value = req.kv.mamba_pool_idx.unsqueeze(0)\n"
            "self.cache.req_to_token_pool.mamba_allocator.free(mamba_value_donated)\n"
            "return cache_len",
        ),
        name="sglang-running-state-in-the-tree",
        what="A chunk leaves the request's own slot in the tree, which the next chunk writes over.",
        anomaly="state-position-skew",
        checker="safety-law",
        group="A",
    ),
    fault(
        Edit(
            TREE,
            "UnifiedTreeCore",
            "_create_match_validators",
            "for comp in self.components",
            "for comp in self.components if not comp.component_type.is_mamba",
        ),
        name="sglang-match-without-a-state",
        what="A look-up ends at a node whose state was evicted.",
        anomaly="stale-hit",
        checker="safety-law",
        group="C",
    ),
    fault(
        Edit(
            TREE,
            "UnifiedTreeCore",
            "inc_lock_ref",
            "skipped = tuple(skip_lock_components)",
            "skipped = (*skip_lock_components, *(kind for kind in self.component_types if"
            " kind.is_full))",
        ),
        name="sglang-matched-prefix-not-locked",
        what=(
            "The full attention of a matched prefix is not locked, so it may be evicted for those"
            " who use it."
        ),
        anomaly="double-free",
        checker="ownership",
        group="H",
    ),
    fault(
        Edit(REQUESTS, "", "_req_radix_key", "extra_key=req.extra_key,", "extra_key=None,"),
        Edit(
            CACHE,
            "UnifiedRadixCache",
            "checkpoint_into_tree",
            "token_ids[:effective_cache_len], req.extra_key,",
            "token_ids[:effective_cache_len], None,",
        ),
        name="sglang-extra-key-left-out",
        what="The adapter of a request is not in the key of its prefix.",
        anomaly="cross-identity-hit",
        checker="identity",
        group="I",
    ),
    fault(
        Edit(
            STATES,
            "MambaComponent",
            "cleanup_after_caching_req",
            "insert_result is None or insert_result.mamba_exist",
            "insert_result is None",
        ),
        name="sglang-second-state-not-freed",
        what="A state that the tree has already, of an equal prompt, is not given back.",
        anomaly="leak",
        checker="ownership",
        group="H",
    ),
    fault(
        Edit(
            TREE,
            "UnifiedTreeCore",
            "_insert_overlap_step",
            "dup_start = max(0, state.params.prev_prefix_len - state.total_prefix_length)",
            "dup_start = 0",
        ),
        name="sglang-shared-prefix-freed",
        what=(
            "With the duplicates of what the tree has, the pages of the prefix go that the request"
            " got from the tree."
        ),
        anomaly="double-free",
        checker="ownership",
        group="H",
    ),
    fault(
        Edit(
            WINDOWS,
            "SWAComponent",
            "create_match_validator",
            'return state["len"] >= sliding_window_size',
            "return True",
        ),
        Edit(
            WINDOWS,
            "SWAComponent",
            "create_match_validator",
            "def validator(node: UnifiedTreeNode) -> bool:",
            "def validator(node):",
        ),
        name="sglang-match-behind-a-tombstone",
        what="A look-up ends less than a window behind a node whose window was given back.",
        anomaly="window-hole",
        checker="window-liveness",
        group="G",
    ),
    fault(
        Edit(
            REQUESTS,
            "",
            "free_swa_out_of_window_slots",
            "evict_threshold = pre_len - ceil_align( max(sliding_window_size, page_size),"
            " page_size )",
            "evict_threshold = pre_len - page_size",
        ),
        name="sglang-window-freed-too-early",
        what="A page behind what a request computes is all that stays of its window.",
        anomaly="premature-release",
        checker="window-liveness",
        group="G",
    ),
)
