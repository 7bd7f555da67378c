"""Bugs that were in a release of vLLM, in its connectors or in what its scheduler does with one:
each fix is undone again.

As in `shipped_faults`, which says what each is. Each is shown with the connector that it is listed
under.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from cachewitness.engines.mutant import Mutant
from cachewitness.engines.source_edits import Edit, edited
from cachewitness_faults.vllm.modules import SCHEDULER

OWNER = "Scheduler"
OFFLOADER, OFFLOADED = "v1.simple_kv_offload.manager", "SimpleCPUOffloadScheduler"
OFFLOADING, OFFLOADS = (
    "distributed.kv_transfer.kv_connector.v1.offloading.scheduler",
    "OffloadingConnectorScheduler",
)

fault = partial(edited, level="scheduler")

ON_OFFLOADING: tuple[Mutant, ...] = (
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "finish_requests",
            "delay_free_blocks = ( self.deferred_loads.pop(request.request_id, None) is None and "
            "request.request_id not in self.finished_recving_kv_req_ids )",
            "delay_free_blocks = False",
        ),
        Edit(
            SCHEDULER,
            OWNER,
            "_update_from_kv_xfer_finished",
            "assert req_id in self.requests req = self.requests[req_id] if req.status",
            "req = self.requests.get(req_id)\nif req is None:\n    continue\nif req.status",
        ),
        name="vllm-freed-while-loading",
        what="The blocks of a request that is aborted are given back while they are still filled.",
        mirrors="vllm-project/vllm#32255",
        anomaly="aliased-write",
        checker="ownership",
        group="K",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "_handle_blocked_waiting_request",
            "if request.num_preemptions: request.status = RequestStatus.PREEMPTED else:"
            " request.status = RequestStatus.WAITING",
            "request.status = RequestStatus.WAITING",
        ),
        name="vllm-resumed-behind-a-load-told-as-new",
        what=(
            "A preempted request that was loaded is told to the worker as a new one, without what"
            " it had generated."
        ),
        mirrors="vllm-project/vllm#31583",
        anomaly="stale-hit",
        checker="safety-law",
        group="E",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "_get_local_prefix_cache_hit",
            "if connector is not None and connector.supports_divergent_local_hybrid_hits:",
            "if connector is not None:",
        ),
        Edit(
            SCHEDULER,
            OWNER,
            "schedule",
            "if hit_diverged and num_external_computed_tokens == 0:",
            "if False:",
        ),
        name="vllm-connector-hit-resumed",
        what="A hit that a connector was to complete is resumed without it.",
        mirrors=(
            "vllm-project/vllm#48425, vllm-project/vllm#50344, vllm-project/vllm#53505,"
            " vllm-project/vllm#46453"
        ),
        anomaly="group-misalignment",
        checker="safety-law",
        group="C",
    ),
    fault(
        Edit(
            OFFLOADING,
            OFFLOADS,
            "_build_connector_meta",
            "self._current_batch_jobs_to_flush.update(jobs_to_flush)",
            "pass",
        ),
        name="vllm-offload-preempted-while-storing",
        what=(
            "What is still stored of a request goes on being copied when the request is preempted"
            " and its blocks are others'."
        ),
        mirrors="vllm-project/vllm#29870",
        anomaly="partial-commit",
        checker="commit-order",
        group="K",
    ),
    fault(
        Edit(
            OFFLOADING,
            OFFLOADS,
            "_build_store_jobs",
            "if req.status is RequestStatus.FINISHED_ABORTED:",
            "if False:",
        ),
        name="vllm-offload-beyond-what-was-computed",
        what="Of a request that is aborted in its prompt the whole prompt is stored.",
        mirrors="vllm-project/vllm#49285",
        anomaly="partial-commit",
        checker="commit-order",
        group="K",
    ),
    fault(
        Edit(OFFLOADING, OFFLOADS, "_update_req_states", "group_state.block_ids[j] = 0", "pass"),
        name="vllm-offload-stale-window-block",
        what="A window block that could not be stored in time is stored when somebody else has it.",
        mirrors="vllm-project/vllm#42959",
        anomaly="partial-commit",
        checker="commit-order",
        group="K",
    ),
    fault(
        Edit(
            OFFLOADING,
            OFFLOADS,
            "_lookup_complete_chunks",
            "max_hit_size_tokens = round_down( max_hit_size_tokens, self._mamba_align_size )",
            "pass",
        ),
        name="vllm-offload-state-off-the-grid",
        what=(
            "A request resumes one token before the end of a block, on the state of the block's"
            " end."
        ),
        mirrors="vllm-project/vllm#51094, vllm-project/vllm#51100",
        anomaly="state-position-skew",
        checker="safety-law",
        group="K",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "_get_local_prefix_cache_hit",
            "if connector is not None and connector.supports_divergent_local_hybrid_hits:",
            "if connector is not None:",
        ),
        name="vllm-hit-cut-for-any-connector",
        what=(
            "A hit that a connector was to complete is asked of one that cannot, and what the pool"
            " had is lost."
        ),
        mirrors="vllm-project/vllm#50344",
        anomaly="lost-hit",
        checker="reuse-floor",
        group="C",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "schedule",
            "limit_lookahead_tokens = load_kv_async and self.num_lookahead_tokens > 0",
            "limit_lookahead_tokens = False",
        ),
        name="vllm-lookahead-of-a-load",
        what=(
            "A request that is loaded is given room for drafts in blocks that the step that runs it"
            " asks for again."
        ),
        mirrors="vllm-project/vllm#46694",
        anomaly="no-progress",
        checker="progress",
        group="K",
    ),
    fault(
        Edit(
            OFFLOADING,
            OFFLOADS,
            "_update_req_states",
            "for group_state in req_status.group_states: group_state.block_ids.clear()",
            "pass",
        ),
        Edit(
            OFFLOADING,
            OFFLOADS,
            "get_num_new_matched_tokens",
            "group_state.block_ids.clear()",
            "pass",
        ),
        name="vllm-offload-appends-to-the-old-blocks",
        what=(
            "The blocks of a request that is resumed are noted behind those that it had before it"
            " was preempted."
        ),
        mirrors="vllm-project/vllm#29870",
        anomaly="partial-commit",
        checker="commit-order",
        group="K",
    ),
    fault(
        Edit(
            OFFLOADING,
            OFFLOADS,
            "_build_connector_meta",
            "if not req_status.transfer_jobs: del self._req_status[req_id]",
            "del self._req_status[req_id]",
        ),
        name="vllm-offload-forgotten-before-its-last-store",
        what=(
            "A finished request is forgotten when its last store begins, and nobody is there when"
            " it ends."
        ),
        mirrors="vllm-project/vllm#49671",
        anomaly="engine-crashed",
        checker="engine",
        group="K",
    ),
    fault(
        Edit(
            OFFLOADING,
            OFFLOADS,
            "_build_store_jobs",
            "if group_config.requires_cow_source: continue",
            "pass",
        ),
        Edit(
            OFFLOADING,
            OFFLOADS,
            "_update_req_states",
            "if ( group_state.block_ids[j] in self._current_batch_allocated_block_ids ):",
            "if (\n"
            "    not self.config.kv_group_configs[grp_idx].requires_cow_source\n"
            "    and group_state.block_ids[j] in self._current_batch_allocated_block_ids\n"
            "):",
        ),
        name="vllm-offload-states-by-their-place",
        what=(
            "States are stored by their place in a list of blocks that is only added to, in which"
            " a block that drafts left has its old place."
        ),
        mirrors="vllm-project/vllm#51358",
        anomaly="fabricated-snapshot",
        checker="no-fabricated-snapshots",
        group="K",
    ),
)

ON_OUTPUTS: tuple[Mutant, ...] = (
    fault(
        Edit(
            OFFLOADING,
            OFFLOADS,
            "get_num_new_matched_tokens",
            "if req_status.transfer_jobs:",
            "if False:",
        ),
        name="vllm-offload-looked-up-while-storing",
        what="A preempted request is to be loaded while its own stores are under way.",
        mirrors="vllm-project/vllm#46231",
        anomaly="engine-crashed",
        checker="engine",
        group="K",
    ),
    fault(
        Edit(
            OFFLOADING,
            OFFLOADS,
            "_build_store_jobs",
            "if bid in self._current_batch_allocated_block_ids:"
            " self._current_batch_jobs_to_flush.add(job_id)",
            "pass",
        ),
        name="vllm-offload-last-store-not-fenced",
        what=(
            "The last block of a finished request is stored after the step in which somebody else"
            " got it."
        ),
        mirrors="vllm-project/vllm#48596",
        anomaly="partial-commit",
        checker="commit-order",
        group="K",
    ),
)

ON_SIMPLE: tuple[Mutant, ...] = (
    fault(
        Edit(OFFLOADER, OFFLOADED, "__init__", "use_eagle=use_eagle_block_drop", "use_eagle=False"),
        name="vllm-simple-offload-without-eagle",
        what=(
            "The second tier is looked up without the block that EAGLE gives up, and loads more"
            " than may be hit."
        ),
        mirrors="vllm-project/vllm#49071",
        anomaly="undropped-hit",
        checker="speculative-drop",
        group="K",
        built=True,
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "_request_blocks_can_be_freed",
            "return not self.defer_block_free or ( request.last_sched_seq <="
            " self.processed_step_seq )",
            "return True",
        ),
        name="vllm-freed-under-a-step-in-flight",
        what=(
            "Blocks that a step in flight still writes are given to a load, which waits for no"
            " step."
        ),
        mirrors="vllm-project/vllm#45357",
        anomaly="aliased-write",
        checker="ownership",
        group="K",
    ),
    fault(
        Edit(
            SCHEDULER,
            OWNER,
            "schedule",
            "if not self._request_blocks_can_be_freed(preempted_req): break",
            "pass",
        ),
        name="vllm-victims-that-free-nothing-yet",
        what=(
            "Requests are preempted one after the other whose blocks are not free before the step"
            " in flight has ended."
        ),
        mirrors="vllm-project/vllm#49674",
        anomaly="vain-preemption",
        checker="progress",
        group="K",
    ),
)

SHIPPED_CONNECTED = ON_OFFLOADING + ON_OUTPUTS + ON_SIMPLE
SHIPPED_CONNECTOR_OF: Mapping[str, str] = {
    **{fault.name: "offloading" for fault in ON_OFFLOADING},
    **{fault.name: "offloading-outputs" for fault in ON_OUTPUTS},
    **{fault.name: "simple" for fault in ON_SIMPLE},
}
"""The connector on which each is shown."""
