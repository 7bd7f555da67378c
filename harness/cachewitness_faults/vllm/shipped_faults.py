"""Bugs that were in a release of vLLM, past its own unit tests, or are still reported: each fix is
undone where it was made.

Each is the source of vLLM 0.33.0 with the lines of the fix as they were before it. Where those no
longer fit, the condition that the fix brought is taken out. A release that does not have the lines
refuses the fault. `docs/results/vllm-faults.md` says what each is found by, and which fixes can be
undone without anything that is found.
Source: the differences between the releases 0.26.0, 0.29.0, 0.30.0, 0.31.0, 0.32.0 and 0.33.0,
`v1/core`, and the reports.
"""

from __future__ import annotations

from cachewitness.engines.mutant import Mutant
from cachewitness.engines.source_edits import Edit, edited
from cachewitness_faults.vllm.modules import (
    COORDINATOR,
    MANAGER,
    POOL,
    SCHEDULER,
    SINGLE,
    SPECS,
    UTILS,
)

SPLIT = "_mamba_block_aligned_split"
HYBRID = "HybridKVCacheCoordinator"

SHIPPED: tuple[Mutant, ...] = (
    # --- recurrent states -------------------------------------------------------------------------
    edited(
        Edit(
            SCHEDULER, "Scheduler", SPLIT, "if end < prefill_end:", "if end < last_cache_position:"
        ),
        Edit(
            SCHEDULER,
            "Scheduler",
            SPLIT,
            "if start % block_size != 0 and not use_internal_checkpoint",
            "if start % block_size != 0 and next_block_boundary <= last_cache_position",
        ),
        name="vllm-chunk-ends-off-the-grid",
        what=(
            "Behind the last boundary that EAGLE may use a chunk ends anywhere, and its state is"
            " keyed at the next boundary."
        ),
        mirrors="vllm-project/vllm#47861, vllm-project/vllm#48970",
        anomaly="fabricated-snapshot",
        checker="no-fabricated-snapshots",
        group="A",
    ),
    edited(
        Edit(
            SCHEDULER,
            "Scheduler",
            SPLIT,
            "block_size = self.cache_config.block_size",
            "block_size = self.hash_block_size",
        ),
        name="vllm-split-on-the-smallest-grid",
        what=(
            "Chunks are cut in units of the smallest block of all groups, where a state's block is"
            " larger."
        ),
        mirrors="vllm-project/vllm#54076",
        anomaly="fabricated-snapshot",
        checker="no-fabricated-snapshots",
        group="M",
    ),
    edited(
        Edit(
            SINGLE,
            "MambaManager",
            "get_num_blocks_to_allocate",
            "if ( len(new_computed_blocks) > 0 and new_computed_blocks[-1].block_hash in"
            " self.cached_blocks_this_step ):",
            "if False:",
        ),
        name="vllm-state-of-the-same-step-hit",
        what="A state that this very step is to write is hit.",
        mirrors="vllm-project/vllm#29387",
        anomaly="uncommitted-hit",
        checker="commit-order",
        group="B",
    ),
    edited(
        Edit(
            SINGLE,
            "MambaManager",
            "cache_blocks",
            "self.cached_blocks_this_step.add(partial_hash)",
            "pass",
        ),
        name="vllm-tail-of-the-same-step-hit",
        what="The state at the end of a prompt is hit in the step that is to write it.",
        mirrors="vllm-project/vllm#29387, vllm-project/vllm#46384",
        anomaly="stale-hit",
        checker="safety-law",
        group="B",
    ),
    edited(
        Edit(
            SINGLE,
            "MambaManager",
            "allocate_new_blocks",
            "self.cached_blocks_this_step.add(cow_block.block_hash)",
            "pass",
        ),
        name="vllm-moved-state-of-the-same-step-hit",
        what="A state is hit in the step that is to copy it to where its key points already.",
        mirrors="vllm-project/vllm#29387, vllm-project/vllm#46384",
        anomaly="stale-hit",
        checker="safety-law",
        group="B",
    ),
    edited(
        Edit(
            SINGLE,
            "MambaManager",
            "allocate_new_blocks",
            "self.block_pool.move_block_hashes(source_block, cow_block)",
            "pass",
        ),
        name="vllm-running-tail-keeps-its-key",
        what=(
            "The end of a prompt stays keyed at a block that is written on, and not at the copy"
            " that was made."
        ),
        mirrors="vllm-project/vllm#57908",
        anomaly="state-position-skew",
        checker="safety-law",
        group="A",
    ),
    edited(
        Edit(
            SPECS,
            "",
            "get_mamba_prefill_checkpoint_position",
            "num_tokens if drop_eagle_block else num_tokens - max(1, num_hash_lookahead_tokens)",
            "num_tokens",
        ),
        name="vllm-tail-at-the-very-end",
        what=(
            "The state of a prompt is kept at its very end, which the same prompt cannot hit: it"
            " computes one token."
        ),
        mirrors="mended in vLLM 0.32",
        anomaly="over-dense-retention",
        checker="interval-sparsity",
        group="P",
    ),
    edited(
        Edit(
            SINGLE,
            "FullAttentionManager",
            "_cache_partial_tail_block",
            "request.num_prompt_tokens if self.use_eagle else request.num_prompt_tokens - 1",
            "request.num_prompt_tokens",
        ),
        name="vllm-attention-tail-at-the-very-end",
        what=(
            "A prompt that ends inside a block is keyed at its very end, which the same prompt"
            " cannot hit."
        ),
        mirrors="mended in vLLM 0.32",
        anomaly="lost-replay-boundary",
        checker="replay-boundary-retained",
        group="P",
    ),
    # --- hits -------------------------------------------------------------------------------------
    edited(
        Edit(
            COORDINATOR,
            HYBRID,
            "find_longest_cache_hit",
            "hit_length = curr_hit_length if is_simple_hybrid: break",
            "hit_length = longest_hit_length if is_simple_hybrid else curr_hit_length\n"
            "if is_simple_hybrid:\n    break",
        ),
        name="vllm-longest-hit-of-any-group",
        what=(
            "The longest hit of any group counts for all, and a group without its state goes on"
            " there."
        ),
        mirrors="vllm-project/vllm#43090, LMCache/LMCache#4247",
        anomaly="group-misalignment",
        checker="safety-law",
        group="C",
    ),
    edited(
        Edit(
            COORDINATOR,
            HYBRID,
            "find_longest_cache_hit",
            "if drop_eagle_block and not isinstance(spec, MambaSpec):",
            "if drop_eagle_block:",
        ),
        name="vllm-state-looked-up-beyond-the-hit",
        what=(
            "With EAGLE a state is looked up a block beyond the hit, as if it could be given back"
            " like keys and values."
        ),
        mirrors="vllm-project/vllm#48375, vllm-project/vllm#57128",
        anomaly="stale-hit",
        checker="safety-law",
        group="D",
    ),
    edited(
        Edit(COORDINATOR, "", "replay_boundaries", "if not use_eagle:", "if True:"),
        name="vllm-boundary-above-what-eagle-may-use",
        what="What is kept for a replay lies above what a speculative look-up may use.",
        mirrors="vllm-project/vllm#53504",
        anomaly="lost-replay-boundary",
        checker="replay-boundary-retained",
        group="N",
    ),
    edited(
        Edit(
            COORDINATOR,
            "KVCacheCoordinator",
            "__init__",
            "manager.drop_eagle_checkpoint_block = True",
            "manager.drop_eagle_checkpoint_block = False",
        ),
        name="vllm-tail-above-what-eagle-may-use",
        what="The state at the end of a prompt is kept above what a speculative look-up may use.",
        mirrors="vllm-project/vllm#53945",
        anomaly="lost-replay-boundary",
        checker="replay-boundary-retained",
        group="N",
        built=True,
    ),
    edited(
        Edit(
            COORDINATOR,
            HYBRID,
            "_align_cacheable",
            "if self.enable_partial_hash_hits:",
            "if False:",
        ),
        name="vllm-eagle-tail-not-keyed",
        what="What may be hit inside a block is keyed at the ends of blocks alone.",
        mirrors="vllm-project/vllm#52419",
        anomaly="lost-replay-boundary",
        checker="replay-boundary-retained",
        group="N",
    ),
    edited(
        Edit(UTILS, "", "partial_hash_hits_enabled", "if unsupported_managers:", "if False:"),
        name="vllm-finer-than-a-window-can-be",
        what="Hits end inside a block although a window's blocks are looked up whole.",
        mirrors="mended in vLLM 0.29",
        anomaly="over-dense-retention",
        checker="interval-sparsity",
        group="C",
        built=True,
    ),
    edited(
        Edit(
            SINGLE,
            "SingleTypeKVCacheManager",
            "cache_blocks",
            "alignment_tokens=self.cache_hit_alignment_tokens",
            "alignment_tokens=self.scheduler_block_size",
        ),
        name="vllm-kept-on-the-coarse-grid",
        what="What a replay can hit inside a block is retained as if hits ended with blocks.",
        mirrors="mended in vLLM 0.29",
        anomaly="lost-replay-boundary",
        checker="replay-boundary-retained",
        group="N",
    ),
    # --- identity ---------------------------------------------------------------------------------
    edited(
        Edit(
            UTILS,
            "",
            "_gen_mm_extra_hash_keys",
            '("mm", mm_feature.identifier, offset - start_token_idx)',
            '("mm", mm_feature.identifier, 0)',
        ),
        name="vllm-place-of-an-image-left-out",
        what="Where an image lies in a block is not in the block's key.",
        mirrors="vllm-project/vllm#36708",
        anomaly="cross-identity-hit",
        checker="identity",
        group="I",
    ),
    edited(
        Edit(
            UTILS,
            "",
            "_gen_lora_extra_hash_keys",
            '("lora", lora_request.lora_name, lora_request.lora_path)',
            "lora_request.lora_name",
        ),
        Edit(
            UTILS,
            "",
            "generate_block_hash_extra_keys",
            '("cache_salt", request.cache_salt)',
            "request.cache_salt",
        ),
        Edit(
            UTILS,
            "",
            "to_event_extra_keys",
            'tuple(key[1:] if key[0] == "mm" else key[1] for key in keys)',
            "tuple(keys)",
        ),
        name="vllm-parts-of-identity-untagged",
        what="A salt and an adapter of one name make one key.",
        mirrors="vllm-project/vllm#44701",
        anomaly="cross-identity-hit",
        checker="identity",
        group="I",
    ),
    edited(
        Edit(
            UTILS,
            "",
            "_gen_lora_extra_hash_keys",
            "lora_request.lora_name, lora_request.lora_path)",
            "lora_request.lora_name)",
        ),
        name="vllm-path-of-an-adapter-left-out",
        what="Two adapters of one name, of other paths, make one key.",
        mirrors="vllm-project/vllm#42125, vllm-project/vllm#30931",
        anomaly="cross-identity-hit",
        checker="identity",
        group="I",
        level="scheduler",
    ),
    # --- steps in flight --------------------------------------------------------------------------
    edited(
        Edit(
            MANAGER,
            "KVCacheManager",
            "allocate_slots",
            "max(0, total_computed_tokens - request.num_in_flight_tokens)",
            "total_computed_tokens",
        ),
        name="vllm-freed-by-what-is-only-scheduled",
        what="A window is freed by tokens that a step in flight has still to compute.",
        mirrors="vllm-project/vllm#47728, vllm-project/vllm#33997",
        anomaly="use-after-free",
        checker="safety-law",
        group="G",
        level="scheduler",
    ),
    edited(
        Edit(
            SCHEDULER,
            "Scheduler",
            "_preempt_request",
            "request.num_stale_output_tokens = request.num_in_flight_tokens",
            "request.num_stale_output_tokens = 0",
        ),
        name="vllm-stale-output-not-marked",
        what=(
            "What a step in flight samples for a preempted request counts as computed after the"
            " preemption."
        ),
        mirrors="vllm-project/vllm#48245",
        anomaly="fabricated-snapshot",
        checker="no-fabricated-snapshots",
        group="D",
        level="scheduler",
    ),
    edited(
        Edit(
            SINGLE,
            "SlidingWindowManager",
            "reachable_block_mask",
            "shift = 1 if use_eagle else 0",
            "shift = 0",
        ),
        name="vllm-eagle-s-block-not-kept",
        what=(
            "Of a window that is kept for a hit the block that EAGLE looks ahead into is not, so"
            " another is kept instead."
        ),
        mirrors="vllm-project/vllm#44082",
        anomaly="over-dense-retention",
        checker="interval-sparsity",
        group="E",
    ),
    edited(
        Edit(
            POOL,
            "BlockPool",
            "cache_partial_block",
            "curr_mm_idx = 0 mm_features = request.mm_features if block_start > 0 and mm_features:",
            "curr_mm_idx = -1 if block_start > 0 else 0\nmm_features = None\nif mm_features:",
        ),
        name="vllm-key-event-of-the-last-image",
        what=(
            "The event of a key inside a block names the request's last image, whichever image is"
            " in the block."
        ),
        mirrors="mended in vLLM 0.31",
        anomaly="false-key-event",
        checker="key-events",
        group="J",
    ),
)
