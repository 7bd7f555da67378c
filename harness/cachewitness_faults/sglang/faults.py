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
SLOTS = "mem_cache.allocator.swa"
ALLOCATOR = "mem_cache.allocator.base"

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
    fault(
        Edit(
            WINDOWS,
            "SWAComponent",
            "prepare_for_caching_req",
            "insert_params.set_evicted_seqlen( self.component_type,"
            " req.kv.get_evicted_seqlen(self.component_type) )",
            "pass",
        ),
        Edit(
            WINDOWS,
            "SWAComponent",
            "free_out_of_window_slots",
            "insert_params.set_evicted_seqlen( self.component_type,"
            " req.kv.get_evicted_seqlen(self.component_type) )",
            "pass",
        ),
        name="sglang-given-back-window-put-into-the-tree",
        what=(
            "A chunk's insertion is not told how much of the window was given back, so slots that"
            " are nobody's can be hit."
        ),
        mirrors="sgl-project/sglang#30845",
        anomaly="fabricated-snapshot",
        checker="no-fabricated-snapshots",
        group="G",
    ),
    fault(
        Edit(
            REQUESTS,
            "",
            "free_swa_out_of_window_slots",
            "ceil_align( max(sliding_window_size, page_size), page_size )",
            "sliding_window_size",
        ),
        name="sglang-window-in-a-page-freed-to-the-last-leaf",
        what=(
            "Where a page is longer than the window, all of the last leaf's window is given back."
        ),
        mirrors="sgl-project/sglang#29860",
        anomaly="lost-replay-boundary",
        checker="replay-boundary-retained",
        group="G",
    ),
    fault(
        Edit(
            SLOTS,
            "SWATokenToKVPoolAllocator",
            "_free_swa_pages_none_cuda",
            "self.clear_full_to_swa_mapping(mapping_indices) return swa_pages",
            "beside = (mapping_indices.max().reshape(1) + 1).clamp(max=self._size_full)\n"
            "self.clear_full_to_swa_mapping(mapping_indices)\n"
            "self.clear_full_to_swa_mapping(self._expand_to_full_pages(beside))\n"
            "return swa_pages",
        ),
        name="sglang-mapping-of-the-next-page-cleared",
        what=(
            "With the window's slots of a page, the next page's are forgotten: what it has is"
            " found as slot 0, and never free again."
        ),
        mirrors="sgl-project/sglang#36457",
        anomaly="fabricated-snapshot",
        checker="no-fabricated-snapshots",
        group="G",
    ),
    fault(
        Edit(
            WINDOWS,
            "SWAComponent",
            "_set_swa",
            "allocator.clear_full_to_swa_mapping(incoming_full)",
            "pass",
        ),
        Edit(
            WINDOWS,
            "SWAComponent",
            "apply_component_action",
            "alloc.free_full_segment(action.incoming_full, start_pos=0)",
            "alloc.free_segment(action.incoming_full, start_pos=0)",
        ),
        name="sglang-window-freed-by-a-stale-mapping",
        what=(
            "A window that is put back into a locked node is given back with the slots that it"
            " came with."
        ),
        mirrors="sgl-project/sglang#27586",
        anomaly="double-free",
        checker="ownership",
        group="G",
    ),
    fault(
        Edit(
            STATES,
            "MambaComponent",
            "prepare_for_caching_req",
            "insert_params.mamba_value = mamba_value_donated return cache_len",
            "insert_params.mamba_value = mamba_value_donated\nreturn cache_len - 1",
        ),
        name="sglang-chunk-state-a-token-late",
        what="The state that a chunk leaves is found a token in front of its position.",
        mirrors="sgl-project/sglang#31833",
        anomaly="fabricated-snapshot",
        checker="no-fabricated-snapshots",
        group="A",
    ),
    fault(
        Edit(
            STATES,
            "MambaComponent",
            "prepare_for_caching_req",
            "if is_finished: if cache_len is None:",
            "if is_finished:\n    cache_len -= 1\n    if cache_len is None:",
        ),
        name="sglang-generated-state-a-token-late",
        what="The state at the end of an answer is found a token in front of its position.",
        mirrors="sgl-project/sglang#31850",
        anomaly="fabricated-snapshot",
        checker="no-fabricated-snapshots",
        group="A",
    ),
    fault(
        Edit(
            "mem_cache.memory_pool",
            "HybridReqToTokenPool",
            "alloc",
            "req.kv.mamba_needs_clear = True",
            "req.kv.mamba_needs_clear = False",
        ),
        name="sglang-garbage-state-donated",
        what=(
            "A request begins with the state that its slot had from another one, and leaves in the"
            " tree what it makes of it."
        ),
        mirrors="sgl-project/sglang#31474",
        anomaly="state-position-skew",
        checker="safety-law",
        group="A",
    ),
    fault(
        Edit(
            CACHE,
            "UnifiedRadixCache",
            "checkpoint_into_tree",
            "self.req_to_token_pool.write( (req.kv.req_pool_idx, slice(req.kv.cache_protected_len,"
            " len(new_indices))), new_indices[req.kv.cache_protected_len :], )",
            "pass",
        ),
        name="sglang-table-names-freed-duplicates",
        what=(
            "The pages of a chunk that the tree had already are given back, and its request's"
            " table goes on naming them."
        ),
        mirrors="sgl-project/mini-sglang#142",
        anomaly="aliased-write",
        checker="ownership",
        group="H",
    ),
    fault(
        Edit(
            ALLOCATOR,
            "BaseTokenToKVPoolAllocator",
            "evict_to_free_tokens",
            "shortfall = num_tokens - self.available_size()",
            "shortfall = num_tokens",
        ),
        name="sglang-evicts-with-room",
        what="So many tokens are evicted as are asked for, however many slots are free.",
        anomaly="needless-eviction",
        checker="eviction",
        group="N",
    ),
)
