"""Faults in who runs, and in whether the engine survives it."""

from __future__ import annotations

from typing import Any

from harness.engines.manager_height import ManagerHeight
from harness.mutants import Mutant
from harness.mutants.tools import BOTH, core, wrap


def resumed_request_refused(engine: ManagerHeight) -> None:
    """Never again give slots to a request that was preempted."""

    def allocate_slots(original: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        return None if request.num_preemptions else original(request, *args, **kwargs)

    wrap(core(engine), "allocate_slots", allocate_slots)


def preemption_crashes(engine: ManagerHeight) -> None:
    """Fail when a request that shares blocks is preempted a second time."""

    def free(original: Any, request: Any) -> None:
        if request.num_preemptions == 1:
            raise RuntimeError(f"request {request.request_id} has no table")
        original(request)

    wrap(core(engine), "free", free)


MUTANTS = (
    Mutant(
        "resumed-request-refused",
        "a preempted request is never admitted again",
        "vllm-project/vllm#40707",
        "stuck",
        "progress",
        resumed_request_refused,
        BOTH,
        group="O",
    ),
    Mutant(
        "second-preemption-crashes",
        "freeing a request raises after it was preempted once",
        "sgl-project/sglang#18694",
        "died",
        "engine",
        preemption_crashes,
        BOTH,
        group="O",
    ),
)
