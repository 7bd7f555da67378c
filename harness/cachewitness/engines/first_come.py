"""Schedules for a cache that has no scheduler: first come, first served, and whoever came last
gives way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from cachewitness.core.trace_format import Step
from cachewitness.engines.adapter import Adapter, Asked, Scheduled


class FirstCome(Adapter, Protocol):
    """An adapter that says what one request can compute now; who computes in a step is decided
    here, at both levels.

    Requests that hold their place come first, in the order in which they came. If one of them gets
    no pages, the one that came last is preempted, and nobody is admitted in that step. Whoever
    waits is admitted in order, until one gets no pages.
    """

    budget: int
    """Tokens of a step, unless the trace says fewer."""
    requests: Mapping[str, Any]
    """Who has come and not ended, by name, in that order."""

    def compute(self, r: str, tokens: int) -> tuple[int, int] | None:
        """Give a request pages for so many more tokens at most, and return which it computes,
        [start, stop); None: none now.

        One that holds nothing is looked up first, and the hit reported.
        """

    def waiting(self) -> Iterable[str]:
        """Return the requests that hold nothing, in the order in which they came."""
        return [r for r in self.requests if not any(self.tables(r))]

    def running(self) -> list[str]:
        """Return the requests that hold pages, in the order in which they came."""
        return [r for r in self.requests if any(self.tables(r))]

    def schedule(self, asked: Asked | None, step: Step) -> Scheduled:
        """Let those compute whom the trace asks, as far as they get pages; without it, whoever
        has come, in order.
        """
        scheduled = Scheduled()
        for r, tokens in asked or ():
            self._run(r, tokens, scheduled)
        if asked is None:
            self._serve(min(step.budget or self.budget, self.budget), scheduled)
        return scheduled

    def _serve(self, budget: int, scheduled: Scheduled) -> None:
        waiting = list(self.waiting())
        for r in self.running():
            left = budget - scheduled.num_tokens
            while r in self.running() and left and not self._run(r, left, scheduled):
                waiting = []
                self.engine.preempt(self.running()[-1])
        for r in waiting:
            if scheduled.num_tokens == budget or not self._run(
                r, budget - scheduled.num_tokens, scheduled
            ):
                return

    def _run(self, r: str, tokens: int, scheduled: Scheduled) -> bool:
        chunk = self.compute(r, tokens)
        if chunk is not None:
            scheduled.chunks[r] = chunk
        return chunk is not None
