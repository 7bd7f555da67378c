"""A scheduler of vLLM's shape: requests in, steps out.

Chunk splits, admission, preemption and abort are the scheduler's. It calls the cache manager
through the observer, so the same events come out as at manager level.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cachewitness.core.events import Header, Move, UnpublishReason
from cachewitness.core.trace_format import Step, Submit
from cachewitness.engines.adapter import LOCAL, SECOND, Asked, Driven, Host, Refused, Scheduled
from cachewitness.engines.block_table_diff import BlockTableDiff
from cachewitness.engines.observe import ObservedManager
from cachewitness.engines.observe_pins import POOL
from cachewitness.engines.observe_tier import TIER
from cachewitness_reference.vllm.config import KVCacheConfig
from cachewitness_reference.vllm.request import Request, RequestStatus
from cachewitness_reference.vllm.scheduler import RefusedRequest, SchedulerOutput
from cachewitness_reference.vllm_extended.assemble import get_scheduler
from cachewitness_reference.vllm_extended.loading_scheduler import (
    LoadingScheduler,
    TransferMetadata,
)
from cachewitness_reference.vllm_extended.slow_tier import Transfer

NewRequest = Callable[[Submit, list[int]], Request]


class SchedulerAdapter(Driven):
    """Has the reference's scheduler decide, over an observed manager. It samples by itself when
    a step has run.
    """

    samples = cancels = True

    def __init__(
        self, config: KVCacheConfig, manager: ObservedManager, new_request: NewRequest
    ) -> None:
        self.config = config
        self.manager = manager
        self.new_request = new_request
        self.max_model_len = config.options.max_model_len
        self.depth = config.options.async_depth
        self.view: Any = _Preempting(manager)
        self._outputs: deque[SchedulerOutput] = deque()

    def compared(self, header: Header) -> BlockTableDiff:
        """Return the observer's comparison."""
        return self.manager.diff

    def attach(self, engine: Host) -> None:
        """Build the scheduler, which reports preemptions to the driver and asks its sampler what
        requests generate.
        """
        super().attach(engine)
        self.view.engine = engine
        self.scheduler = get_scheduler(self.config, self.view, engine.sampler)

    # --- requests ---------------------------------------------------------------------------------

    def add(self, submit: Submit, tokens: list[int], shared: int) -> None:
        """Take a request in; vLLM finds out by itself what requests share. Raises Refused if it
        can never run.
        """
        try:
            self.scheduler.add_request(self.new_request(submit, tokens))
        except RefusedRequest as error:
            raise Refused(str(error)) from None

    def accept(self, r: str, tokens: Sequence[int]) -> None:
        """Never called: the scheduler has sampled by itself."""
        raise AssertionError(r)

    def end(self, r: str, *, finished: bool) -> None:
        """Let a request go."""
        self.scheduler.finish_requests(
            [r], RequestStatus.FINISHED if finished else RequestStatus.ABORTED
        )

    def preempt(self, r: str) -> None:
        """Let a running request give up its blocks."""
        self.scheduler.preempt(r)

    def running(self) -> list[str]:
        """Return the requests that run; one whose loads have ended and that has not gone on does
        not.
        """
        return [request.request_id for request in self.scheduler.running]

    # --- the whole cache --------------------------------------------------------------------------

    def resets_at_once(self) -> bool:
        """Between two steps, unless one in flight holds blocks of its own or copies are under
        way.
        """
        held = any(output.retained_blocks for output in self._outputs)
        return not held and not isinstance(self.scheduler, LoadingScheduler)

    def reset(self, tier: str, *, running: bool) -> Iterable[tuple[str, bool]]:
        """Forget every key of a tier, of all if it is empty. The scheduler preempts who runs if
        the device is meant.
        """
        self.view.reason = "reset"
        if tier in ("", LOCAL):
            yield LOCAL, self.scheduler.reset_prefix_cache(reset_running_requests=running)
        if tier in ("", SECOND) and self.manager.tiered:
            self.scheduler.reset_connector_cache()
            yield SECOND, True

    def renew(self) -> bool:
        """End everything that was computed with the old weights, in both tiers."""
        self.view.reason = "version"
        self.scheduler.update_weights()
        return True

    # --- steps ------------------------------------------------------------------------------------

    def schedule(self, asked: Asked | None, step: Step) -> Scheduled:
        """Have the scheduler decide, then take back who is withdrawn; nobody runs in a step that
        is there for transfers.
        """
        scheduler = self.scheduler
        if asked is not None and isinstance(scheduler, LoadingScheduler):
            return self._described(scheduler.idle(), [])
        output = scheduler.schedule(step.budget)
        withdrawn = scheduler.withdraw(output, step.withdraw) if step.withdraw else []
        for r in withdrawn:
            self.engine.preempted(r)
        if isinstance(scheduler, LoadingScheduler):
            scheduler.build_connector_meta(output, step.fail)
        else:
            scheduler.build_connector_meta(output)
        return self._described(output, withdrawn)

    def transferring(self) -> bool:
        """Whether copies from or to a slow tier are under way."""
        return isinstance(self.scheduler, LoadingScheduler) and bool(self.scheduler.transfers)

    def _described(self, output: SchedulerOutput, withdrawn: list[str]) -> Scheduled:
        self._outputs.append(output)
        stops = {
            r: self.scheduler.requests[r].num_computed_tokens for r in output.num_scheduled_tokens
        }
        copies = [
            Move(copy.src_block_id, copy.dst_block_id) for copy in output.kv_cache_block_copies
        ]
        meta = output.kv_connector_metadata
        begun, ended = (meta.begun, meta.ended) if isinstance(meta, TransferMetadata) else ((), ())
        return Scheduled(
            chunks={r: (stop - output.num_scheduled_tokens[r], stop) for r, stop in stops.items()},
            copies=copies
            + [Move(place.block_id, block.block_id, TIER, POOL) for place, block in meta.loads],
            zeros=[(POOL, [*output.new_block_ids_to_zero])] if output.new_block_ids_to_zero else [],
            stores=[
                Move(block.block_id, place.block_id, POOL, TIER) for place, block in meta.stores
            ],
            drafts=output.scheduled_spec_decode_tokens,
            withdrawn=withdrawn,
            begun=[(transfer.number, _move(transfer)) for transfer in begun],
            ended=[transfer.number for transfer in ended if not transfer.failed],
            failed=[transfer.number for transfer in ended if transfer.failed],
        )

    def complete(self, scheduled: Scheduled) -> None:
        """End the oldest step, and report what came of it."""
        step = self.view.ran = scheduled.step
        self.scheduler.sampler = self.engine.sampler
        for r, tokens in self.scheduler.update_from_output(self._outputs.popleft()).items():
            self.engine.generated(r, tokens, step)
            if r not in self.scheduler.requests:
                self.engine.over(r, step, finished=True)


def _move(transfer: Transfer) -> Move:
    if transfer.stores:
        return Move(transfer.block.block_id, transfer.place.block_id, POOL, TIER)
    return Move(transfer.place.block_id, transfer.block.block_id, TIER, POOL)


class _Preempting:
    """The observed manager as the scheduler calls it: giving back the pages of a request that
    has not ended is a preemption.
    """

    engine: Host

    def __init__(self, manager: ObservedManager) -> None:
        self._manager = manager
        self.reason: UnpublishReason = "reset"
        self.ran = 0
        """The step that has run last."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def allocate_slots(self, *args: Any, **kwargs: Any) -> Any:
        """Give a request pages. It is what a scheduler calls most: `__getattr__` costs as much
        again.
        """
        return self._manager.allocate_slots(*args, **kwargs)

    def free(self, request: Request) -> None:
        """Report the preemption, if it is one, and free."""
        if not request.status.is_finished:
            self.engine.preempted(request.request_id)
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
