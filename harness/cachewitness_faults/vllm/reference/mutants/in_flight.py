"""Faults in what happens while a step or a copy is under way, and between requests of one step."""

from __future__ import annotations

from functools import partial
from typing import Any

from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import REFERENCE, adapter, core, groups, wrap
from cachewitness.engines.mutant import declared, mutant
from cachewitness_reference.vllm.request import Request, RequestStatus
from cachewitness_reference.vllm_extended.loading_scheduler import LoadingScheduler

fault = partial(mutant, engines=REFERENCE)
of_scheduler = partial(fault, level="scheduler")


@of_scheduler(
    name="aborted-run-taken-back",
    mirrors="vllm-project/vllm#43569, #57580",
    anomaly="partial-commit",
    checker="commit-order",
    group="B",
)
def aborted_run_taken_back(engine: Driver) -> None:
    """An abort takes the request out of the step that it was scheduled in, and its keys of that
    step stay.
    """

    def finish_requests(
        original: Any, request_ids: Any, status: Any = RequestStatus.FINISHED
    ) -> None:
        names = list(request_ids)
        original(names, status)
        if status is RequestStatus.ABORTED:
            for step in engine.in_flight:
                step.scheduled.withdrawn.extend(r for r in names if r in step.scheduled.chunks)

    wrap(adapter(engine).scheduler, "finish_requests", finish_requests)


@fault(
    name="place-of-a-state-outlives-a-preemption",
    mirrors="vllm-project/vllm (last_state_block_idx of a request that was preempted)",
    anomaly="late-release",
    checker="timely-release",
    group="D",
)
def place_of_a_state_outlives_a_preemption(engine: Driver) -> None:
    """A preempted request keeps the place up to which its states were given back.

    When it runs again, the states in front of that place stay in its table.
    """

    def plant(manager: Any) -> None:
        def free(original: Any, request_id: str) -> None:
            place = manager._num_retired_blocks.get(request_id)
            original(request_id)
            if place is not None:
                manager._num_retired_blocks[request_id] = place

        wrap(manager, "free", free)

    for manager in groups(engine, "Mamba"):
        plant(manager)


@of_scheduler(
    name="answer-of-a-lost-step-taken",
    mirrors="vllm-project/vllm#47282",
    anomaly="aliased-write",
    checker="ownership",
    group="D",
)
def answer_of_a_lost_step_taken(engine: Driver) -> None:
    """A request that lost its blocks takes the answer of a step that was in flight then.

    Compare a step's answer with the requests that there are, and not with the times that each has
    begun.
    """
    scheduler = adapter(engine).scheduler

    def update_from_output(original: Any, output: Any) -> Any:
        for r in output.num_preemptions:
            if r in scheduler.requests:
                output.num_preemptions[r] = scheduler.requests[r].num_preemptions
        return original(output)

    wrap(scheduler, "update_from_output", update_from_output)


@of_scheduler(
    name="sources-let-go-by-an-abort",
    mirrors="sgl-project/sglang#31833",
    anomaly="double-free",
    checker="ownership",
    group="H",
)
def sources_let_go_by_an_abort(engine: Driver) -> None:
    """An abort lets go of what a step in flight is still to copy, and the end of the step does so
    again.

    Give back what is held for copies of a step in flight when a request of it is aborted.
    """

    def finish_requests(
        original: Any, request_ids: Any, status: Any = RequestStatus.FINISHED
    ) -> None:
        names = list(request_ids)
        original(names, status)
        for output in adapter(engine)._outputs if status is RequestStatus.ABORTED else ():
            if any(r in output.num_scheduled_tokens for r in names):
                core(engine).block_pool.free_blocks(output.retained_blocks)

    wrap(adapter(engine).scheduler, "finish_requests", finish_requests)


@of_scheduler(
    name="weights-do-not-wait-for-transfers",
    mirrors="vllm-project/vllm#57727",
    anomaly="stale-hit",
    checker="safety-law",
    group="L",
)
def weights_do_not_wait_for_transfers(engine: Driver) -> None:
    """New weights come while a load or a store is under way, the reset is refused for that, and
    nobody looks at its answer.
    """
    if isinstance(adapter(engine).scheduler, LoadingScheduler):
        wrap(engine, "_drain", lambda original, transfers: original(transfers=False))


@fault(
    name="same-step-guard-lost-by-a-hit",
    mirrors="vllm-project/vllm#29387",
    anomaly="uncommitted-hit",
    checker="commit-order",
    group="B",
)
def same_step_guard_lost_by_a_hit(engine: Driver) -> None:
    """Of a chain of requests in one step, the third hits a state that the second, which has hit
    something itself, is to write.

    Forget which states this step writes as soon as somebody is admitted behind a hit.
    """

    def plant(manager: Any) -> None:
        def add_local_computed_blocks(
            original: Any, request_id: str, blocks: Any, *args: Any
        ) -> Any:
            behind_a_hit.update([request_id] if blocks else [])
            return original(request_id, blocks, *args)

        def cache_blocks(original: Any, request: Request, *args: Any, **kwargs: Any) -> Any:
            done = original(request, *args, **kwargs)
            if request.request_id in behind_a_hit:
                manager.cached_blocks_this_step.clear()
            return done

        behind_a_hit: set[str] = set()
        wrap(manager, "add_local_computed_blocks", add_local_computed_blocks)
        wrap(manager, "cache_blocks", cache_blocks)

    for manager in groups(engine, "Mamba"):
        plant(manager)


late = partial(of_scheduler, anomaly="late-release", checker="timely-release", group="H")


@late(
    name="states-given-back-a-step-late",
    mirrors="vllm-project/vllm v1/core/kv_cache_manager.py (tokens in flight taken off twice)",
)
def states_given_back_a_step_late(engine: Driver) -> None:
    """What lies behind a state is given back by what the step before the last had computed."""
    seen: dict[str, int] = {}

    def remove_skipped_blocks(original: Any, request_id: str, processed: int) -> None:
        original(request_id, min(seen.get(request_id, processed), processed))
        seen[request_id] = processed

    for manager in groups(engine, "Mamba"):
        wrap(manager, "remove_skipped_blocks", remove_skipped_blocks)


@late(
    name="nothing-given-back-beside-a-step-in-flight",
    mirrors="vllm-project/vllm#47728 (what a step in flight reads stays)",
)
def nothing_given_back_beside_a_step_in_flight(engine: Driver) -> None:
    """While a step is in flight no page behind a window or a state is given back."""
    coordinator = core(engine).coordinator

    def remove_skipped_blocks(original: Any, request_id: str, processed: int) -> None:
        if not adapter(engine).scheduler.requests[request_id].num_in_flight_tokens:
            original(request_id, processed)

    wrap(coordinator, "remove_skipped_blocks", remove_skipped_blocks)


MUTANTS = declared(globals())
