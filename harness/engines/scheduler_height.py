"""An engine at scheduler height: requests in, steps out; the reference's own scheduler decides who computes how much.

Chunk splits, admission, preemption and abort are the scheduler's. It calls the cache manager through the observer, so the
same events come out as at manager height; the harness plays the worker only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from harness.engines.observe import POOL, ObservedManager
from harness.history import (
    Aborted,
    Accept,
    Event,
    Finished,
    Header,
    Move,
    Preempted,
    ResetDone,
    Run,
    StepBegin,
    StepEnd,
    Submitted,
    Version,
)
from harness.trace import Abort, Finish, Op, Preempt, Reset, Step, Submit, UpdateWeights, Vocabulary
from reference_impl.vllm.config import KVCacheConfig
from reference_impl.vllm.request import Request, RequestStatus
from reference_impl.vllm.scheduler import RefusedRequest, Scheduler


class SchedulerHeight:
    """Carries out the operations of a trace on the reference's scheduler over an observed manager."""

    def __init__(
        self,
        header: Header,
        config: KVCacheConfig,
        manager: ObservedManager,
        new_request: Callable[[Submit, list[int]], Request],
    ) -> None:
        self.header = msgspec.structs.replace(header, height="scheduler")
        self.manager = manager
        self.new_request = new_request
        self._view: Any = _Preempting(manager)
        self.scheduler = Scheduler(config, self._view, self._sample)
        self._vocabulary = Vocabulary()
        self._texts: dict[str, str] = {}

    def describe(self) -> Header:
        """Return the header that the engine was built with."""
        return self.header

    def close(self) -> None:
        """Nothing is held outside this process."""

    def apply(self, op: Op) -> list[Event]:
        """Carry out one operation and return its events; one on a request that has ended by itself does nothing."""
        events: list[Event] = []
        self.manager.events = events
        match op:
            case Submit():
                self._submit(op)
            case Step():
                self._step(op)
            case Finish() | Abort():
                self._end(op)
            case Preempt():
                if op.r in self.scheduler.requests and self.scheduler.requests[op.r].status is RequestStatus.RUNNING:
                    self.scheduler.preempt(op.r)
            case Reset():
                ok = self.scheduler.reset_prefix_cache(reset_running_requests=op.running)
                events.append(ResetDone(step=self.manager.step, ok=ok))
            case UpdateWeights():
                self._view.reason = "version"
                self.scheduler.update_weights()
                self._view.reason = "reset"
                events.append(ResetDone(step=self.manager.step, ok=True))
                events.append(Version(step=self.manager.step, weights=op.version))
        return events

    def _submit(self, op: Submit) -> None:
        tokens = self._vocabulary.tokens(op.prompt)
        self._texts[op.r] = op.stream or f"@{op.r}"
        event = Submitted(r=op.r, tokens=tokens, salt=op.salt, adapter=op.adapter, media=op.media, step=self.manager.step)
        self.manager.events.append(event)
        try:
            self.scheduler.add_request(self.new_request(op, tokens))
        except RefusedRequest:
            self.manager.events.append(Aborted(r=op.r, step=self.manager.step))

    def _end(self, op: Finish | Abort) -> None:
        if op.r not in self.scheduler.requests:
            return
        finished = isinstance(op, Finish)
        self.manager.events.append((Finished if finished else Aborted)(r=op.r, step=self.manager.step))
        self.scheduler.finish_requests([op.r], RequestStatus.FINISHED if finished else RequestStatus.ABORTED)

    def _step(self, op: Step) -> None:
        step = self.manager.step = self.manager.step + 1
        events, scheduler = self.manager.events, self.scheduler
        output = scheduler.schedule(op.budget)
        withdrawn = scheduler.withdraw(output, op.withdraw) if op.withdraw else []
        events += [Preempted(r=r, step=step) for r in withdrawn]
        runs = []
        for r, count in output.num_scheduled_tokens.items():
            stop = scheduler.requests[r].num_computed_tokens
            runs.append(Run(r, stop - count, stop, self.manager.tables(r)))
        copies = [Move(copy.src_block_id, copy.dst_block_id) for copy in output.kv_cache_block_copies]
        zeros: list[tuple[int, list[int]]] = [(POOL, [*output.new_block_ids_to_zero])] if output.new_block_ids_to_zero else []
        events.append(StepBegin(step=step, runs=runs, copies=copies, zeros=zeros))
        events.append(StepEnd(step=step, withdrawn=withdrawn))
        lengths = {r: request.num_tokens for r, request in scheduler.requests.items()}
        for r, token in scheduler.update_from_output(output).items():
            events.append(Accept(r=r, upto=lengths[r] + 1, tokens=[token], step=step))
            if r not in scheduler.requests:
                events.append(Finished(r=r, step=step))

    def _sample(self, request: Request) -> int:
        return self._vocabulary.token(self._texts[request.request_id], request.num_output_tokens)


class _Preempting:
    """The observed manager as the scheduler calls it: giving back the pages of a running request is a preemption."""

    def __init__(self, manager: ObservedManager) -> None:
        self._manager = manager
        self.reason: Any = "reset"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def free(self, request: Request) -> None:
        """Report the preemption, if it is one, and free."""
        if request.status is RequestStatus.RUNNING:
            self._manager.events.append(Preempted(r=request.request_id, step=self._manager.step))
        self._manager.free(request)

    def reset_prefix_cache(self) -> bool:
        """Reset for the reason at hand."""
        return self._manager.reset_prefix_cache(self.reason)
