"""Faults in vLLM's connectors, and in what its scheduler does with them: one piece of the source is taken out again.

Each is shown with the connector that has it (`CONNECTOR_OF`); without one there is nothing to plant.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from harness.engines.mutant import declared, mutant
from harness.engines.real_vllm.patch import SCHEDULER, Patches, planted

OWNER = "Scheduler"
SIMPLE, SIMPLE_WORKER = "v1.simple_kv_offload.manager", "v1.simple_kv_offload.worker"
OFFLOADING = "distributed.kv_transfer.kv_connector.v1.offloading.scheduler"

fault = partial(mutant, engines=("vllm",), height="scheduler", group="K")


@fault(
    name="vllm-load-not-waited-for",
    mirrors="-",
    anomaly="stale-hit",
    checker="safety-law",
)
@planted
def load_not_waited_for(patches: Patches) -> None:
    """A request goes on behind its hit while the connector still loads it.

    Do not ask whether the load has ended before the request is put back into the queue.
    """
    old = "if request_id not in self.finished_recving_kv_req_ids:"
    patches.text(SCHEDULER, OWNER, "_handle_blocked_waiting_request", old, "if request_id is None:")
    told = "self.finished_recving_kv_req_ids.remove(request.request_id)"
    patches.text(SCHEDULER, OWNER, "_update_waiting_for_remote_kv", told, "self.finished_recving_kv_req_ids.discard(None)")
    status = "assert RequestStatus.is_finished(req.status)"
    patches.text(SCHEDULER, OWNER, "_update_from_kv_xfer_finished", status, "continue")


@fault(
    name="vllm-failed-block-not-computed",
    mirrors="-",
    anomaly="stale-hit",
    checker="safety-law",
)
@planted
def failed_block_not_computed(patches: Patches) -> None:
    """A request goes on behind blocks that could not be loaded.

    Leave the request where its hit ended when some of its blocks are reported as invalid.
    """
    old = "request.num_computed_tokens = idx * self.block_size"
    patches.text(SCHEDULER, OWNER, "_update_requests_with_invalid_blocks", old, "pass")


@fault(
    name="vllm-failed-load-not-computed",
    mirrors="-",
    anomaly="stale-hit",
    checker="safety-law",
)
@planted
def failed_load_not_computed(patches: Patches) -> None:
    """A request of a hybrid model goes on behind a load that failed.

    Leave the request where its hit ended when its load is reported as failed.
    """
    old = "request.num_computed_tokens = 0 self.failed_recving_kv_req_ids.add(req_id)"
    patches.text(SCHEDULER, OWNER, "_handle_failed_recving", old, "pass")


@fault(
    name="vllm-freed-while-loading",
    mirrors="-",
    anomaly="aliased-write",
    checker="ownership",
)
@planted
def freed_while_loading(patches: Patches) -> None:
    """The blocks of a request that is aborted are given back while they are still filled.

    Free them at once, and take no notice when the load ends.
    """
    old = (
        "delay_free_blocks = ( self.deferred_loads.pop(request.request_id, None) is None "
        "and request.request_id not in self.finished_recving_kv_req_ids )"
    )
    patches.text(SCHEDULER, OWNER, "finish_requests", old, "delay_free_blocks = False")
    told = "assert req_id in self.requests req = self.requests[req_id] if req.status"
    new = "req = self.requests.get(req_id)\nif req is None:\n    continue\nif req.status"
    patches.text(SCHEDULER, OWNER, "_update_from_kv_xfer_finished", told, new)


@fault(
    name="vllm-simple-load-reported-early",
    mirrors="-",
    anomaly="stale-hit",
    checker="safety-law",
)
@planted
def load_reported_early(patches: Patches) -> None:
    """The worker reports a load as done when it has asked for it.

    Do not ask the event of the stream whether the copy is over.
    """
    patches.text(SIMPLE_WORKER, "SimpleCPUOffloadWorker", "_poll_stream_events", "if not event.query(): break", "")


@fault(
    name="vllm-simple-load-forgets-its-place",
    mirrors="-",
    anomaly="stale-hit",
    checker="safety-law",
)
@planted
def load_forgets_its_place(patches: Patches) -> None:
    """What the memory has beyond the device's hit is loaded into the request's first blocks.

    Count the blocks of a load from the beginning of the table.
    """
    old = "group_gpu_ids[gpu_ext_start + i]"
    patches.text(SIMPLE, "SimpleCPUOffloadScheduler", "update_state_after_alloc", old, "group_gpu_ids[i]")


@fault(
    name="vllm-offload-store-not-fenced",
    mirrors="vllm-project/vllm#46951",
    anomaly="partial-commit",
    checker="commit-order",
)
@planted
def store_not_fenced(patches: Patches) -> None:
    """A block is given to somebody else while it is still stored, and nobody waits for the store.

    Flush no job for blocks that are handed out anew.
    """
    old = "jid for bid in self._current_batch_allocated_block_ids if bid in self._block_id_to_pending_jobs"
    new = "jid for bid in () if bid in self._block_id_to_pending_jobs"
    patches.text(OFFLOADING, "OffloadingConnectorScheduler", "_build_connector_meta", old, new)


@fault(
    name="vllm-offload-stale-window-block",
    mirrors="vllm-project/vllm#42959",
    anomaly="partial-commit",
    checker="commit-order",
)
@planted
def stale_window_block(patches: Patches) -> None:
    """A window block that could not be stored in time is stored when somebody else has it.

    Leave the number of a block in the request's list when the block is handed out anew.
    """
    old = "group_state.block_ids[j] = 0"
    patches.text(OFFLOADING, "OffloadingConnectorScheduler", "_update_req_states", old, "pass")


@fault(
    name="vllm-offload-state-off-the-grid",
    mirrors="vllm-project/vllm#51094",
    anomaly="state-position-skew",
    checker="safety-law",
)
@planted
def state_off_the_grid(patches: Patches) -> None:
    """A request resumes one token before the end of a block, on the state of the block's end.

    Do not round a hit down to the blocks of the recurrent groups.
    """
    old = "max_hit_size_tokens = round_down( max_hit_size_tokens, self._mamba_align_size )"
    patches.text(OFFLOADING, "OffloadingConnectorScheduler", "_lookup_complete_chunks", old, "pass")


CONNECTED = declared(globals())
CONNECTOR_OF: Mapping[str, str] = {
    **{fault.name: "simple" for fault in CONNECTED},
    **{fault.name: "offloading" for fault in (freed_while_loading, store_not_fenced, stale_window_block, state_off_the_grid)},
}
"""The connector on which each is shown."""
