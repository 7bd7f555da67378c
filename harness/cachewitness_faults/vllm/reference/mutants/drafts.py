"""Faults in drafts, and in what is scheduled while a step is in flight."""

from __future__ import annotations

from typing import Any

from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import REFERENCE, core, groups, wrap
from cachewitness.engines.mutant import declared, mutant


@mutant(
    name="state-after-last-draft",
    mirrors="vllm-project/vllm#53912",
    anomaly="state-position-skew",
    checker="safety-law",
    group="D",
    engines=REFERENCE,
    level="scheduler",
)
def state_after_last_draft(engine: Driver) -> None:
    """The state after the last draft is continued from, although fewer drafts stood."""

    def plant(manager: Any) -> None:
        def commit_drafts(
            original: Any, request_id: str, num_computed_tokens: int, num_accepted: int
        ) -> None:
            scratch = manager.speculative_blocks[request_id]
            manager.speculative_blocks[request_id] = [*scratch[: num_accepted - 1], scratch[-1]]
            original(request_id, num_computed_tokens, num_accepted)
            manager.speculative_blocks[request_id] = scratch

        wrap(manager, "commit_drafts", commit_drafts)

    for manager in groups(engine, "Mamba"):
        plant(manager)


@mutant(
    name="boundary-state-left-behind",
    mirrors="vllm-project/vllm#47861",
    anomaly="fabricated-snapshot",
    checker="no-fabricated-snapshots",
    group="D",
    engines=REFERENCE,
    level="scheduler",
)
def boundary_state_left_behind(engine: Driver) -> None:
    """A boundary that drafts passed is keyed over the state before it.

    Key the boundary that drafts passed, and leave the state there where it was tried.
    """

    def plant(manager: Any) -> None:
        def commit_drafts(
            original: Any, request_id: str, num_computed_tokens: int, num_accepted: int
        ) -> None:
            original(request_id, num_computed_tokens, num_accepted)
            if request_id in manager._states_to_come and manager._pending_cow_copies:
                manager.drop_pending_cow_copies(request_id)

        wrap(manager, "commit_drafts", commit_drafts)

    for manager in groups(engine, "Mamba"):
        plant(manager)


@mutant(
    name="older-step-in-flight-forgotten",
    mirrors="vllm-project/vllm#47282",
    anomaly="use-after-free",
    checker="safety-law",
    group="D",
    engines=REFERENCE,
    level="scheduler",
)
def older_step_in_flight_forgotten(engine: Driver) -> None:
    """Of two steps in flight, what the older one alone reads is given back.

    Keep what the step scheduled last still reads, and give back what only those in flight before it
    read.
    """

    def allocate_slots(original: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        in_flight = request.num_in_flight_tokens
        runs = engine.in_flight[-1].begin.runs if engine.in_flight else []
        request.num_in_flight_tokens = sum(
            run.stop - run.start for run in runs if run.r == request.request_id
        )
        try:
            return original(request, *args, **kwargs)
        finally:
            request.num_in_flight_tokens = in_flight

    wrap(core(engine), "allocate_slots", allocate_slots)


@mutant(
    name="window-freed-by-drafts",
    mirrors="vllm-project/vllm#33997",
    anomaly="premature-release",
    checker="window-liveness",
    group="D",
    engines=REFERENCE,
    level="scheduler",
)
def window_freed_by_drafts(engine: Driver) -> None:
    """Windows move on by drafts that are not verified yet."""
    coordinator = core(engine).coordinator

    def remove_skipped_blocks(original: Any, request_id: str, num_computed_tokens: int) -> None:
        original(
            request_id, num_computed_tokens + coordinator.config.options.num_speculative_tokens
        )

    wrap(coordinator, "remove_skipped_blocks", remove_skipped_blocks)


@mutant(
    name="hashes-of-fallen-drafts-stay",
    mirrors="vllm-project/vllm#49449",
    anomaly="lost-hit",
    checker="reuse-floor",
    group="I",
    engines=REFERENCE,
    level="scheduler",
)
def hashes_of_fallen_drafts_stay(engine: Driver) -> None:
    """A request's text changes, and the hashes of its blocks do not.

    Hash what drafts would fill, and keep the hashes of those that fall.
    """

    def allocate_slots(original: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        given = original(request, *args, **kwargs)
        if given is not None and request.spec_token_ids:
            known = request.num_tokens
            request.append_output_token_ids(request.spec_token_ids)
            del request.all_token_ids[known:]
        return given

    wrap(core(engine), "allocate_slots", allocate_slots)


MUTANTS = declared(globals())
