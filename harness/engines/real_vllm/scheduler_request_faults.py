"""Faults in what vLLM's own scheduler does with requests of special kinds: with drafts, with a grammar, of many adapters.

Each is the source of vLLM 0.33.0 with one piece changed, as in `scheduler_faults`.
"""

from __future__ import annotations

from functools import partial

from harness.engines.mutant import declared, mutant
from harness.engines.real_vllm.patch import SCHEDULER, SINGLE, Patches, planted

OWNER = "Scheduler"

fault = partial(mutant, engines=("vllm",), height="scheduler")


@fault(
    name="vllm-rejected-drafts-keep-their-placeholders",
    mirrors="-",
    anomaly="died",
    checker="engine",
    group="D",
)
@planted
def rejected_drafts_keep_their_placeholders(patches: Patches) -> None:
    """Drafts that were rejected while a step was in flight are still awaited.

    Take the rejected drafts off the computed tokens, and not off the placeholders.
    """
    patches.text(SCHEDULER, OWNER, "update_from_output", "request.num_output_placeholders -= num_rejected", "pass")


@fault(
    name="vllm-placeholders-of-a-preempted-request",
    mirrors="-",
    anomaly="died",
    checker="engine",
    group="D",
)
@planted
def placeholders_of_a_preempted_request(patches: Patches) -> None:
    """A preempted request still awaits the tokens of its steps in flight.

    Leave its placeholders as they are.
    """
    patches.text(SCHEDULER, OWNER, "_preempt_request", "request.num_output_placeholders = 0", "pass")


@fault(
    name="vllm-scratch-of-drafts-in-two-columns",
    mirrors="-",
    anomaly="double-free",
    checker="ownership",
    group="H",
)
@planted
def scratch_in_two_columns(patches: Patches) -> None:
    """A block for states after drafts that is moved to the end of the table stays in its old column too.

    Do not clear the column that it was moved from.
    """
    old = "req_blocks[block_idx] = self._null_block"
    patches.text(SINGLE, "MambaManager", "_relocate_speculative_block", old, "pass")


@fault(
    name="vllm-waiting-for-a-grammar-is-forgotten",
    mirrors="-",
    anomaly="stuck",
    checker="progress",
    group="O",
)
@planted
def waiting_is_forgotten(patches: Patches) -> None:
    """A request that is passed over, since its grammar is not compiled or too many adapters run, never gets another turn.

    Do not put back into the queue who was passed over.
    """
    patches.text(SCHEDULER, OWNER, "schedule", "self.waiting.prepend_requests(step_skipped_waiting)", "pass")


REQUESTED = declared(globals())
