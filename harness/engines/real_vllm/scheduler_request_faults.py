"""Faults in what vLLM's own scheduler does with drafts in flight.

Each is the source of vLLM 0.33.0 with one piece changed, as in `scheduler_faults`.
"""

from __future__ import annotations

from functools import partial

from harness.engines.mutant import declared, mutant
from harness.engines.real_vllm.patch import SCHEDULER, Patches, planted

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
    name="vllm-keys-of-tokens-in-flight",
    mirrors="-",
    anomaly="partial-commit",
    checker="commit-order",
    group="C",
)
@planted
def keys_of_tokens_in_flight(patches: Patches) -> None:
    """Blocks are keyed up to tokens that steps in flight have yet to compute.

    Key what was scheduled, and not what has run.
    """
    old = "request.num_computed_tokens - request.num_in_flight_tokens, )"
    patches.text(SCHEDULER, OWNER, "update_from_output", old, "request.num_computed_tokens)")


REQUESTED = declared(globals())
