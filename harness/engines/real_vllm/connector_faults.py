"""Faults in vLLM's connectors, and in what its scheduler does with them: one piece of the source is taken out again.

Each is shown with the connector that has it (`CONNECTOR_OF`); without one there is nothing to plant.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from harness.engines.mutant import declared, mutant
from harness.engines.real_vllm.patch import SCHEDULER, Patches, planted

OWNER = "Scheduler"

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


CONNECTED = declared(globals())
CONNECTOR_OF: Mapping[str, str] = {fault.name: "simple" for fault in CONNECTED}
"""The connector on which each is shown."""
