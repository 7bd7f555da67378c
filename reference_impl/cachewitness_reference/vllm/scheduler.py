"""The scheduler: who computes how much in a step.

There is no prefill phase and no decode phase. Every request has tokens that are known and tokens
that are computed, and each step lets requests catch up within a budget. Requests that run come
first, in order of arrival; if one does not get its slots, the one that came last gives up its
blocks and starts again later, what it generated included (recompute). Then, unless that happened,
waiting requests are admitted in order, each with what it hits in the cache, until one does not fit.

Where states are cached, chunk ends are steered (`align_split`). A step may be taken back before it
runs (`withdraw`).

*Drafts.* A request that lacks one token may bring guesses at what follows. They are computed with
it, in slots of their own, and count as computed at once; those that turn out wrong are taken off
again, and their slots are written anew. Guesses are never keyed.

*Async depth.* A step may be scheduled while one or two earlier ones have not run. Tokens that those
will generate are *placeholders*: they can be scheduled, and are known when the step has run, which
is before the step that computes them runs. Steps run in the order in which they are scheduled, so
blocks given back now may go to any later step. What any step in flight still reads is not given
back, and a request that lost its blocks meanwhile drops what those steps generate for it.

Sources: vLLM, `v1/core/sched/scheduler.py` and `async_scheduler.py` (0.33.0), first come first
served; `withdraw` is this specification's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from cachewitness_reference.vllm.align_split import split_for
from cachewitness_reference.vllm.config import KVCacheConfig
from cachewitness_reference.vllm.request import Request, RequestStatus
from cachewitness_reference.vllm.scheduler_interface import (
    CacheManager,
    KVConnector,
    RefusedRequest,
    Sampler,
    SchedulerOutput,
)

__all__ = [
    "CacheManager",
    "KVConnector",
    "RefusedRequest",
    "Sampler",
    "Scheduler",
    "SchedulerOutput",
]


class Scheduler:
    """A scheduler over a manager. `sampler` says what a request generates; `connector` serves
    what the device has not.
    """

    def __init__(
        self,
        config: KVCacheConfig,
        kv_cache_manager: CacheManager,
        sampler: Sampler,
        connector: KVConnector | None = None,
    ) -> None:
        self.config = config
        self.kv_cache_manager = kv_cache_manager
        self.sampler = sampler
        self.connector = connector
        self.requests: dict[str, Request] = {}
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []

    def add_request(self, request: Request) -> None:
        """Put a request at the end of the queue.

        Raises RefusedRequest if its id is taken or its prompt leaves no room for a token.
        """
        if request.request_id in self.requests:
            raise RefusedRequest(f"request {request.request_id!r} is already here")
        if request.num_tokens >= self.config.options.max_model_len:
            raise RefusedRequest(
                f"request {request.request_id!r}: {request.num_tokens} prompt tokens leave no room"
                f" to generate below max_model_len ({self.config.options.max_model_len})"
            )
        self.requests[request.request_id] = request
        self.waiting.append(request)

    # A STEP

    def schedule(self, budget: int = 0) -> SchedulerOutput:
        """Choose what runs in the next step, within `budget` tokens (0: max_num_batched_tokens)."""
        limit = self.config.options.max_num_batched_tokens
        limit = min(budget, limit) if budget else limit
        output = SchedulerOutput()
        # COMMIT
        self.kv_cache_manager.new_step_starts()
        # ALLOCATE, RELEASE
        left = self._schedule_running(output, limit)
        # LOOKUP, ALLOCATE
        if not output.preempted_req_ids:
            self._schedule_waiting(output, left, limit)
        for request_id in output.num_scheduled_tokens:
            self._advance(self.requests[request_id], output)
        output.kv_cache_block_copies, output.retained_blocks = (
            self.kv_cache_manager.take_kv_cache_block_copies()
        )
        new_block_ids = self.kv_cache_manager.take_new_block_ids()
        output.new_block_ids_to_zero = new_block_ids if self.config.needs_kv_cache_zeroing else []
        return output

    def build_connector_meta(self, output: SchedulerOutput) -> None:
        """Have the connector say what the step loads and stores, when nobody is withdrawn any
        more.
        """
        if self.connector is not None:
            output.kv_connector_metadata = self.connector.build_connector_meta(output)
            output.retained_blocks += [block for _, block in output.kv_connector_metadata.stores]

    def _advance(self, request: Request, output: SchedulerOutput) -> None:
        """Count what was scheduled as computed, and what that will generate as a placeholder."""
        rid = request.request_id
        request.num_computed_tokens += output.num_scheduled_tokens[rid]
        request.num_in_flight_tokens += output.num_scheduled_tokens[rid]
        output.num_preemptions[rid] = request.num_preemptions
        num_drafts = len(output.scheduled_spec_decode_tokens.get(rid, ()))
        if (
            request.num_computed_tokens - num_drafts
            == request.num_tokens + request.num_output_placeholders
        ):
            request.num_output_placeholders += 1
            output.generating.add(rid)

    def _schedule_running(self, output: SchedulerOutput, limit: int) -> int:
        left = limit
        index = 0
        while index < len(self.running) and left > 0:
            request = self.running[index]
            num_expected = request.num_tokens + request.num_output_placeholders
            num_new_tokens = min(num_expected - request.num_computed_tokens, left)
            num_new_tokens = split_for(self.config, request, num_new_tokens, 0, limit)
            if num_new_tokens == 0 or num_expected >= self.config.options.max_model_len:
                # its turn comes when the budget reaches the next boundary, or never: it ends with a
                # step in flight
                index += 1
                continue
            drafts = self._drafts_for(request, num_new_tokens, left - num_new_tokens)
            lookahead = len(drafts) + self.config.options.num_speculative_tokens
            if self._allocate_or_preempt(request, num_new_tokens, lookahead, output):
                num_new_tokens += len(drafts)
                output.num_scheduled_tokens[request.request_id] = num_new_tokens
                if drafts:
                    output.scheduled_spec_decode_tokens[request.request_id] = drafts
                left -= num_new_tokens
            index += 1
        return left

    def _allocate_or_preempt(
        self, request: Request, num_new_tokens: int, lookahead: int, output: SchedulerOutput
    ) -> bool:
        """Give a running request slots, of those who came after it if there are no others; False
        if it gave up its own.
        """
        while (
            self.kv_cache_manager.allocate_slots(
                request, num_new_tokens, num_lookahead_tokens=lookahead
            )
            is None
        ):
            victim = self.running.pop()
            self._preempt(victim)
            output.preempted_req_ids.append(victim.request_id)
            if victim is request:
                return False
        return True

    def _drafts_for(self, request: Request, num_new_tokens: int, left: int) -> list[int]:
        """Return the guesses to verify: none unless the request catches up, and none whose place
        would be the model's last.
        """
        if (
            not request.spec_token_ids
            or request.num_computed_tokens + num_new_tokens < request.num_tokens
        ):
            return []
        room = self.config.options.max_model_len - 1 - request.num_tokens
        return request.spec_token_ids[: max(min(left, room), 0)]

    def _schedule_waiting(self, output: SchedulerOutput, left: int, limit: int) -> None:
        while self.waiting and left > 0 and len(self.running) < self.config.options.max_num_seqs:
            num_new_tokens = self._admit(self.waiting[0], output, left, limit)
            if num_new_tokens is None:
                return
            left -= num_new_tokens

    def _admit(
        self, request: Request, output: SchedulerOutput, left: int, limit: int
    ) -> int | None:
        """Let the request that waits longest run; return how many tokens of it are computed,
        None if it has to wait on.
        """
        options = self.config.options
        # LOOKUP
        blocks, hit_length, request.shared_prefix_boundary = (
            self.kv_cache_manager.get_computed_blocks(request)
        )
        num_external = (
            self.connector.get_num_new_matched_tokens(request, hit_length) if self.connector else 0
        )
        if request.skip_reading_prefix_cache:
            num_external = 0  # the connector was asked; what it found is not loaded
        num_computed = hit_length + num_external
        num_new_tokens = min(request.num_tokens - num_computed, left)
        num_new_tokens = split_for(self.config, request, num_new_tokens, num_computed, limit)
        if num_new_tokens == 0:
            return None
        # ALLOCATE
        slots = self.kv_cache_manager.allocate_slots(
            request,
            num_new_tokens,
            hit_length,
            blocks,
            num_lookahead_tokens=options.num_speculative_tokens,
            num_external_computed_tokens=num_external,
            full_sequence_must_fit=options.scheduler_reserve_full_isl,
            has_scheduled_reqs=bool(self.running),
        )
        if slots is None:
            return None
        request.num_computed_tokens = num_computed
        if self.connector is not None:
            self.connector.update_state_after_alloc(
                request, self.kv_cache_manager.get_blocks(request.request_id), num_external
            )
        self._let_run(request, num_new_tokens, output)
        # COMMIT: nothing; `allocate_slots` has keyed what this chunk fills.
        # RELEASE: nothing; nobody gives way to a request that waits.
        return num_new_tokens

    def _let_run(self, request: Request, num_new_tokens: int, output: SchedulerOutput) -> None:
        self.waiting.remove(request)
        self.running.append(request)
        request.status = RequestStatus.RUNNING
        output.num_scheduled_tokens[request.request_id] = num_new_tokens

    def update_from_output(self, output: SchedulerOutput) -> dict[str, list[int]]:
        """End a step that ran: append what each request that computed all it had generates;
        return it by request.
        """
        # LOOKUP, ALLOCATE: nothing; the next step does.
        # RELEASE
        self.kv_cache_manager.block_pool.free_blocks(output.retained_blocks)
        # COMMIT
        if self.connector is not None:
            self.connector.update_connector_output(output)
        sampled: dict[str, list[int]] = {}
        for request_id, num_preemptions in output.num_preemptions.items():
            request = self.requests.get(request_id)
            if request is None or request.num_preemptions != num_preemptions:
                continue  # it ended, or lost its blocks, while the step was in flight
            request.num_in_flight_tokens -= output.num_scheduled_tokens[request_id]
            if request_id in output.generating:
                drafts = output.scheduled_spec_decode_tokens.get(request_id, [])
                sampled[request_id] = self._generate(request, drafts)
        return sampled

    def _generate(self, request: Request, drafts: list[int]) -> list[int]:
        """Append what a request generates; the drafts that do not stand are not computed any
        more.
        """
        options = self.config.options
        tokens = self.sampler.sample(request, drafts)
        request.num_accepted_drafts = len(tokens) - 1
        request.num_computed_tokens -= len(drafts) - request.num_accepted_drafts
        request.num_output_placeholders -= 1
        request.append_output_token_ids(tokens)
        if options.async_depth:
            # The tokens of the step before are known only now, when their slots have been given
            # out.
            known = request.num_computed_tokens - request.num_output_placeholders
            self.kv_cache_manager.cache_blocks(request, known)
        if request.num_tokens >= options.max_model_len:
            self.finish_requests([request.request_id])
        elif options.num_speculative_tokens:
            request.spec_token_ids = self.sampler.draft(request, options.num_speculative_tokens)
        return tokens

    def withdraw(self, output: SchedulerOutput, request_ids: Iterable[str]) -> list[str]:
        """Take requests back from the step that was scheduled last, before it runs; return
        everybody it concerns.

        They wait again, in front. Their keys of this step are gone, and so are copies that only
        they needed.
        """
        withdrawn: list[str] = []
        for request_id in request_ids:
            if request_id in output.num_scheduled_tokens:
                taken_back = self.kv_cache_manager.withdraw(self.requests[request_id])
                withdrawn.extend(taken_back)
                for other in taken_back:
                    output.num_scheduled_tokens.pop(other, None)
                    output.num_preemptions.pop(other, None)
        for request in [
            request for request in reversed(self.running) if request.request_id in withdrawn
        ]:
            self.running.remove(request)
            self._wait_again(request)
        for ends in output.take_idle_copies():
            self.kv_cache_manager.block_pool.free_blocks(ends)
        return withdrawn

    def finish_requests(
        self, request_ids: Iterable[str], status: RequestStatus = RequestStatus.FINISHED
    ) -> None:
        """End requests, as intended or, with ABORTED, early: their blocks are free, their keys
        stay.
        """
        assert status.is_finished
        # LOOKUP, ALLOCATE, COMMIT: nothing; what is keyed of a request stays keyed.
        # RELEASE
        for request_id in request_ids:
            request = self.requests.pop(request_id)
            self._leave(request)
            request.status = status
            if self.connector is not None:
                self.connector.request_finished(request)
            self.kv_cache_manager.free(request)

    def _leave(self, request: Request) -> None:
        (self.running if request.status is RequestStatus.RUNNING else self.waiting).remove(request)

    def preempt(self, request_id: str) -> None:
        """Let a running request give up its blocks and wait in front.

        Raises RefusedRequest if it does not run.
        """
        request = self.requests.get(request_id)
        if request is None or request.status is not RequestStatus.RUNNING:
            raise RefusedRequest(f"request {request_id!r} is not running and cannot be preempted")
        self.running.remove(request)
        self._preempt(request)

    def reset_connector_cache(self) -> None:
        """Forget every prefix that the connector has."""
        if self.connector is not None:
            self.connector.reset_cache()

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget every cached prefix of the device, preempting whoever runs if told so; return
        whether it was done.
        """
        if reset_running_requests:
            while self.running:
                self._preempt(self.running.pop())
        # LOOKUP, ALLOCATE, COMMIT: nothing; every key ends.
        # RELEASE
        done = self.kv_cache_manager.reset_prefix_cache()
        assert done or not reset_running_requests, "nobody runs, and yet somebody holds a block"
        return done

    def update_weights(self) -> None:
        """End everything that was computed with the old weights."""
        self.reset_prefix_cache(reset_running_requests=True)
        self.reset_connector_cache()

    def _preempt(self, request: Request) -> None:
        # LOOKUP, ALLOCATE, COMMIT: nothing; it is looked up again when its turn comes, and its keys
        # may still be there.
        # RELEASE
        self.kv_cache_manager.free(request)
        self._wait_again(request)

    def _wait_again(self, request: Request) -> None:
        request.status = RequestStatus.PREEMPTED
        request.start_again()
        self.waiting.appendleft(request)
