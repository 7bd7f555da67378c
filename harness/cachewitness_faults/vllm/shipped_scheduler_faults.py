"""Bugs that were in a release of vLLM, in its scheduler or in what its worker keeps of the batch:
each fix is undone again.

As in `shipped_faults`, which says what each is; all are found at scheduler level. Source: the
reports and pull requests that each names, read beside the sources of the releases 0.26.0 to 0.33.0.
"""

from __future__ import annotations

from functools import partial

from cachewitness.engines.mutant import Mutant
from cachewitness.engines.source_edits import Edit, edited
from cachewitness_faults.vllm.modules import MANAGER, SCHEDULER

OWNER = "Scheduler"
RUNNER, RUNNER_CLASS = "v1.worker.gpu_model_runner", "GPUModelRunner"
STATES = "v1.worker.mamba_utils"

fault = partial(edited, level="scheduler")

SHIPPED_SCHEDULER: tuple[Mutant, ...] = (
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "_mamba_block_aligned_split",
            "prefill_end = max(request.num_prompt_tokens, request.num_tokens - 1)",
            "prefill_end = request.num_prompt_tokens",
        ),
        name="vllm-replayed-output-is-not-cut",
        what=(
            "What a resumed request computes again of its output is cut anywhere, and its states"
            " are keyed at boundaries."
        ),
        mirrors="vllm-project/vllm#33706",
        anomaly="fabricated-snapshot",
        checker="no-fabricated-snapshots",
        group="A",
    ),
    # --- what the worker is told of tokens --------------------------------------------------------
    fault(
        Edit(
            RUNNER,
            RUNNER_CLASS,
            "_update_states",
            "if self.use_async_scheduling and num_output_tokens > 0:",
            "if False:",
        ),
        name="vllm-worker-forgets-what-was-generated",
        what=(
            "A request that comes back to the batch with steps in flight has placeholders for what"
            " it had generated."
        ),
        mirrors="vllm-project/vllm#26385",
        anomaly="stale-hit",
        checker="safety-law",
        group="F",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "_make_cached_request_data",
            "all_token_ids[req_id] = req.all_token_ids.copy()",
            "all_token_ids[req_id] = req.all_token_ids[: req.num_computed_tokens +"
            " num_scheduled_tokens[req_id]]",
        ),
        name="vllm-told-as-far-as-the-chunk",
        what=(
            "The worker is told a resumed request's tokens up to the end of its chunk, and takes"
            " the last for output."
        ),
        mirrors="vllm-project/vllm#28787",
        anomaly="stale-hit",
        checker="safety-law",
        group="F",
    ),
    # --- sessions ---------------------------------------------------------------------------------
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "_update_request_as_session",
            "del session.block_hashes[keep_end // self.hash_block_size :]",
            "pass",
        ),
        name="vllm-session-keeps-a-hash-of-what-it-dropped",
        what=(
            "A block that the last token of an answer completed keeps its hash when other input"
            " takes that token's place."
        ),
        mirrors="vllm-project/vllm#49449, vllm-project/vllm#49377",
        anomaly="false-key-event",
        checker="key-events",
        group="C",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "_handle_stopped_request",
            "request.num_computed_tokens = safe_frontier",
            "pass",
        ),
        Edit(
            SCHEDULER, OWNER, "_handle_stopped_request", "request.drop_stale_output = True", "pass"
        ),
        Edit(
            SCHEDULER,
            OWNER,
            "_handle_stopped_request",
            "request.num_stale_output_tokens = request.num_in_flight_tokens\n       "
            " request.num_output_placeholders = 0",
            "pass",
        ),
        name="vllm-session-counts-steps-in-flight",
        what=(
            "When the answer of a session is over, what steps in flight compute behind it still"
            " counts."
        ),
        mirrors="vllm-project/vllm#35755, vllm-project/vllm#52765",
        anomaly="engine-crashed",
        checker="engine",
        group="C",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "_update_request_with_output",
            "request.num_computed_tokens -= len(new_token_ids) - num_new",
            "pass",
        ),
        name="vllm-session-goes-on-behind-drafts-of-its-answer",
        what=(
            "Drafts behind the token at which an answer stopped still count as computed, and the"
            " session goes on behind them."
        ),
        mirrors="mended in vLLM 0.33",
        anomaly="engine-crashed",
        checker="engine",
        group="C",
    ),
    # --- running states ---------------------------------------------------------------------------
    fault(
        Edit(
            STATES,
            "",
            "cleanup_mamba_state_idx",
            "itertools.chain(finished_req_ids, preempted_req_ids, resumed_req_ids)",
            "itertools.chain(finished_req_ids, preempted_req_ids)",
        ),
        Edit(
            SCHEDULER,
            OWNER,
            "schedule",
            "preempted_req_ids=self.reset_preempted_req_ids",
            "preempted_req_ids={request.request_id for request in preempted_reqs}",
        ),
        name="vllm-column-outlives-a-reset",
        what=(
            "A request that a reset took its blocks from goes on from the column where its state"
            " was before."
        ),
        mirrors="vllm-project/vllm#35157",
        anomaly="stale-hit",
        checker="safety-law",
        group="E",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "_make_cached_request_data",
            "if req_id not in self.prev_step_scheduled_req_ids:",
            "if req_id in resumed_req_ids:",
        ),
        Edit(
            RUNNER,
            RUNNER_CLASS,
            "_update_states",
            "if self.use_async_scheduling and num_output_tokens > 0:",
            "if self.use_async_scheduling and resumed_from_preemption and num_output_tokens > 0:",
        ),
        name="vllm-left-out-of-a-step-and-not-told",
        what=(
            "A request that was left out of a step, and not preempted, comes back without what it"
            " had generated."
        ),
        mirrors="vllm-project/vllm#27756",
        anomaly="stale-hit",
        checker="safety-law",
        group="F",
    ),
    fault(
        Edit(
            RUNNER,
            RUNNER_CLASS,
            "_update_states",
            "cached_req_ids - (scheduled_req_ids - resumed_req_ids)",
            "cached_req_ids - scheduled_req_ids",
        ),
        Edit(RUNNER, RUNNER_CLASS, "_update_states", "assert req_index is None", "pass"),
        name="vllm-resumed-in-its-own-row",
        what=(
            "A request that is preempted and resumed in one step keeps its row, and its new blocks"
            " come behind the old."
        ),
        mirrors="vllm-project/vllm#28827",
        anomaly="aliased-write",
        checker="ownership",
        group="F",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "schedule",
            "if preempted_req in scheduled_running_reqs: preempted_req_id",
            "if False:\n    preempted_req_id",
        ),
        name="vllm-preempted-and-scheduled",
        what=(
            "Who is preempted for a request of higher priority stays among those that the step"
            " runs."
        ),
        mirrors="vllm-project/vllm#23713",
        anomaly="engine-crashed",
        checker="engine",
        group="F",
    ),
    # --- what operators are told ------------------------------------------------------------------
    fault(
        Edit(
            MANAGER,
            "KVCacheManager",
            "get_computed_blocks",
            "blocks = self.create_kv_cache_blocks(computed_blocks)",
            "self.record_prefix_cache_stats(request, num_new_computed_tokens)\n"
            "blocks = self.create_kv_cache_blocks(computed_blocks)",
        ),
        Edit(
            SCHEDULER,
            OWNER,
            "schedule",
            "if did_prefix_cache_lookup: self.kv_cache_manager.record_prefix_cache_stats",
            "if False: self.kv_cache_manager.record_prefix_cache_stats",
        ),
        name="vllm-look-ups-counted-when-made",
        what="A request that waits for blocks is looked up, and counted, again in each step.",
        mirrors="vllm-project/vllm#43736, vllm-project/vllm#48860",
        anomaly="false-statistics",
        checker="statistics",
        group="I",
    ),
)
