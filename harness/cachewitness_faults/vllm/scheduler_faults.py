"""Faults in vLLM's own scheduler: a line that a fix brought, or that everything rests on, is taken
out of its source again.

Each is the source of vLLM 0.33.0 with one piece changed, so it sits where the code is that must not
lose it; a release that does not have the piece refuses the fault. They are found at scheduler
level.
"""

from __future__ import annotations

from functools import partial

from cachewitness.engines.mutant import Mutant
from cachewitness.engines.source_edits import Edit, edited
from cachewitness_faults.vllm.modules import MANAGER, POOL, SCHEDULER, SINGLE

OWNER = "Scheduler"

fault = partial(edited, level="scheduler")

SCHEDULED: tuple[Mutant, ...] = (
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "schedule",
            "self.kv_cache_manager.get_blocks( request_id ) num_scheduled_tokens",
            "new_blocks; num_scheduled_tokens",
        ),
        name="vllm-row-without-its-hit",
        what="The worker is told the new blocks of an admitted request, and not those that it hit.",
        anomaly="stale-hit",
        checker="safety-law",
        group="H",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "schedule",
            "req_to_new_blocks[request_id] = new_blocks num_scheduled_tokens",
            "req_to_new_blocks[request_id] = self.kv_cache_manager.empty_kv_cache_blocks;"
            " num_scheduled_tokens",
        ),
        name="vllm-new-blocks-never-told",
        what="The worker is not told of the blocks that a running request gets.",
        anomaly="aliased-write",
        checker="ownership",
        group="H",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "schedule",
            "num_new_tokens = self._mamba_block_aligned_split( request, num_new_tokens, "
            "num_new_local_computed_tokens, num_external_computed_tokens, )",
            "pass",
        ),
        name="vllm-first-chunk-ends-off-the-grid",
        what=(
            "The first chunk of a request ends wherever the budget ends, and its state is keyed at"
            " the next boundary."
        ),
        mirrors="vllm-project/vllm#47861",
        anomaly="fabricated-snapshot",
        checker="no-fabricated-snapshots",
        group="A",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "schedule",
            "num_new_tokens = self._mamba_block_aligned_split( request, num_new_tokens )",
            "pass",
        ),
        name="vllm-later-chunks-end-off-the-grid",
        what="All chunks but the first end wherever the budget ends.",
        mirrors="vllm-project/vllm#48970",
        anomaly="fabricated-snapshot",
        checker="no-fabricated-snapshots",
        group="A",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "reset_prefix_cache",
            "reset_successful = self.kv_cache_manager.reset_prefix_cache()",
            "reset_successful = True",
        ),
        name="vllm-reset-that-resets-nothing",
        what="A reset of the cache succeeds, and every key is still there.",
        mirrors="vllm-project/vllm#57727",
        anomaly="cross-identity-hit",
        checker="identity",
        group="L",
    ),
    fault(
        Edit(SCHEDULER, OWNER, "_free_blocks", "self._free_request_blocks(request)", "pass"),
        name="vllm-ended-request-keeps-its-blocks",
        what="A request that has ended keeps its blocks.",
        anomaly="leak",
        checker="ownership",
        group="H",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "update_from_output",
            "request.num_computed_tokens -= num_rejected",
            "pass",
        ),
        name="vllm-rejected-drafts-stay-computed",
        what=(
            "Drafts that were rejected count as computed, and the next step goes on behind tokens"
            " that do not exist."
        ),
        anomaly="engine-crashed",
        checker="engine",
        group="D",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "schedule",
            "if request.num_stale_output_tokens and not request.drop_stale_output:",
            "if False:",
        ),
        name="vllm-resumed-before-its-output-came",
        what="A preempted request is admitted again while a step in flight still owes it a token.",
        mirrors="vLLM's test_kv_pressure_preemption_with_inflight_output",
        anomaly="engine-crashed",
        checker="engine",
        group="D",
    ),
    fault(
        Edit(SCHEDULER, OWNER, "schedule", "self.kv_cache_manager.new_step_starts()", "pass"),
        name="vllm-step-never-starts",
        what=(
            "A state that was keyed in some step can never be hit: the manager is not told that the"
            " next step starts."
        ),
        mirrors="vllm-project/vllm#29387",
        anomaly="no-progress",
        checker="progress",
        group="O",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "schedule",
            "pending_kv_cache_block_copies = kv_cache_block_copies or None",
            "pending_kv_cache_block_copies = None",
        ),
        name="vllm-copies-never-told",
        what="The worker is not told of the copies that a hit inside a block needs.",
        anomaly="fabricated-snapshot",
        checker="no-fabricated-snapshots",
        group="E",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "_mamba_block_aligned_split",
            "else 0, last_cache_position,",
            "else 0,",
        ),
        name="vllm-last-boundary-passed",
        what=(
            "A chunk that reaches the end of its prompt does not stop at the last boundary whose"
            " state can be cached."
        ),
        anomaly="missed-checkpoint",
        checker="checkpoints",
        group="N",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "_mamba_block_aligned_split",
            "junction_stop if start < junction < end else 0,",
            "0,",
        ),
        name="vllm-junction-passed",
        what="No chunk stops where a prefix that others share goes on beyond the hit.",
        anomaly="missed-checkpoint",
        checker="checkpoints",
        group="N",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "schedule",
            "request.shared_prefix_boundary, hit_diverged, ) = self._get_local_prefix_cache_hit",
            "_, hit_diverged, ) = self._get_local_prefix_cache_hit",
        ),
        name="vllm-junction-forgotten",
        what="Where a prefix that others share goes on beyond the hit is looked up and forgotten.",
        mirrors="vllm-project/vllm#45238",
        anomaly="lost-shared-prefix-boundary",
        checker="replay-boundary-retained",
        group="N",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "update_from_output",
            "events = self.kv_cache_manager.take_events()",
            "events = self.kv_cache_manager.take_events()[: None if outputs else 0]",
        ),
        name="vllm-key-events-without-an-answer",
        what=(
            "Key events of a step that answers nobody, as in the middle of a prompt, are thrown"
            " away."
        ),
        anomaly="lost-key-event",
        checker="key-events",
        group="I",
    ),
    fault(
        Edit(
            SINGLE,
            "CircularBufferManager",
            "remove_skipped_blocks",
            "return",
            "self.block_pool.free_blocks(self.req_to_blocks.pop(request_id, []))",
        ),
        name="vllm-ring-given-back-between-chunks",
        what=(
            "A request gives its ring back before each chunk, and its worker goes on in the block"
            " that it had."
        ),
        anomaly="stale-hit",
        checker="safety-law",
        group="G",
    ),
    fault(
        Edit(
            POOL,
            "BlockPool",
            "emit_cached_block_events",
            "parent_block_hash: ExternalBlockHash | None = None",
            "parent_block_hash: ExternalBlockHash | None = cached_hashes[-1]",
        ),
        name="vllm-hit-told-behind-itself",
        what="The blocks of a hit are told as if they came behind the last of them.",
        anomaly="false-key-event",
        checker="key-events",
        group="I",
    ),
    fault(
        Edit(POOL, "BlockPool", "get_usage", "self.num_gpu_blocks - 1", "self.num_gpu_blocks"),
        name="vllm-null-block-in-use",
        what=(
            "The null block, which nobody can be given, counts as a block of the pool that is in"
            " use."
        ),
        anomaly="false-statistics",
        checker="statistics",
        group="I",
    ),
    fault(
        Edit(
            MANAGER,
            "KVCacheManager",
            "record_prefix_cache_stats",
            "preempted=request.num_preemptions > 0",
            "preempted=False",
        ),
        name="vllm-preempted-look-ups-counted-as-new",
        what=(
            "What a preempted request finds of its own counts in the hit rate, as if it were new."
        ),
        mirrors="vllm-project/vllm#25787",
        anomaly="false-statistics",
        checker="statistics",
        group="I",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "schedule",
            "if request.prefill_stats and request.num_preemptions <= 0:",
            "if request.prefill_stats:",
        ),
        name="vllm-client-told-of-its-own-blocks",
        what=(
            "A request that was preempted before it answered tells its client that what it had"
            " computed itself was cached."
        ),
        anomaly="false-statistics",
        checker="statistics",
        group="I",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "update_from_output",
            "prefill_stats = request.take_prefill_stats()",
            "prefill_stats = None",
        ),
        name="vllm-client-told-nothing",
        what="No client is told how many tokens of its prompt came from a cache.",
        anomaly="false-statistics",
        checker="statistics",
        group="I",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "_make_cached_request_data",
            "if idx >= num_running_reqs:",
            "if False:",
        ),
        name="vllm-resumed-told-as-running",
        what=(
            "A request that comes back after a preemption is told as one that runs, and its new row"
            " is appended to its old one."
        ),
        anomaly="aliased-write",
        checker="ownership",
        group="G",
    ),
)
