"""When vLLM's engine asks its scheduler for a step: while that says that it has requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cachewitness.systems.vllm.source import Source


class EngineLoop:
    """The loop of vLLM's `EngineCore` over a scheduler, as far as it decides whether there is a
    step.

    Steps in which nobody waits are the harness's own, and a scheduler with a connector is stepped
    by the harness while copies are under way: the loop decides neither. `requests` are vLLM's that
    have not ended, by name.
    """

    def __init__(self, source: Source, scheduler: Any, requests: Mapping[str, Any]) -> None:
        self._scheduler = scheduler
        self._requests = requests
        self._nothing = source.part("v1.core.sched.output", "SchedulerOutput")
        self._alone = getattr(scheduler, "connector", None) is None

    def step(self) -> Any | None:
        """Return the output of a step that is not asked for although a request waits for it, which
        runs nobody; None if the scheduler is to be asked.
        """
        stands = self._alone and not self._scheduler.has_requests() and self._is_awaited()
        return self._nothing.make_empty() if stands else None

    def _is_awaited(self) -> bool:
        """Whether a request waits for a step, rather than for more input, or to be let go of."""
        return any(
            not request.is_finished() and request.status.name != "WAITING_FOR_STREAMING_REQ"
            for request in self._requests.values()
        )
