"""The scheduler over a tier whose copies take time (`slow_tier`).

A request whose hit is in the tier, all of it or in part, is given blocks for the hit alone and
waits (`loading`) while others run. When every load has ended well it is ready (`loaded`): it stands
in front of the queue, holds its blocks, and goes on behind its hit without another look-up. If a
load has failed it gives up its blocks and waits again. What did arrive is keyed, what did not is
asked of the tier no more, so the next look-up finds just what is valid, in all groups alike, and
the rest is computed.

Whoever waits for a load does not run, and so cannot be made to stop. A request that runs and needs
blocks takes them from the one that was loaded last; if loads are still under way it waits for those
rather than give up its own. If nobody runs and the first in the queue does not fit, whoever else
was loaded gives up its blocks for it. So nobody waits for ever for somebody who holds blocks and
cannot go on.

A copy that is under way cannot be called back. Who ends early, or loses its blocks, abandons its
loads, and their pages are free when they are over. Until then the device cannot be reset: a reset
is refused, or lets steps go by first (`idle`), as new weights do.

Sources: vLLM, `v1/core/sched/scheduler.py` (0.33.0), `WAITING_FOR_REMOTE_KVS`,
`_update_waiting_for_remote_kv`, `_handle_invalid_blocks`; there a failed load keeps the blocks
before the first invalid one, in layouts of one group alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cachewitness_reference.vllm.align_split import split_for
from cachewitness_reference.vllm.config import KVCacheConfig
from cachewitness_reference.vllm.request import Request
from cachewitness_reference.vllm.scheduler import Scheduler
from cachewitness_reference.vllm.scheduler_interface import (
    KVConnectorMetadata,
    Sampler,
    SchedulerOutput,
)
from cachewitness_reference.vllm_extended.slow_tier import Transfer, abandon
from cachewitness_reference.vllm_extended.tier import TierBlock
from cachewitness_reference.vllm_extended.tiered_scheduler import TieredCacheManager


@dataclass(frozen=True)
class TransferMetadata(KVConnectorMetadata):
    """Which transfers begin with a step, loads before the runs and stores after them, and which
    are over when it has run.
    """

    begun: Sequence[Transfer] = ()
    ended: Sequence[Transfer] = ()


class LoadingScheduler(Scheduler):
    """A scheduler that waits for loads. `transfers` are under way, those that began first in
    front.
    """

    def __init__(
        self, config: KVCacheConfig, kv_cache_manager: TieredCacheManager, sampler: Sampler
    ) -> None:
        super().__init__(config, kv_cache_manager, sampler)
        self.tiered_manager = kv_cache_manager
        self.transfers: list[Transfer] = []
        self.loading: dict[str, list[Transfer]] = {}
        """Who waits, and for which loads."""
        self.loaded: set[str] = set()
        """Who is ready, and has not gone on."""
        self._begun: list[Transfer] = []

    # A STEP

    def build_connector_meta(self, output: SchedulerOutput, failing: Sequence[int] = ()) -> None:
        """Begin to store what the step computes, and say which transfers are over with it.

        `failing` are places among those under way, loads in front of stores, each in the order in
        which they began; those fail.
        """
        # COMMIT
        begun, self._begun = self._begun + self.tiered_manager.begin_stores(), []
        self.transfers += begun
        under_way = sorted(self.transfers, key=lambda transfer: transfer.stores)
        for place, transfer in enumerate(under_way):
            transfer.failed = transfer.failed or place in failing
            transfer.steps_left -= 1
        ended = [
            transfer for transfer in self.transfers if transfer.failed or transfer.steps_left == 0
        ]
        self.transfers = [transfer for transfer in self.transfers if transfer not in ended]
        output.kv_connector_metadata = TransferMetadata(begun=begun, ended=ended)

    def idle(self) -> SchedulerOutput:
        """Return a step in which nobody runs and transfers go on."""
        self.kv_cache_manager.new_step_starts()
        output = SchedulerOutput()
        self.build_connector_meta(output)
        return output

    def update_from_output(self, output: SchedulerOutput) -> dict[str, list[int]]:
        """End a step that ran, and the transfers that ended with it."""
        sampled = super().update_from_output(output)
        # COMMIT
        meta = output.kv_connector_metadata
        for transfer in meta.ended if isinstance(meta, TransferMetadata) else ():
            self.tiered_manager.end_transfer(transfer)
        arrived = [r for r, loads in self.loading.items() if all(load.ended for load in loads)]
        for request_id in reversed(arrived):
            request = self.requests[request_id]
            if any(load.failed for load in self.loading.pop(request_id)):
                self._preempt(request)
            else:
                self.loaded.add(request_id)
                self.waiting.appendleft(request)
        return sampled

    def withdraw(self, output: SchedulerOutput, request_ids: Iterable[str]) -> list[str]:
        """As in `Scheduler`; who has begun to load beside blocks of somebody who is taken back
        goes with them.
        """
        withdrawn = super().withdraw(output, request_ids)
        for request in [self.requests[r] for r in reversed(withdrawn)]:
            if request.request_id in self.loading or request.request_id in self.loaded:
                self._leave(request)
                self._wait_again(request)
        return withdrawn

    # ADMISSION

    def _admit(
        self, request: Request, output: SchedulerOutput, left: int, limit: int
    ) -> int | None:
        admitted = self._try_to_admit(request, output, left, limit)
        while (
            admitted is None
            and not (self.running or self.loading)
            and (victim := self._last_loaded(request)) is not None
        ):
            self._leave(victim)
            self._preempt(victim)
            self.waiting.remove(request)
            self.waiting.appendleft(request)
            admitted = self._try_to_admit(request, output, left, limit)
        return admitted

    def _try_to_admit(
        self, request: Request, output: SchedulerOutput, left: int, limit: int
    ) -> int | None:
        if request.request_id in self.loaded:
            return self._go_on(request, output, left, limit)
        # LOOKUP
        blocks, hit_length, shared_prefix_boundary = self.kv_cache_manager.get_computed_blocks(
            request
        )
        if not any(isinstance(block, TierBlock) for column in blocks.blocks for block in column):
            return super()._admit(request, output, left, limit)
        # ALLOCATE
        slots = self.kv_cache_manager.allocate_slots(
            request,
            0,
            hit_length,
            blocks,
            full_sequence_must_fit=self.config.options.scheduler_reserve_full_isl,
            has_scheduled_reqs=bool(self.running),
            delay_cache_blocks=True,
        )
        if slots is None:
            return None
        request.shared_prefix_boundary = shared_prefix_boundary
        request.num_computed_tokens = hit_length
        loads = self.tiered_manager.begin_loads(request)
        if not loads:
            self.loaded.add(request.request_id)
            return self._go_on(request, output, left, limit)
        self.waiting.remove(request)
        self.loading[request.request_id] = loads
        self._begun += loads
        # COMMIT: nothing; a block is keyed when its load has ended well.
        # RELEASE: nothing; who is loaded gives way in `_admit`.
        return 0

    def _go_on(
        self, request: Request, output: SchedulerOutput, left: int, limit: int
    ) -> int | None:
        """Let a request run behind what was loaded for it; it holds blocks, so the watermark
        does not keep it waiting.
        """
        num_new_tokens = min(request.num_tokens - request.num_computed_tokens, left)
        num_new_tokens = split_for(self.config, request, num_new_tokens, 0, limit)
        lookahead = self.config.options.num_speculative_tokens
        if num_new_tokens == 0:
            return None
        # ALLOCATE
        slots = self.kv_cache_manager.allocate_slots(
            request, num_new_tokens, num_lookahead_tokens=lookahead, has_scheduled_reqs=False
        )
        if slots is None:
            return None
        self.loaded.remove(request.request_id)
        self._let_run(request, num_new_tokens, output)
        return num_new_tokens

    def _allocate_or_preempt(
        self, request: Request, num_new_tokens: int, lookahead: int, output: SchedulerOutput
    ) -> bool:
        """As in `Scheduler`, but who was loaded gives way first, and who came last waits for
        loads rather than give way.
        """
        # ALLOCATE
        while (
            self.kv_cache_manager.allocate_slots(
                request, num_new_tokens, num_lookahead_tokens=lookahead
            )
            is None
        ):
            loaded = self._last_loaded(request)
            if loaded is None and self.loading and request is self.running[-1]:
                return False
            if loaded is not None:
                self._leave(loaded)
            victim = loaded or self.running.pop()
            # RELEASE
            self._preempt(victim)
            output.preempted_req_ids.append(victim.request_id)
            if victim is request:
                return False
        return True

    def _last_loaded(self, but: Request | None = None) -> Request | None:
        """Return who is ready, has not gone on, and stands last in the queue."""
        ready = (request for request in reversed(self.waiting) if request.request_id in self.loaded)
        return next((request for request in ready if request is not but), None)

    # LIFE

    def _leave(self, request: Request) -> None:
        if request.request_id in self.loading:
            abandon(self.loading.pop(request.request_id))
        else:
            self.loaded.discard(request.request_id)
            super()._leave(request)

    def reset_connector_cache(self) -> None:
        """Forget every prefix that the tier has, what is on its way from it like the rest: those
        loads fail.
        """
        self.tiered_manager.reset_tier()
        for load in [load for loads in self.loading.values() for load in loads]:
            load.failed = load.failed or not load.ended

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """As in `Scheduler`; refused while a transfer is under way, which nobody can call back."""
        if self.transfers:
            return False
        while reset_running_requests and (loaded := self._last_loaded()) is not None:
            self._leave(loaded)
            self._preempt(loaded)
        return super().reset_prefix_cache(reset_running_requests)
