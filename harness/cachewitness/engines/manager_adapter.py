"""A cache manager of vLLM's shape under the harness's scheduling: what vLLM's scheduler does around
it.

A trace says who computes how many tokens in a step. A request that waits is looked up, its chunk is
cut where a recurrent state has to be kept, and it is given pages; if there are none it does not run
in this step. Nobody is preempted unless the trace says so.

A withdrawn request is scheduled with the others and taken back before the step begins, as vLLM's
scheduler does with a request that it preempts in the pass that scheduled it.

Sources: vLLM 0.33.0, `v1/core/sched/scheduler.py`, `schedule`, `_preempt_request`,
`reset_prefix_cache`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cachewitness.core.events import Header, Move, UnpublishReason
from cachewitness.core.trace_format import Step, Submit
from cachewitness.engines.adapter import Asked, Driven, Refused, Scheduled
from cachewitness.engines.block_table_diff import BlockTableDiff
from cachewitness.engines.observe import ObservedManager

NewRequest = Callable[[Submit, list[int]], Any]
Split = Callable[[Any, int, int], int]


class Placed:
    """A request of the manager's, and whether it holds its place."""

    __slots__ = ("request", "running")

    def __init__(self, request: Any) -> None:
        self.request = request
        self.running = False


class ManagerAdapter(Driven):
    """Schedules what a trace asks for on an observed manager.

    `new_request` makes the manager's request object from a submit and its tokens. `split(request,
    tokens, hit)` says how many of the next tokens of a request may be computed in one chunk; None
    leaves chunks as the trace asks for them. `reserve_full_isl`: a waiting request is admitted only
    if all of its tokens would fit (vLLM's `scheduler_reserve_full_isl`).
    """

    cancels = True

    def __init__(
        self,
        manager: ObservedManager,
        new_request: NewRequest,
        max_model_len: int,
        split: Split | None = None,
        reserve_full_isl: bool = True,
    ) -> None:
        self.manager = manager
        self.new_request = new_request
        self.split = split
        self.max_model_len = max_model_len
        self._reserve_full_isl = reserve_full_isl
        self.placed: dict[str, Placed] = {}
        self._num_running = 0
        self._retained: list[Any] = []

    def compared(self, header: Header) -> BlockTableDiff:
        """Return the observer's comparison."""
        return self.manager.diff

    # --- life of a request ------------------------------------------------------------------------

    def add(self, submit: Submit, tokens: list[int], shared: int) -> None:
        """Take a request in; vLLM finds out by itself what requests share, and its front end
        refuses what is too long.
        """
        if not 0 < len(tokens) < self.max_model_len:
            raise Refused(
                f"a prompt of {len(tokens)} tokens; it must have at least 1 and fewer than"
                f" {self.max_model_len}"
            )
        self.placed[submit.r] = Placed(self.new_request(submit, tokens))

    def accept(self, r: str, tokens: Sequence[int]) -> None:
        """Append what a request generated, token by token as every release of vLLM takes it."""
        for token in tokens:
            self.placed[r].request.append_output_token_ids(token)

    def end(self, r: str, *, finished: bool) -> None:
        """Free everything that the request holds."""
        ended = self.placed.pop(r)
        self.manager.free(ended.request)
        self._num_running -= ended.running

    def preempt(self, r: str) -> None:
        """Free a running request's blocks."""
        self.manager.free(self.placed[r].request)
        self._wait_again(self.placed[r])

    def running(self) -> list[str]:
        """Return the requests that hold their place."""
        return [r for r, placed in self.placed.items() if placed.running]

    def forget(self, reason: UnpublishReason) -> bool:
        """Reset the prefix cache; refused while somebody holds a block."""
        return self.manager.reset_prefix_cache(reason)

    def _wait_again(self, placed: Placed) -> None:
        self._num_running -= placed.running
        placed.running = False
        placed.request.num_computed_tokens = 0
        placed.request.num_preemptions += 1
        _set_status(placed.request, "PREEMPTED")

    # --- steps ------------------------------------------------------------------------------------

    def schedule(self, asked: Asked | None, step: Step) -> Scheduled:
        """Give pages to everybody who is asked to compute, and take back who is withdrawn."""
        self.manager.new_step_starts()
        scheduled = Scheduled()
        for r, tokens in asked or ():
            start, count = self._schedule(self.placed[r], tokens)
            if count > 0:
                scheduled.chunks[r] = (start, start + count)
        if step.withdraw:
            self._withdraw(step.withdraw, scheduled)
        copies, self._retained = self.manager.take_kv_cache_block_copies()
        if copies:
            scheduled.copies = [Move(copy.src_block_id, copy.dst_block_id) for copy in copies]
        if zeros := self._zeros():
            scheduled.zeros = [(self.manager.zeroed_pool, zeros)]
        return scheduled

    def complete(self, scheduled: Scheduled) -> None:
        """Free what was kept for copies, and count what has run as computed."""
        if self._retained:
            self.manager.block_pool.free_blocks(self._retained)
        for r, (_, stop) in scheduled.chunks.items():
            if r in self.placed:
                self.placed[r].request.num_computed_tokens = stop

    def _zeros(self) -> list[int]:
        """Drain the new blocks; a configuration whose pages need no zeroing leaves them as they
        are.
        """
        new_blocks = self.manager.take_new_block_ids()
        return (
            new_blocks if new_blocks and self.manager.kv_cache_config.needs_kv_cache_zeroing else []
        )

    def _withdraw(self, asked: Iterable[str], scheduled: Scheduled) -> None:
        """Take requests back out of the step, and whoever has to go with them."""
        for r in asked:
            if r in scheduled.chunks:
                for gone in self.manager.withdraw(self.placed[r].request):
                    scheduled.chunks.pop(gone, None)
                    self._wait_again(self.placed[gone])
                    self.engine.preempted(gone)
                    scheduled.withdrawn.append(gone)

    def _schedule(self, placed: Placed, asked: int) -> tuple[int, int]:
        """Give the request pages; return (the position where it starts, how many tokens it
        computes).
        """
        request = placed.request
        manager = self.manager
        hit, found = 0, None
        if not placed.running:
            answer = manager.get_computed_blocks(request)
            found = answer[0]
            hit = answer[1]
            request.shared_prefix_boundary = _shared_prefix_boundary(manager, answer)
            if hit >= request.num_tokens:
                manager.report_hit(request)
        start = request.num_computed_tokens + hit
        count = min(asked, request.num_tokens - start, self.max_model_len - start)
        if self.split is not None and count > 0:
            count = self.split(request, count, hit)
        if count <= 0:
            return start, 0
        if placed.running:
            given = manager.allocate_slots(request, count)
        else:
            given = manager.allocate_slots(
                request,
                count,
                num_new_computed_tokens=hit,
                new_computed_blocks=found,
                full_sequence_must_fit=self._reserve_full_isl,
                has_scheduled_reqs=self._num_running > 0,
            )
        if given is None:
            return start, 0
        if not placed.running:
            placed.running = True
            self._num_running += 1
            _set_status(request, "RUNNING")
            request.num_computed_tokens = hit
        return start, count


def _set_status(request: Any, name: str) -> None:
    request.status = type(request.status)[name]


def _shared_prefix_boundary(manager: Any, answer: tuple[Any, ...]) -> int:
    """Return where a prefix shared with other requests goes on beyond the hit, in tokens; 0 if it
    does not.

    The look-up answers this since 0.26; before (0.24, 0.25), the coordinator kept how far beyond
    the hit the boundary is.
    """
    if len(answer) > 2:
        return int(answer[2])
    further = int(getattr(manager.coordinator, "num_uncached_common_prefix_tokens", 0))
    return int(answer[1]) + further if further else 0
