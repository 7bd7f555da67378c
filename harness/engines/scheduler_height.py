"""An engine at scheduler height: requests in, steps out; the reference's own scheduler decides who computes how much.

Chunk splits, admission, preemption and abort are the scheduler's. It calls the cache manager through the observer, so the
same events come out as at manager height. By default the harness plays the worker and texts are scripted; an engine that
really computes brings a `Device`, which is given every step, and a `Sampler`, which says what came of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from harness.engines.observe import ObservedManager
from harness.engines.observe_pins import POOL
from harness.engines.observe_tier import TIER
from harness.engines.protocol import Device
from harness.engines.scripted import Scripted
from harness.history.events import (
    Aborted,
    Accept,
    Event,
    Finished,
    Header,
    Move,
    Pool,
    Preempted,
    ResetDone,
    Run,
    StepBegin,
    StepEnd,
    Submitted,
    Version,
)
from harness.trace.format import Abort, Finish, Media, Op, Preempt, Reset, Step, Submit, UpdateWeights, Vocabulary
from reference_impl.vllm.config import KVCacheConfig
from reference_impl.vllm.request import Request, RequestStatus
from reference_impl.vllm.scheduler import RefusedRequest, Sampler, SchedulerOutput
from reference_impl.vllm_extended.assemble import get_scheduler
from reference_impl.vllm_extended.config import options_of
from reference_impl.vllm_extended.loading_scheduler import LoadingScheduler, TransferMetadata
from reference_impl.vllm_extended.slow_tier import Transfer

LOCAL, SECOND = "local", "cpu"
"""The names of the tiers, as a reset names them."""

NewRequest = Callable[[Submit, list[int]], Request]


class _InFlight(NamedTuple):
    """A step that was scheduled and has not run; `requests` are those that run in it."""

    output: SchedulerOutput
    begin: StepBegin
    withdrawn: list[str]
    requests: dict[str, Request]


class SchedulerHeight:
    """Carries out the operations of a trace on the reference's scheduler over an observed manager.

    `new_request` makes the manager's request object from a submit and its tokens. `sampler` says what requests generate,
    scripted texts unless it is set; `device`, if one is set, carries every step out before anything is sampled from it.
    """

    def __init__(
        self,
        header: Header,
        config: KVCacheConfig,
        manager: ObservedManager,
        new_request: NewRequest,
    ) -> None:
        self.header = with_tier(msgspec.structs.replace(header, height="scheduler"), options_of(config).tier_pages)
        self.manager, self.diff = manager, manager.diff
        self.new_request = new_request
        self.device: Device | None = None
        self._vocabulary = Vocabulary()
        self._scripted = Scripted(self._vocabulary)
        self._view: Any = _Preempting(manager)
        self.scheduler = get_scheduler(config, self._view, self._scripted)
        self._depth = config.options.async_depth
        self._tables_aside: list[list[int]] = [[] for group in self.header.groups if group.pool == TIER]
        self._in_flight: deque[_InFlight] = deque()

    @property
    def events(self) -> list[Event]:
        """What happened in the operation under way."""
        return self.diff.events

    @property
    def sampler(self) -> Sampler:
        """Who says what requests generate."""
        return self.scheduler.sampler

    @sampler.setter
    def sampler(self, sampler: Sampler) -> None:
        self.scheduler.sampler = sampler

    def running(self) -> list[str]:
        """Return the requests that hold their place, the one that came last at the end."""
        return [request.request_id for request in self.scheduler.running]

    def describe(self) -> Header:
        """Return the header that the engine was built with."""
        return self.header

    def close(self) -> None:
        """Nothing is held outside this process."""

    def apply(self, op: Op) -> list[Event]:
        """Carry out one operation and return its events; one on a request that has ended by itself does nothing."""
        events: list[Event] = []
        self.diff.events = events
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
                self._reset(op)
            case UpdateWeights():
                self._update_weights(op)
        return events

    def submit_tokens(
        self, r: str, tokens: Sequence[int], *, salt: str = "", adapter: str = "", media: Sequence[Media] = (), shared: int = 0
    ) -> list[Event]:
        """Submit a request whose prompt is given as token ids, and return the events; the sampler must know what follows.

        vLLM finds out by itself what requests share, so `shared` says nothing here.

        Raises RefusedRequest if it can never run.
        """
        events: list[Event] = []
        self.diff.events = events
        self._add(Submit(r=r, prompt="", salt=salt, adapter=adapter, media=list(media)), list(tokens))
        return events

    def _submit(self, op: Submit) -> None:
        self._scripted.texts[op.r] = op.stream or f"@{op.r}"
        try:
            self._add(op, self._vocabulary.tokens(op.prompt))
        except RefusedRequest:
            self.diff.events.append(Aborted(r=op.r, step=self.diff.step))

    def _add(self, op: Submit, tokens: list[int]) -> None:
        event = Submitted(r=op.r, tokens=tokens, salt=op.salt, adapter=op.adapter, media=op.media, step=self.diff.step)
        self.diff.events.append(event)
        self.scheduler.add_request(self.new_request(op, list(tokens)))

    def _end(self, op: Finish | Abort) -> None:
        if op.r not in self.scheduler.requests:
            return
        finished = isinstance(op, Finish)
        self.diff.events.append((Finished if finished else Aborted)(r=op.r, step=self.diff.step))
        self.scheduler.finish_requests([op.r], RequestStatus.FINISHED if finished else RequestStatus.ABORTED)

    def _reset(self, op: Reset) -> None:
        self.drain()
        if op.running:
            self._let_transfers_end()
        events, step = self.diff.events, self.diff.step
        if op.tier in ("", LOCAL):
            events.append(ResetDone(step=step, ok=self.scheduler.reset_prefix_cache(reset_running_requests=op.running)))
        if op.tier in ("", SECOND) and self._tables_aside:
            self.scheduler.reset_connector_cache()
            events.append(ResetDone(step=step, ok=True, tier=SECOND))

    def _update_weights(self, op: UpdateWeights) -> None:
        self.drain()
        self._let_transfers_end()
        self._view.reason = "version"
        self.scheduler.update_weights()
        self._view.reason = "reset"
        step = self.diff.step
        self.diff.events.append(ResetDone(step=step, ok=True))
        self.diff.events.append(Version(step=step, weights=op.version, adapter=op.adapter))

    # --- steps --------------------------------------------------------------------------------------------------------

    def _step(self, op: Step) -> None:
        self._begin(op)
        while len(self._in_flight) > self._depth:
            self._run_oldest()

    def _begin(self, op: Step) -> None:
        step = self.diff.step = self.diff.step + 1
        scheduler = self.scheduler
        output = scheduler.schedule(op.budget)
        withdrawn = scheduler.withdraw(output, op.withdraw) if op.withdraw else []
        self.diff.events += [Preempted(r=r, step=step) for r in withdrawn]
        if isinstance(scheduler, LoadingScheduler):
            scheduler.build_connector_meta(output, op.fail)
        else:
            scheduler.build_connector_meta(output)
        self._scheduled(output, withdrawn)

    def _scheduled(self, output: SchedulerOutput, withdrawn: list[str]) -> None:
        scheduler, step = self.scheduler, self.diff.step
        requests = {r: scheduler.requests[r] for r in output.num_scheduled_tokens}
        copies = [Move(copy.src_block_id, copy.dst_block_id) for copy in output.kv_cache_block_copies]
        meta = output.kv_connector_metadata
        begun, ended = (meta.begun, meta.ended) if isinstance(meta, TransferMetadata) else ((), ())
        begin = StepBegin(
            step=step,
            runs=[self._run(request, output) for request in requests.values()],
            copies=copies + [Move(place.block_id, block.block_id, TIER, POOL) for place, block in meta.loads],
            zeros=[(POOL, [*output.new_block_ids_to_zero])] if output.new_block_ids_to_zero else [],
            stores=[Move(block.block_id, place.block_id, POOL, TIER) for place, block in meta.stores],
            begun=[(transfer.number, _move(transfer)) for transfer in begun],
            ended=[transfer.number for transfer in ended if not transfer.failed],
            failed=[transfer.number for transfer in ended if transfer.failed],
        )
        self.diff.events.append(begin)
        self._in_flight.append(_InFlight(output, begin, withdrawn, requests))

    def _run(self, request: Request, output: SchedulerOutput) -> Run:
        r, stop = request.request_id, request.num_computed_tokens
        drafts = output.scheduled_spec_decode_tokens.get(r, [])
        tables = self.manager.tables(r) + self._tables_aside
        scratch = self.manager.scratch(r) + self._tables_aside if drafts else []
        return Run(r, stop - output.num_scheduled_tokens[r], stop, tables, drafts, scratch)

    def _run_oldest(self) -> None:
        output, begin, withdrawn, requests = self._in_flight.popleft()
        events, scheduler, step = self.diff.events, self.scheduler, begin.step
        self._view.ran = step
        events.append(StepEnd(step=step, withdrawn=withdrawn))
        if self.device is not None:
            tokens = {run.r: [*requests[run.r].all_token_ids[: run.known], *run.drafts] for run in begin.runs}
            self.device.execute(begin, withdrawn, tokens)
        lengths = {r: request.num_tokens for r, request in scheduler.requests.items()}
        for r, new in scheduler.update_from_output(output).items():
            events.append(Accept(r=r, upto=lengths[r] + len(new), tokens=new, step=step))
            if r not in scheduler.requests:
                events.append(Finished(r=r, step=step))

    def drain(self) -> None:
        """Let every step that was scheduled run."""
        while self._in_flight:
            self._run_oldest()

    def _let_transfers_end(self) -> None:
        while isinstance(self.scheduler, LoadingScheduler) and self.scheduler.transfers:
            self.diff.step += 1
            self._scheduled(self.scheduler.idle(), [])
            self._run_oldest()


def _move(transfer: Transfer) -> Move:
    if transfer.stores:
        return Move(transfer.block.block_id, transfer.place.block_id, POOL, TIER)
    return Move(transfer.place.block_id, transfer.block.block_id, TIER, POOL)


def with_tier(header: Header, pages: int) -> Header:
    """Return the header with a second tier of so many pages, and in it a group for each of the device's."""
    if not pages:
        return header
    count = len(header.groups)
    aside = [msgspec.structs.replace(group, id=count + group.id, pool=TIER, of=group.id) for group in header.groups]
    pools = [*header.pools, Pool(id=TIER, pages=pages, tier=SECOND)]
    return msgspec.structs.replace(header, pools=pools, groups=[*header.groups, *aside])


class _Preempting:
    """The observed manager as the scheduler calls it: giving back the pages of a request that has not ended is a preemption."""

    def __init__(self, manager: ObservedManager) -> None:
        self._manager = manager
        self.reason: Any = "reset"
        self.ran = 0
        """The step that has run last."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def free(self, request: Request) -> None:
        """Report the preemption, if it is one, and free."""
        if not request.status.is_finished:
            self._manager.events.append(Preempted(r=request.request_id, step=self._manager.step))
        self._manager.free(request)

    def end_transfer(self, transfer: Transfer) -> None:
        """Let a transfer be over with the step that has run, whatever was scheduled since."""
        scheduled, self._manager.step = self._manager.step, self.ran
        self._manager.end_transfer(transfer)
        self._manager.step = scheduled

    def reset_prefix_cache(self) -> bool:
        """Reset for the reason at hand."""
        return self._manager.reset_prefix_cache(self.reason)

    def reset_tier(self) -> None:
        """Reset the second tier for the reason at hand."""
        self._manager.reset_tier(self.reason)
