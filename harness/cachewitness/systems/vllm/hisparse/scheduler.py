"""vLLM's own Scheduler with its HiSparse connector, whose worker's part is played.

Source: vLLM 0.33.0, `v1/core/sched/scheduler.py`;
`distributed/kv_transfer/kv_connector/v1/hisparse/connector.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from cachewitness.core.events import Stats
from cachewitness.core.trace_format import Step
from cachewitness.engines.adapter import Asked, Scheduled
from cachewitness.engines.cache_state import Tables
from cachewitness.engines.manager_adapter import NewRequest
from cachewitness.systems.vllm.build import settle
from cachewitness.systems.vllm.clock import Clock
from cachewitness.systems.vllm.connectors.tier import KeyNames
from cachewitness.systems.vllm.hisparse.books import Books
from cachewitness.systems.vllm.hisparse.observed import ObservedTiers
from cachewitness.systems.vllm.hisparse.worker import HiSparseWorker
from cachewitness.systems.vllm.scheduler import RealScheduler, ReportingManager
from cachewitness.systems.vllm.source import Source
from cachewitness_reference.vllm_extended.config import Options


class HiSparseScheduler(RealScheduler):
    """Has vLLM's scheduler decide over two observed pools."""

    def __init__(
        self,
        source: Source,
        scheduler: Any,
        manager: ObservedTiers,
        new_request: NewRequest,
        clock: Clock,
        options: Options,
        names: KeyNames,
        books: Books,
    ) -> None:
        super().__init__(source, scheduler, manager, new_request, clock, options)
        self.tiers = manager
        self._names = names
        self._books = books
        books.clients = self.requests
        self.view = scheduler.kv_cache_manager = _ReportingTiers(self, clock)
        self.worker: HiSparseWorker
        self._answers: deque[Any] = deque()
        self._pauses = source.part("v1.core.sched.interface", "PauseState")
        self._output_type = source.part("v1.outputs", "KVConnectorOutput")

    def schedule(self, asked: Asked | None, step: Step) -> Scheduled:
        """Have vLLM schedule a step, and do the worker's part of it."""
        with self._paused() if asked is not None else nullcontext():
            scheduled = super().schedule(None, step)
        self._answers.append(
            self._output_type(
                kv_connector_worker_meta=self.worker.work(self._outputs[-1].kv_connector_metadata)
            )
        )
        scheduled.copies = [*self.worker.copies]
        self._books.in_flight.append(self.worker.reads())
        scheduled.stores = self.worker.stores
        scheduled.mirrors = {r: [*mirrors] for r, mirrors in self.worker.mirrors.items()}
        self.tiers.settle()
        return scheduled

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """Let vLLM schedule nobody in a step that is there for transfers."""
        before = self.scheduler.pause_state
        self.scheduler.set_pause_state(self._pauses["PAUSED_ALL"])
        yield
        self.scheduler.set_pause_state(before)

    def _model_output(self, sampled: dict[str, list[int]]) -> Any:
        output = super()._model_output(sampled)
        settle(self.source, output, {"kv_connector_output": self._answers.popleft()})
        return output

    def complete(self, scheduled: Scheduled) -> None:
        """Answer the oldest step, with the transfers that are over."""
        self._books.in_flight.popleft()
        super().complete(scheduled)
        self.tiers.settle()

    def statistics_of(self, outputs: Any) -> list[Stats]:
        """Return nothing: operators are told of the device's pool alone, which is a part of the
        ledger's.
        """
        return []

    def transferring(self) -> bool:
        """Whether transfers are under way or wait to begin."""
        return bool(self.scheduler.connector.has_pending_push_work())

    def worker_tables(self, r: str) -> Tables:
        """Return where a request's attention reads and writes."""
        return self.worker.composed(r)

    def end(self, r: str, *, finished: bool) -> None:
        """Let a request go; transfers of its blocks hold them until they are over."""
        super().end(r, finished=finished)
        self.tiers.settle()

    def preempt(self, r: str) -> None:
        """Preempt a request."""
        super().preempt(r)
        self.tiers.settle()

    def resets_at_once(self) -> bool:
        """Whether vLLM can: it raises where transfers hold blocks, or a step in flight does, so
        then these end first.
        """
        return not self._outputs and self.who_runs_has_all()

    def who_runs_has_all(self) -> bool:
        """Whether nobody has blocks but requests that run."""
        return self.tiers.holdings.held_by() <= {*self.running()}

    def renew(self) -> bool:
        """End everything that was computed with the old weights."""
        if done := super().renew():
            self._names.forget()
        return done


class _ReportingTiers(ReportingManager):
    """The observed manager as vLLM's scheduler calls it where a freed block may wait for a step
    in flight.
    """

    def __init__(self, adapter: RealScheduler, clock: Clock) -> None:
        super().__init__(adapter, clock)
        self.remove_skipped_blocks = clock.outside(self._manager.remove_skipped_blocks)
        self.pop_blocks_for_free = clock.outside(self._pop_blocks_for_free)

    def _pop_blocks_for_free(self, request: Any) -> Any:
        """Take a request's blocks away from it, and report the preemption if it is one."""
        self._adapter.report(request.request_id)
        if not request.is_finished():
            self._adapter.engine.preempted(request.request_id)
        return self._manager.pop_blocks_for_free(request)
