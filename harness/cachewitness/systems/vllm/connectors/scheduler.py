"""vLLM's own Scheduler with a KV connector: it asks the connector what its memory holds, and waits
for what is loaded.

A step goes as in vLLM's model runner: the scheduler's connector says what to copy, the worker's
connector asks the device for it, and what has ended is told the scheduler with the step's output.
Both connectors are vLLM's; the device is the ledger's.

A hit is reported when the scheduler has given the request its blocks and the step says which of
them are loaded, so it rests on what the worker is told and not on the look-up. Blocks that the
connector keeps beside requests are held by `copy:N`. Who ends while blocks are still loaded or
stored for it keeps them as `store:N`.

Sources: vLLM 0.33.0, `v1/core/sched/scheduler.py`; `v1/worker/kv_connector_model_runner_mixin.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from cachewitness.core.events import UnpublishReason
from cachewitness.core.trace_format import Step
from cachewitness.engines.adapter import SECOND, Asked, Scheduled
from cachewitness.engines.cache_state import Tables
from cachewitness.engines.observe import ObservedManager
from cachewitness.engines.observe_pins import POOL
from cachewitness.engines.observe_tier import NOT_FROM_THERE, TIER
from cachewitness.systems.vllm.build import NewRequest, settle
from cachewitness.systems.vllm.clock import Clock, late
from cachewitness.systems.vllm.connectors.copies import Copies
from cachewitness.systems.vllm.connectors.kinds import Connector
from cachewitness.systems.vllm.connectors.lookup_state import ConnectedManager
from cachewitness.systems.vllm.connectors.tier import ObservedMemory
from cachewitness.systems.vllm.scheduler import RealScheduler
from cachewitness.systems.vllm.source import Source
from cachewitness_reference.vllm_extended.config import Options


class ConnectedScheduler(RealScheduler):
    """Has vLLM's scheduler decide over an observed manager and an observed connector."""

    sync_failures = False
    """Whether loads fail too that are over before the runs of their step: what the worker then
    computes is thrown away."""

    def __init__(
        self,
        source: Source,
        scheduler: Any,
        manager: ObservedManager,
        new_request: NewRequest,
        clock: Clock,
        options: Options,
        connector: Connector,
    ) -> None:
        super().__init__(source, scheduler, manager, new_request, clock, options)
        self.connector = connector
        self._copies = Copies(options.tier_delay)
        self.held = ConnectedManager(self, clock)
        self.view = scheduler.kv_cache_manager = self.held
        self._groups = len(manager.coordinator.single_type_managers)
        self._memory = ObservedMemory(connector, self._groups)
        self._answers: deque[Any] = deque()
        self._work = clock.inside(late(connector, "work"))
        self._reset_connector_cache = clock.inside(late(scheduler, "reset_connector_cache"))
        self._pauses = source.part("v1.core.sched.interface", "PauseState")
        self._leaving: dict[str, Any] = {}
        """Who was aborted and is to be let go of later, where the connector wants that (`patient`).
        """
        self._forgot = False
        """Whether the connector has forgotten what it has since a step was scheduled last."""
        self._group_of: dict[int, int] = {}
        """For which of the device's groups a page of the connector's memory is filled."""
        connector.attach(self.held.pool, self._copies)

    # --- steps ------------------------------------------------------------------------------------

    def schedule(self, asked: Asked | None, step: Step) -> Scheduled:
        """Have vLLM schedule a step, then have the worker begin, and perhaps end, what its
        connector is told to copy.
        """
        self._forgot = False
        self._copies.begin_step(step.fail if self.sync_failures else ())
        with (
            self._paused("PAUSED_ALL" if self._copies.under_way else "PAUSED_NEW")
            if asked is not None
            else _running()
        ):
            scheduled = super().schedule(None, step)
        output = self._outputs[-1]
        answer = self._work(output, step.fail)
        self._tell_what_failed(answer)
        self._answers.append(answer)
        copies = self._copies
        self._note_groups()
        scheduled.copies += copies.before
        scheduled.begun = copies.begun
        scheduled.ended = copies.ended
        scheduled.failed = copies.failed
        scheduled.flushed = copies.flushed
        if self.sync_failures:
            lacking = self.held.who_has(copies.lost)
            scheduled.withdrawn = [r for r in scheduled.chunks if r in lacking]
        self._report_hits()
        self._look("evict")
        return scheduled

    @contextmanager
    def _paused(self, state: str) -> Iterator[None]:
        """Let vLLM schedule nobody, or nobody new, in a step that is there for transfers."""
        before = self.scheduler.pause_state
        self.scheduler.set_pause_state(self._pauses[state])
        self.connector.hold_back(held=True)
        yield
        self.connector.hold_back(held=False)
        self.scheduler.set_pause_state(before)

    def _model_output(self, sampled: dict[str, list[int]]) -> Any:
        output = super()._model_output(sampled)
        settle(self.source, output, {"kv_connector_output": self._answers.popleft()})
        return output

    def _tell_what_failed(self, answer: Any) -> None:
        """Have the worker say which loads failed: by block where there is one group, else by
        request, as vLLM asks for it.
        """
        if self.connector.tells_failures:
            return
        if self._groups == 1:
            answer.invalid_block_ids.update(self._copies.lost)
        else:
            answer.failed_recving.update(self.held.who_has(self._copies.lost))

    def complete(self, scheduled: Scheduled) -> None:
        """Answer the oldest step, with what was copied; vLLM may end requests whose load failed.

        Whoever ends in it is forgotten by vLLM, and may have got hashes in it that its connector
        stores.
        """
        there = [*self.requests.values()]
        super().complete(scheduled)
        self.connector.names.learn(there)
        self._end_who_left()
        for r in [
            r
            for r, request in self.requests.items()
            if request.status == self._status["FINISHED_ERROR"]
        ]:
            del self.requests[r]
            self.engine.over(r, scheduled.step, finished=False)
        self.held.let_linger(self.requests, self.scheduler.requests)
        self._look("evict")

    def transferring(self) -> bool:
        """Whether copies are under way or wait to begin, or somebody holds blocks who waits to
        go on behind a load.
        """
        waiting = (
            self.scheduler.connector.has_pending_push_work()
            or len(self.scheduler.kv_holding_waiting) > 0
        )
        return bool(self._copies.under_way or waiting)

    def worker_tables(self, r: str) -> Tables:
        """Return the rows that the worker was told, and none for the connector's memory."""
        held = self.manager.tables(r)
        null = self.manager.block_pool.null_block.block_id
        return self.worker.rows(r, held[: self._groups], null) + held[self._groups :]

    # --- requests ---------------------------------------------------------------------------------

    def end(self, r: str, *, finished: bool) -> None:
        """Let a request go; what is loaded for it or stored of it keeps its blocks.

        vLLM's scheduler stops a request that runs and has generated a token, of which all but the
        last token is computed. Any other is aborted: of those that have stopped, connectors store
        what they have tokens for.
        """
        request = self.requests[r]
        if self.connector.patient and self._is_loading(request):
            self._leaving[r] = self.requests.pop(r)
            self.held.let_linger(self.requests, self.scheduler.requests)
            return
        runs = any(request is other for other in self.scheduler.running)
        least = max(request.num_tokens - 1, request.num_prompt_tokens)
        super().end(r, finished=finished and runs and request.num_computed_tokens >= least)
        self.held.let_linger(self.requests, self.scheduler.requests)
        self._look("evict")

    def _is_loading(self, request: Any) -> bool:
        waits = request.status == self._status["WAITING_FOR_REMOTE_KVS"]
        return waits and request.request_id not in self.scheduler.finished_recving_kv_req_ids

    def _end_who_left(self) -> None:
        """Abort requests, now that what was loaded for them is there."""
        for r in [r for r, request in self._leaving.items() if not self._is_loading(request)]:
            del self._leaving[r]
            self._finish_requests(r, self._status["FINISHED_ABORTED"])

    def preempt(self, r: str) -> None:
        """Preempt a request, and take note of what its connector does with that."""
        super().preempt(r)
        self._look("evict")

    # --- the whole cache --------------------------------------------------------------------------

    def resets_at_once(self) -> bool:
        """Whether vLLM can: it raises where somebody has blocks who does not run, so then steps in
        flight and copies end first.

        Who waits for a load has some, `SimpleCPUOffloadConnector` holds what it stores, and who is
        preempted under a step in flight gives its blocks back when that is over
        (`defer_block_free`). Stores of `OffloadingConnector` hold nothing.
        """
        return not self._outputs and self.who_runs_has_all()

    def reset(self, tier: str, *, running: bool) -> Iterable[tuple[str, bool]]:
        """Forget every key of the device, of the connector's memory, or of both."""
        yield from super().reset(tier, running=running)
        if tier in ("", SECOND):
            yield SECOND, self._forget_memory("reset")

    def renew(self) -> bool:
        """End everything that was computed with the old weights, in both tiers."""
        if self.connector.patient and (self.connector.away or self.connector.books().references):
            return False
        done = super().renew() and self._forget_memory("version")
        self.connector.names.forget()
        return done

    def _forget_memory(self, reason: UnpublishReason) -> bool:
        """Have the connector forget; of several, one may do so and another not: then nothing was
        asked for that was done.

        Asked again before the next step, `OffloadingConnector` asserts that it has nothing to
        flush, though the first reset left it that. vLLM tells its client that the reset failed, and
        serves on: it counts as refused.
        """
        try:
            done = bool(self._reset_connector_cache())
        except AssertionError:
            if not self._forgot:
                raise
            done = False
        self._forgot = self._forgot or done
        if self.connector.patient:
            done = done and not self.connector.books().keys
        self._look(reason if done else "evict")
        return done

    # --- what the connector did -------------------------------------------------------------------

    def _note_groups(self) -> None:
        """Note for which group each page of the connector's memory is filled: that of the block
        it is filled from.
        """
        for _, move in self._copies.begun:
            if move.dst_pool == TIER:
                known = self._copies.group_of.get(move.dst)
                self._group_of[move.dst] = self.held.group_of(move.src) if known is None else known

    def _report_hits(self) -> None:
        """Report who was given blocks for what the connector's memory holds, and from where they
        are loaded.

        The event stands where the request was looked up: what is evicted for its blocks goes later.
        """
        places = {
            move.dst: move.src
            for move in [*self._copies.before, *(move for _, move in self._copies.begun)]
            if (move.src_pool, move.dst_pool) == (TIER, POOL)
        }
        events = self.manager.events
        for r, (place, length) in reversed(self.held.take_hits().items()):
            last = self.scheduler.requests[r].num_tokens - 1
            rows = self.held.blocks_of(r, length)
            fetched = [[places.get(page, NOT_FROM_THERE) for page in row] for row in rows]
            tier = SECOND if any(place >= 0 for row in fetched for place in row) else "local"
            self.manager.diff.hit(r, length, rows + fetched, resume=min(length, last), tier=tier)
            events.insert(place, events.pop())

    def _look(self, reason: UnpublishReason) -> None:
        """Report what became of the connector's memory."""
        self.connector.names.learn(self.scheduler.requests.values())
        self.manager.events += self._memory.changes(self.manager.step, self._filled_for, reason)

    def _filled_for(self, page: int) -> int:
        """Return the device's group for which a page of the connector's memory is filled."""
        return self._copies.group_of.get(page, self._group_of.get(page, 0))


@contextmanager
def _running() -> Iterator[None]:
    yield
