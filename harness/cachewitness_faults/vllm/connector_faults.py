"""Faults in vLLM's connectors, and in what its scheduler does with them: one piece of the source is
taken out again.

Each is shown with the connector that has it (`CONNECTOR_OF`); without one there is nothing to
plant.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from cachewitness.engines.mutant import Mutant
from cachewitness.engines.source_edits import Edit, edited
from cachewitness_faults.vllm.modules import MANAGER, SCHEDULER

OWNER = "Scheduler"
SIMPLE, SIMPLE_WORKER = "v1.simple_kv_offload.manager", "v1.simple_kv_offload.worker"
OFFLOADING = "distributed.kv_transfer.kv_connector.v1.offloading.scheduler"
SIMPLE_CONNECTOR = "distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector"
EVENTS, TRACKER = (
    "distributed.kv_transfer.kv_connector.v1.offloading.events",
    "OffloadingEventsTracker",
)

ASKED = "request.num_tokens - num_new_local_computed_tokens"
"""What of a request its connector is asked for, in tokens."""

fault = partial(edited, level="scheduler", group="K")

CONNECTED: tuple[Mutant, ...] = (
    fault(
        Edit(
            SIMPLE_CONNECTOR,
            "SimpleCPUOffloadConnector",
            "take_events",
            "if self.scheduler_manager is not None:",
            "if self.scheduler_manager is None:",
        ),
        name="vllm-simple-tells-no-router",
        what="Routers are never told what the host's memory has, which requests load from it.",
        anomaly="lost-key-event",
        checker="key-events",
    ),
    fault(
        Edit(
            EVENTS,
            TRACKER,
            "record_store",
            "self._pending_event_metadata[offload_key] = meta",
            "pass",
        ),
        name="vllm-offload-told-without-tokens",
        what="Routers are told of stored blocks of full attention without their tokens.",
        anomaly="malformed-key-event",
        checker="key-events",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "_handle_blocked_waiting_request",
            "if request_id not in self.finished_recving_kv_req_ids:",
            "if request_id is None:",
        ),
        Edit(
            SCHEDULER,
            OWNER,
            "_update_waiting_for_remote_kv",
            "self.finished_recving_kv_req_ids.remove(request.request_id)",
            "self.finished_recving_kv_req_ids.discard(None)",
        ),
        Edit(
            SCHEDULER,
            OWNER,
            "_update_from_kv_xfer_finished",
            "assert RequestStatus.is_finished(req.status)",
            "continue",
        ),
        name="vllm-load-not-waited-for",
        what="A request goes on behind its hit while the connector still loads it.",
        anomaly="stale-hit",
        checker="safety-law",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "_update_requests_with_invalid_blocks",
            "request.num_computed_tokens = idx * self.block_size",
            "pass",
        ),
        name="vllm-failed-block-not-computed",
        what="A request goes on behind blocks that could not be loaded.",
        anomaly="stale-hit",
        checker="safety-law",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "_handle_failed_recving",
            "request.num_computed_tokens = 0 self.failed_recving_kv_req_ids.add(req_id)",
            "pass",
        ),
        name="vllm-failed-load-not-computed",
        what="A request of a hybrid model goes on behind a load that failed.",
        anomaly="stale-hit",
        checker="safety-law",
    ),
    fault(
        Edit(
            SIMPLE_WORKER,
            "SimpleCPUOffloadWorker",
            "_poll_stream_events",
            "if not event.query(): break",
            "",
        ),
        name="vllm-simple-load-reported-early",
        what="The worker reports a load as done when it has asked for it.",
        anomaly="stale-hit",
        checker="safety-law",
    ),
    fault(
        Edit(
            SIMPLE,
            "SimpleCPUOffloadScheduler",
            "update_state_after_alloc",
            "group_gpu_ids[gpu_ext_start + i]",
            "group_gpu_ids[i]",
        ),
        name="vllm-simple-load-forgets-its-place",
        what=(
            "What the memory has beyond the device's hit is loaded into the request's first blocks."
        ),
        anomaly="stale-hit",
        checker="safety-law",
    ),
    fault(
        Edit(
            OFFLOADING,
            "OffloadingConnectorScheduler",
            "_build_connector_meta",
            "jid for bid in self._current_batch_allocated_block_ids if bid in"
            " self._block_id_to_pending_jobs",
            "jid for bid in () if bid in self._block_id_to_pending_jobs",
        ),
        name="vllm-offload-store-not-fenced",
        what=(
            "A block is given to somebody else while it is still stored, and nobody waits for the"
            " store."
        ),
        anomaly="partial-commit",
        checker="commit-order",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "_handle_invalid_blocks",
            "self.kv_cache_manager.evict_blocks(sync_blocks_to_evict)",
            "pass",
        ),
        name="vllm-failed-load-keeps-its-keys",
        what=(
            "Blocks that a load was to fill, within the step that failed, stay keyed when their"
            " request is given up."
        ),
        anomaly="uncommitted-hit",
        checker="commit-order",
    ),
    fault(
        Edit(
            EVENTS,
            TRACKER,
            "_build_event_metadata",
            "chunk_hashes = resolve_block_hashes( raw_chunk_hashes, tokens_per_hash,"
            " group_config.tokens_per_block, )",
            "chunk_hashes = raw_chunk_hashes",
        ),
        Edit(
            EVENTS,
            TRACKER,
            "_build_event_metadata",
            "assert len(chunk_hashes) == ( group_config.tokens_per_chunk //"
            " group_config.tokens_per_block )",
            "pass",
        ),
        name="vllm-offload-told-at-the-hashes-grain",
        what="An event of a block on the host has a hash for each part of a block.",
        anomaly="malformed-key-event",
        checker="key-events",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "schedule",
            "if request.skip_reading_prefix_cache: ext_tokens, load_kv_async = 0, False",
            "pass",
        ),
        Edit(
            SIMPLE,
            "SimpleCPUOffloadScheduler",
            "get_num_new_matched_tokens",
            "if request.skip_reading_prefix_cache: return 0, False",
            "pass",
        ),
        name="vllm-prompt-logprobs-loaded",
        what=(
            "Who asks for log-probabilities of its prompt is not looked up on the device, but what"
            " the connector has is loaded."
        ),
        anomaly="unwanted-hit",
        checker="safety-law",
    ),
    fault(
        Edit(
            EVENTS,
            TRACKER,
            "_build_event_metadata",
            "tok_start = chunk_idx * group_config.tokens_per_chunk",
            "tok_start = max(chunk_idx - 1, 0) * group_config.tokens_per_chunk",
        ),
        name="vllm-offload-told-with-the-tokens-before",
        what="An event of a block on the host has the tokens of the block in front of it.",
        anomaly="false-key-event",
        checker="key-events",
    ),
    fault(
        Edit(
            MANAGER,
            "KVCacheManager",
            "take_boundary_state_offloads",
            "for mgr in self.coordinator.single_type_managers:",
            "for mgr in self.coordinator.single_type_managers[:1]:",
        ),
        name="vllm-states-are-not-handed-over",
        what="A connector is handed the states of the first group alone, which has none.",
        anomaly="lost-store",
        checker="stores",
    ),
    fault(
        Edit(
            OFFLOADING,
            "OffloadingConnectorScheduler",
            "_build_aligned_boundary_store_jobs",
            "or boundary > max_boundary",
            "or boundary >= max_boundary",
        ),
        name="vllm-offload-last-state-not-stored",
        what="The state at the last boundary of a prompt is not stored.",
        anomaly="lost-store",
        checker="stores",
    ),
    # --- what operators are told ------------------------------------------------------------------
    fault(
        Edit(SCHEDULER, OWNER, "schedule", ASKED, "request.num_tokens"),
        name="vllm-connector-asked-for-whole-prompts",
        what=(
            "Operators are told that the connector was asked for what the device had, too: its hit"
            " rate is too low."
        ),
        anomaly="false-statistics",
        checker="statistics",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "schedule",
            "connector_prefix_cache_hits = num_external_computed_tokens",
            "self.connector_prefix_cache_stats.record(connector_prefix_cache_queries,"
            " num_external_computed_tokens, request.num_preemptions > 0)",
        ),
        Edit(
            SCHEDULER,
            OWNER,
            "schedule",
            "and connector_prefix_cache_queries != 0 and not defer_load",
            "and False",
        ),
        name="vllm-connector-counted-when-asked",
        what=(
            "What the connector has for a request that waits for blocks, and is not loaded, is"
            " counted in each step."
        ),
        anomaly="false-statistics",
        checker="statistics",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "schedule",
            "self.kv_cache_manager.record_prefix_cache_stats( request,"
            " num_new_local_computed_tokens )",
            "self.kv_cache_manager.record_prefix_cache_stats(request,"
            " 0 if connector_prefix_cache_hits else num_new_local_computed_tokens)",
        ),
        Edit(
            SCHEDULER,
            OWNER,
            "schedule",
            ASKED,
            "request.num_tokens - (0 if num_external_computed_tokens else"
            " num_new_local_computed_tokens)",
        ),
        Edit(
            SCHEDULER,
            OWNER,
            "schedule",
            "connector_prefix_cache_hits = num_external_computed_tokens",
            "connector_prefix_cache_hits = num_external_computed_tokens and"
            " num_new_local_computed_tokens + num_external_computed_tokens",
        ),
        name="vllm-hit-of-both-told-of-the-connector",
        what="What the device has in front of what the connector has is told as the connector's.",
        anomaly="false-statistics",
        checker="statistics",
    ),
    fault(
        Edit(
            "distributed.kv_transfer.kv_connector.utils",
            "",
            "yield_req_data",
            "yield req_data.req_id, req_data.block_ids, True",
            "yield req_data.req_id, req_data.block_ids, False",
        ),
        name="vllm-session-told-to-the-connector-again",
        what=(
            "A session that goes on is told with all of its blocks, and the connector takes them"
            " for further ones: what it stores is another block's."
        ),
        anomaly="partial-commit",
        checker="commit-order",
    ),
)

OFFLOADED = (
    "vllm-states-are-not-handed-over",
    "vllm-offload-last-state-not-stored",
    "vllm-offload-store-not-fenced",
    "vllm-offload-told-without-tokens",
    "vllm-offload-told-at-the-hashes-grain",
    "vllm-offload-told-with-the-tokens-before",
    "vllm-session-told-to-the-connector-again",
)
"""What is shown on `OffloadingConnector`; the others are on `SimpleCPUOffloadConnector`."""

CONNECTOR_OF: Mapping[str, str] = {
    **{fault.name: "offloading" if fault.name in OFFLOADED else "simple" for fault in CONNECTED},
    "vllm-failed-load-keeps-its-keys": "offloading-sync,load_failure=fail,sync_failures=yes",
}
"""The connector on which each is shown, with the engine's options that it takes."""
