"""Faults in vLLM's own scheduler: a line that a fix brought, or that everything rests on, is taken out of its source again.

Each is the source of vLLM 0.33.0 with one piece changed, so it sits where the code is that must not lose it; a release that
does not have the piece refuses the fault. They are found at scheduler height.
"""

from __future__ import annotations

from functools import partial

from harness.engines.mutant import declared, mutant
from harness.engines.real_vllm.patch import SCHEDULER, Patches, planted

OWNER = "Scheduler"

fault = partial(mutant, engines=("vllm",), height="scheduler")


@fault(
    name="vllm-row-without-its-hit",
    mirrors="-",
    anomaly="stale-hit",
    checker="safety-law",
    group="H",
)
@planted
def row_without_its_hit(patches: Patches) -> None:
    """The worker is told the new blocks of an admitted request, and not those that it hit.

    Tell the worker what was allocated instead of the whole row.
    """
    old = "self.kv_cache_manager.get_blocks( request_id ) num_scheduled_tokens"
    patches.text(SCHEDULER, OWNER, "schedule", old, "new_blocks; num_scheduled_tokens")


@fault(
    name="vllm-new-blocks-never-told",
    mirrors="-",
    anomaly="aliased-write",
    checker="ownership",
    group="H",
)
@planted
def new_blocks_never_told(patches: Patches) -> None:
    """The worker is not told of the blocks that a running request gets.

    Tell it of no block where a running request was given some.
    """
    old = "req_to_new_blocks[request_id] = new_blocks num_scheduled_tokens"
    new = "req_to_new_blocks[request_id] = self.kv_cache_manager.empty_kv_cache_blocks; num_scheduled_tokens"
    patches.text(SCHEDULER, OWNER, "schedule", old, new)


@fault(
    name="vllm-first-chunk-ends-off-the-grid",
    mirrors="vllm-project/vllm#47861",
    anomaly="fabricated-snapshot",
    checker="no-fabricated-snapshots",
    group="A",
)
@planted
def first_chunk_off_the_grid(patches: Patches) -> None:
    """The first chunk of a request ends wherever the budget ends, and its state is keyed at the next boundary.

    Leave out the cut where a waiting request is admitted.
    """
    old = (
        "num_new_tokens = self._mamba_block_aligned_split( request, num_new_tokens, "
        "num_new_local_computed_tokens, num_external_computed_tokens, )"
    )
    patches.text(SCHEDULER, OWNER, "schedule", old, "pass")


@fault(
    name="vllm-later-chunks-end-off-the-grid",
    mirrors="vllm-project/vllm#48970",
    anomaly="fabricated-snapshot",
    checker="no-fabricated-snapshots",
    group="A",
)
@planted
def later_chunks_off_the_grid(patches: Patches) -> None:
    """All chunks but the first end wherever the budget ends.

    Leave out the cut where a running request goes on.
    """
    old = "num_new_tokens = self._mamba_block_aligned_split( request, num_new_tokens )"
    patches.text(SCHEDULER, OWNER, "schedule", old, "pass")


@fault(
    name="vllm-reset-that-resets-nothing",
    mirrors="vllm-project/vllm#57727",
    anomaly="cross-identity-hit",
    checker="identity",
    group="L",
)
@planted
def reset_that_resets_nothing(patches: Patches) -> None:
    """A reset of the cache succeeds, and every key is still there.

    Say that the cache was reset without resetting it.
    """
    old = "reset_successful = self.kv_cache_manager.reset_prefix_cache()"
    patches.text(SCHEDULER, OWNER, "reset_prefix_cache", old, "reset_successful = True")


@fault(
    name="vllm-ended-request-keeps-its-blocks",
    mirrors="-",
    anomaly="leak",
    checker="ownership",
    group="H",
)
@planted
def ended_request_keeps_its_blocks(patches: Patches) -> None:
    """A request that has ended keeps its blocks.

    Forget the request without giving back what it held.
    """
    patches.text(SCHEDULER, OWNER, "_free_blocks", "self._free_request_blocks(request)", "pass")


@fault(
    name="vllm-rejected-drafts-stay-computed",
    mirrors="-",
    anomaly="died",
    checker="engine",
    group="D",
)
@planted
def rejected_drafts_stay_computed(patches: Patches) -> None:
    """Drafts that were rejected count as computed, and the next step goes on behind tokens that do not exist.

    Leave the number of computed tokens as it is when drafts fall.
    """
    patches.text(SCHEDULER, OWNER, "update_from_output", "request.num_computed_tokens -= num_rejected", "pass")


@fault(
    name="vllm-resumed-before-its-output-came",
    mirrors="vLLM's test_kv_pressure_preemption_with_inflight_output",
    anomaly="died",
    checker="engine",
    group="D",
)
@planted
def resumed_before_its_output(patches: Patches) -> None:
    """A preempted request is admitted again while a step in flight still owes it a token.

    Do not wait for the output that was in flight when the request was preempted.
    """
    old = "if request.num_stale_output_tokens and not request.drop_stale_output:"
    patches.text(SCHEDULER, OWNER, "schedule", old, "if False:")


@fault(
    name="vllm-step-never-starts",
    mirrors="vllm-project/vllm#29387",
    anomaly="stuck",
    checker="progress",
    group="O",
)
@planted
def step_never_starts(patches: Patches) -> None:
    """A state that was keyed in some step can never be hit: the manager is not told that the next step starts.

    Leave out the call that forgets what was keyed in the step before.
    """
    patches.text(SCHEDULER, OWNER, "schedule", "self.kv_cache_manager.new_step_starts()", "pass")


@fault(
    name="vllm-copies-never-told",
    mirrors="-",
    anomaly="fabricated-snapshot",
    checker="no-fabricated-snapshots",
    group="E",
)
@planted
def copies_never_told(patches: Patches) -> None:
    """The worker is not told of the copies that a hit inside a block needs.

    Leave the copies out of what is sent to the worker.
    """
    old = "pending_kv_cache_block_copies = kv_cache_block_copies or None"
    patches.text(SCHEDULER, OWNER, "schedule", old, "pending_kv_cache_block_copies = None")


@fault(
    name="vllm-junction-forgotten",
    mirrors="vllm-project/vllm#45238",
    anomaly="lost-shared-prefix-boundary",
    checker="replay-boundary-retained",
    group="N",
)
@planted
def junction_forgotten(patches: Patches) -> None:
    """Where a prefix that others share goes on beyond the hit is looked up and forgotten.

    Look up the boundary, and do not note it at the request.
    """
    old = "request.shared_prefix_boundary, hit_diverged, ) = self._get_local_prefix_cache_hit"
    patches.text(SCHEDULER, OWNER, "schedule", old, "_, hit_diverged, ) = self._get_local_prefix_cache_hit")


@fault(
    name="vllm-key-events-without-an-answer",
    mirrors="-",
    anomaly="lost-key-event",
    checker="key-events",
    group="I",
)
@planted
def key_events_without_an_answer(patches: Patches) -> None:
    """Key events of a step that answers nobody, as in the middle of a prompt, are thrown away.

    Take the events, and publish them only if some request has output.
    """
    old = "events = self.kv_cache_manager.take_events()"
    patches.text(SCHEDULER, OWNER, "update_from_output", old, f"{old}[: None if outputs else 0]")


@fault(
    name="vllm-resumed-told-as-running",
    mirrors="-",
    anomaly="aliased-write",
    checker="ownership",
    group="G",
)
@planted
def resumed_told_as_running(patches: Patches) -> None:
    """A request that comes back after a preemption is told as one that runs, and its new row is appended to its old one.

    Do not say which requests come back.
    """
    patches.text(SCHEDULER, OWNER, "_make_cached_request_data", "if idx >= num_running_reqs:", "if False:")


SCHEDULED = declared(globals())
