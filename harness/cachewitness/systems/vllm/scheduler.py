"""vLLM's own Scheduler under the harness: who runs, how many tokens, who is preempted and what the
worker is told is vLLM's.

The harness plays the worker and the client. It adds and ends requests, has steps scheduled, and
answers each with the tokens that a worker would have sampled; a step may be answered after later
ones were scheduled (`async_depth`).

The scheduler calls its cache manager through the observer, so the same events come out as at
manager level. It is told nothing and believed in nothing: a request that gives its blocks back and
has not ended was preempted.

Sources: vLLM 0.29.0 to 0.33.0, `v1/core/sched/scheduler.py`, `async_scheduler.py`;
`v1/engine/core.py`, `step`, `step_with_batch_queue`; `v1/outputs.py`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Any

from msgspec.structs import replace

from cachewitness.core.engine_failure import EngineFailure
from cachewitness.core.events import Header, Run, Settled, Stats, StepBegin, UnpublishReason
from cachewitness.core.trace_format import Extend, Step, Submit
from cachewitness.engines.adapter import LOCAL, Asked, Driven, Refused, Scheduled
from cachewitness.engines.block_table_diff import BlockTableDiff
from cachewitness.engines.cache_state import Tables
from cachewitness.engines.key_events import medium_of
from cachewitness.engines.manager_adapter import NewRequest
from cachewitness.engines.observe import ObservedManager
from cachewitness.systems.vllm.build import fill
from cachewitness.systems.vllm.clock import Clock, late
from cachewitness.systems.vllm.drafts import NO_TOKEN, Flight, Flights
from cachewitness.systems.vllm.encoder import EncoderOutputs, make_room
from cachewitness.systems.vllm.engine_config import most_drafts
from cachewitness.systems.vllm.engine_loop import EngineLoop
from cachewitness.systems.vllm.grammars import Grammars
from cachewitness.systems.vllm.prefill_checkpoints import PrefillCheckpoints, net
from cachewitness.systems.vllm.sessions import Sessions
from cachewitness.systems.vllm.source import Source
from cachewitness.systems.vllm.states import WorkerStates
from cachewitness.systems.vllm.statistics import counts_admissions, statistics_of
from cachewitness.systems.vllm.worker_tables import WorkerTables
from cachewitness_reference.vllm_extended.config import Options


class RealScheduler(Driven):
    """Has vLLM's scheduler decide over an observed manager, which is put in place of the one
    that the scheduler made.
    """

    samples = cancels = True

    def __init__(
        self,
        source: Source,
        scheduler: Any,
        manager: ObservedManager,
        new_request: NewRequest,
        clock: Clock,
        options: Options,
        front: Any = None,
        schedulers: Sequence[Any] = (),
    ) -> None:
        self.source = source
        self.scheduler = scheduler
        self.front = scheduler if front is None else front
        """Whom the engine calls."""
        self.schedulers = schedulers or [scheduler]
        """All that requests are shared out to; that which is observed is one of them."""
        self.manager = manager
        self.new_request = new_request
        self.max_model_len = options.max_model_len
        self.depth = options.async_depth
        self.drafts = most_drafts(options)
        self._least = 1 + self.drafts
        """The smallest budget of a step: with less, vLLM admits no request that decodes, since it
        would not have all drafts."""
        self.requests: dict[str, Any] = {}
        """vLLM's objects of the requests that have not ended."""
        self.view = scheduler.kv_cache_manager = ReportingManager(self, clock)
        self.publisher = scheduler.kv_event_publisher = Publisher(manager, clock)
        self._status = source.part("v1.request", "RequestStatus")
        self.worker = WorkerTables()
        """What follows the scheduler's outputs; `worker_of` has vLLM's own."""
        self.checkpoints: PrefillCheckpoints | None = None
        self._counts_admissions = counts_admissions(manager.manager)
        self._grammars = Grammars(source)
        self._encoder = EncoderOutputs()
        self._sessions = Sessions(source, self.max_model_len)
        self._came = 0
        """How many requests came: their time of arrival, so that a run is the same every time."""
        self._outputs: deque[Any] = deque()
        self._flights = Flights()
        self._answer: dict[str, list[int]] = {}
        """By request of the step that runs: what it samples."""
        self._sampled: dict[str, list[int]] = {}
        """Tokens that were appended to requests in the call under way, and have not been reported.
        """
        self._ran = 0
        """The step that has run last."""
        self._loop = EngineLoop(
            source, self.front, scheduler.requests if front is None else self.requests
        )
        self._stats_at = 0
        """How many events there were when the scheduler made its statistics."""
        make_stats = late(type(scheduler), "make_stats")

        def noting(*args: Any, **kwargs: Any) -> Any:
            self._stats_at = len(manager.events)
            return make_stats(scheduler, *args, **kwargs)

        scheduler.make_stats = noting
        self._schedule = clock.inside(late(self.front, "schedule"))
        self._update = clock.inside(late(self.front, "update_from_output"))
        self._add_request = clock.inside(late(self.front, "add_request"))
        self._finish_requests = clock.inside(late(self.front, "finish_requests"))
        self._reset_prefix_cache = clock.inside(late(self.front, "reset_prefix_cache"))

    def compared(self, header: Header) -> BlockTableDiff:
        """Return the observer's comparison."""
        self._states = WorkerStates(header)
        return self.manager.diff

    # --- requests ---------------------------------------------------------------------------------

    def add(self, submit: Submit, tokens: list[int], shared: int) -> None:
        """Take a request in; vLLM finds out by itself what requests share, and its front end
        refuses what is too long.
        """
        if not 0 < len(tokens) < self.max_model_len:
            raise Refused(
                f"a prompt of {len(tokens)} tokens; it must have at least 1 and fewer than"
                f" {self.max_model_len}"
            )
        request = self.requests[submit.r] = self.new_request(submit, tokens)
        request.priority = submit.priority
        request.arrival_time = float(self._came)
        self._came += 1
        longest = max((item.length for item in submit.media), default=0)
        for scheduler in self.schedulers:
            make_room(scheduler, longest)
        self._sessions.add(submit, request, self.engine.sampler)
        self._submit(submit, request)

    def _submit(self, submit: Submit, request: Any) -> None:
        """Give vLLM a request, whose tokens are noted and whose grammar is compiled."""
        self._follow(submit, request)
        self._add_request(request)

    def _follow(self, submit: Submit, request: Any) -> None:
        """Have the tokens that a request is given noted, and its grammar compiled."""
        append = request.append_output_token_ids

        def noted(token: int) -> None:
            self._sampled.setdefault(submit.r, []).append(token)
            append(token)

        request.append_output_token_ids = noted
        if submit.grammar:
            self._grammars.compile(request, submit.grammar)

    def extend(self, extend: Extend, tokens: list[int]) -> None:
        """Give a session more input: at once if it waits for some, else vLLM keeps it until the
        answer is over.
        """
        self._add_request(
            self._sessions.more(extend, tokens, self.new_request, self.engine.sampler)
        )
        self._sessions.go_on(extend.r, self.requests[extend.r], self.engine, self._ran)

    def accept(self, r: str, tokens: Sequence[int]) -> None:
        """Never called: vLLM's scheduler appends what was sampled."""
        raise AssertionError(r)

    def end(self, r: str, *, finished: bool) -> None:
        """Let a request go whose client has what it wants, or went away."""
        request = self.requests.pop(r)
        last = self._sessions.end(r)
        if last and finished:
            self._add_request(self.new_request(last, [*request.prompt_token_ids]))
        else:
            self._finish_requests(
                r, self._status["FINISHED_STOPPED" if finished else "FINISHED_ABORTED"]
            )

    def preempt(self, r: str) -> None:
        """Preempt a request as vLLM does when it lacks blocks.

        It may come back in the very next step, and then its worker needs all of its tokens, as
        after a reset (vLLM's own way to preempt between two steps, `reset_prefix_cache`).
        """
        request = self.requests[r]
        scheduler = next(one for one in self.schedulers if request in one.running)
        scheduler.running.remove(request)
        scheduler._preempt_request(request, monotonic())
        scheduler.prev_step_scheduled_req_ids.discard(r)

    def running(self) -> list[str]:
        """Return the requests that run."""
        return [
            request.request_id for scheduler in self.schedulers for request in scheduler.running
        ]

    def worker_tables(self, r: str) -> Tables:
        """Return the rows that the worker was told."""
        return self.worker.rows(
            r, self.manager.tables(r), self.manager.block_pool.null_block.block_id
        )

    # --- the whole cache --------------------------------------------------------------------------

    def resets_at_once(self) -> bool:
        """Yes: vLLM's engine resets between two calls of the scheduler, whatever is in flight."""
        return True

    def reset(self, tier: str, *, running: bool) -> Iterable[tuple[str, bool]]:
        """Forget every key of the device. The scheduler preempts whoever runs, if it is asked
        to.
        """
        if tier in ("", LOCAL):
            yield LOCAL, self._forget("reset", running=running)

    def renew(self) -> bool:
        """End everything that was computed with the old weights."""
        return self._forget("version", running=True)

    def _forget(self, reason: UnpublishReason, *, running: bool) -> bool:
        """Have vLLM forget every key of the device; it raises if it preempts who runs and
        somebody else has blocks still.
        """
        self.view.reason = reason
        running = running and self.who_runs_has_all()
        return bool(self._reset_prefix_cache(reset_running_requests=running))

    def who_runs_has_all(self) -> bool:
        """Whether nobody has blocks but requests that run: no session that waits, no load or
        store, no step in flight.
        """
        managers = [
            single
            for scheduler in self.schedulers
            for single in scheduler.kv_cache_manager.coordinator.single_type_managers
        ]
        held = Counter(
            id(block)
            for r in self.running()
            for single in managers
            for block in single.req_to_blocks.get(r, ())
        )
        pools = {id(blocks): blocks for single in managers for blocks in [single.block_pool.blocks]}
        return all(
            block.is_null or block.ref_cnt == held[id(block)]
            for blocks in pools.values()
            for block in blocks
        )

    # --- steps ------------------------------------------------------------------------------------

    def schedule(self, asked: Asked | None, step: Step) -> Scheduled:
        """Have vLLM schedule a step within the trace's budget, and read from its output what the
        worker is told.
        """
        self._grammars.step_begins()
        limit = self.scheduler.max_num_scheduled_tokens
        budget = min(max(step.budget, self._least) if step.budget else limit, limit)
        for scheduler in self.schedulers:
            scheduler.max_num_scheduled_tokens = budget
        whole = self._loop.step() or self._schedule()
        for scheduler in self.schedulers:
            scheduler.max_num_scheduled_tokens = limit
        output = self.read_by_worker(whole)
        starts = self.worker.update(output)
        self._encoder.update(output, starts)
        counts = output.num_scheduled_tokens
        zeros = [*(output.new_block_ids_to_zero or ()), *self.worker.padded]
        scheduled = Scheduled(
            chunks={r: (starts[r], starts[r] + count) for r, count in counts.items()},
            copies=[*self.worker.copies, *self.manager.copies_told(output)],
            zeros=[(self.manager.zeroed_pool, zeros)] if zeros else [],
            drafts={
                r: [max(token, NO_TOKEN) for token in drafts]
                for r, drafts in output.scheduled_spec_decode_tokens.items()
            },
        )
        self._check(scheduled)
        scheduled.fed = self.worker.fed(
            output.scheduled_spec_decode_tokens, self.scheduler.requests
        )
        if self.checkpoints is not None:
            self._save_states(scheduled, self.checkpoints)
        self._outputs.append(whole)
        return scheduled

    def read_by_worker(self, output: Any) -> Any:
        """Return what of an output the worker that is followed reads: all of it."""
        return output

    def _save_states(self, scheduled: Scheduled, checkpoints: PrefillCheckpoints) -> None:
        """Note which states the worker saves within chunks; what verifies drafts saves none."""
        null = self.manager.block_pool.null_block.block_id
        for r, chunk in scheduled.chunks.items():
            if r not in scheduled.drafts and (
                saved := [*checkpoints.of(chunk, self.worker_tables(r), null)]
            ):
                scheduled.checkpoints[r] = saved

    def _check(self, scheduled: Scheduled) -> None:
        """Raise EngineFailure if a request is to compute tokens that it has not and that no step
        in flight may give it.
        """
        flights = {}
        for r, chunk in scheduled.chunks.items():
            drafts = scheduled.drafts.get(r, [])
            rows = self.worker.whole(r)
            flight = flights[r] = Flight(chunk, drafts, rows, admitted=r in self.worker.admitted)
            if (
                not flight.start
                < flight.known
                <= self.requests[r].num_tokens + self._flights.awaited(r)
            ):
                raise EngineFailure("engine-crashed", self._unknown(r, flight))
        self._flights.begin(flights)

    def _unknown(self, r: str, flight: Flight) -> str:
        start = flight.start - flight.fell
        stop = flight.stop - flight.fell
        awaited = self._flights.awaited(r)
        what = f"[{start}, {stop}) of {r}, the last {len(flight.drafts)} of them drafts"
        return (
            f"had tokens {what} computed; it has {self.requests[r].num_tokens}, and {awaited} may"
            " come"
        )

    def lay_out(self, run: Run) -> None:
        """Give a run that has drafts the columns of the worker's row for the states after them."""
        self._states.lay_out(run, self.worker.whole(run.r))

    def settled(self, begin: StepBegin) -> Settled | None:
        """Sample from the oldest step, and say where its runs start, what their drafts are and how
        states are moved.

        Raises EngineFailure as `schedule` does, now that all tokens are known.
        """
        settled = Settled(step=begin.step)
        flights = self._flights.run_oldest()
        for run, (r, flight) in zip(begin.runs, flights.items(), strict=True):
            tokens = self._answer[r] = self._sample(r, flight)
            if tokens:
                self._flights.fall(r, len(flight.drafts) + 1 - len(tokens))
            if self.worker.late:
                settled.runs.append(replace(run, drafts=flight.drafts))
            else:
                self._settle(run, flight, len(tokens), settled)
        if self.worker.late:
            counts = {r: len(tokens) for r, tokens in self._answer.items() if tokens}
            null = self.manager.block_pool.null_block.block_id
            served = {
                r: request
                for r, request in self.requests.items()
                if r not in flights or not flights[r].in_vain
            }
            self.worker.settle(settled, counts, served, null)
        return settled if settled.runs or settled.before or settled.after else None

    def _settle(self, run: Run, flight: Flight, tokens: int, settled: Settled) -> None:
        """Add what became of a run that brings so many tokens."""
        became = run
        if flight.fell or flight.drafts != run.drafts:
            became = replace(
                run,
                start=run.start - flight.fell,
                stop=run.stop - flight.fell,
                drafts=flight.drafts,
            )
        if self.drafts and self._states:
            if flight.admitted:
                self._states.admit([run.r])
            became, before, after = self._states.settle(became, flight.rows, tokens)
            settled.before += before
            settled.after += after
        if became != run:
            settled.runs.append(became)

    def complete(self, scheduled: Scheduled) -> None:
        """Answer the oldest step with what was sampled, and report what came of it."""
        self._ran, sampled, self._answer = scheduled.step, self._answer, {}
        self.worker.sampled(sampled)
        sampled = sampled | self.sampled_elsewhere()
        outputs = self._update(self._outputs.popleft(), self._model_output(sampled))
        self.manager.events[self._stats_at : self._stats_at] = self.statistics_of(outputs)
        for r in sampled:
            self.report(r)
            if (request := self.requests.get(r)) is None:
                continue
            known = any(r in scheduler.requests for scheduler in self.schedulers)
            if not known or request.is_finished():  # a connector may keep what it had for a while
                del self.requests[r]
                self._sessions.end(r)
                self.engine.over(
                    r, scheduled.step, finished=request.status != self._status["FINISHED_ERROR"]
                )
            elif self._sessions.paused(r, request):
                self._flights.leave(r)
                self.engine.paused(r, scheduled.step)
                self._sessions.go_on(r, request, self.engine, scheduled.step)
        if self.drafts:
            self._propose([r for r, tokens in sampled.items() if tokens and r in self.requests])

    def sampled_elsewhere(self) -> dict[str, list[int]]:
        """Return what workers that are not followed sample in the step that runs, by request."""
        return {}

    def statistics_of(self, outputs: Any) -> list[Stats]:
        """Return what operators are told with the answer to a step."""
        pool = self.manager.state.fullest()
        return statistics_of(outputs, self.manager.step, pool, admissions=self._counts_admissions)

    def report(self, r: str) -> None:
        """Report the tokens that a request was given since they were last reported."""
        if tokens := self._sampled.pop(r, None):
            self.engine.generated(r, tokens, self._ran)

    def _sample(self, r: str, flight: Flight) -> list[int]:
        """Return what the worker samples for a request: nothing unless it is there and the step
        computes its last known token.

        Raises EngineFailure if the step computes tokens that it has not.
        """
        if (request := self.requests.get(r)) is None:
            return []
        if flight.in_vain:
            return self.engine.sampler.sample(request, flight.drafts)
        if flight.known > request.num_tokens:
            raise EngineFailure("engine-crashed", self._unknown(r, flight))
        return (
            self.engine.sampler.sample(request, flight.drafts)
            if flight.known == request.num_tokens
            else []
        )

    def _model_output(self, sampled: dict[str, list[int]]) -> Any:
        offered = {
            "req_ids": [*sampled],
            "req_id_to_index": {r: index for index, r in enumerate(sampled)},
            "sampled_token_ids": [*sampled.values()],
            "logprobs": None,
            "prompt_logprobs_dict": {},
            "pooler_output": None,
        }
        return fill(
            self.source,
            self.source.part("v1.outputs", "ModelRunnerOutput"),
            offered,
            ["sampled_token_ids"],
        )

    def _propose(self, ran: list[str]) -> None:
        """Guess for those who sampled. Where a step is in flight the worker keeps that, else the
        scheduler is told.
        """
        guesses = {r: self.engine.sampler.draft(self.requests[r], self.drafts) for r in ran}
        if self.depth:
            self._flights.guess(guesses)
            return
        offered = {"req_ids": [*guesses], "draft_token_ids": [*guesses.values()]}
        drafts = fill(
            self.source, self.source.part("v1.outputs", "DraftTokenIds"), offered, offered
        )
        self.front.update_draft_token_ids(drafts)


class Publisher:
    """In place of the publisher of vLLM's key events: what the scheduler has published is what
    routers are told.

    Events of a connector's memory are published with those of the device, and `AllBlocksCleared`
    does not say of which it is. Unless they are `mixed`, that is read only where the cache manager
    gave it; if it `nets` events, only what a whole batch leaves is.
    """

    nets = False

    def __init__(self, manager: ObservedManager, clock: Clock) -> None:
        self.mixed = False
        self._manager = manager
        self._given = set[int]()
        self.publish = clock.outside(self._publish)

    def given(self, events: list[Any]) -> list[Any]:
        """Note what the cache manager gives to be published, and return it."""
        self._given = {id(event) for event in events}
        return events

    def shutdown(self) -> None:
        """Do nothing: nobody is connected."""

    def _publish(self, batch: Any) -> None:
        events = [
            event
            for event in batch.events
            if self.mixed or id(event) in self._given or medium_of(event)
        ]
        self._manager.tell(net(events) if self.nets else events)


class ReportingManager:
    """The observed manager as vLLM's scheduler calls it. What the observer does is not vLLM's
    time.
    """

    def __init__(self, adapter: RealScheduler, clock: Clock) -> None:
        self.reason: UnpublishReason = "reset"
        self._adapter = adapter
        self._manager = adapter.manager
        self._observed = adapter.manager.observed
        for name in (
            "get_computed_blocks",
            "get_computed_blocks_for_connector",
            "allocate_slots",
            "take_kv_cache_block_copies",
            *self._manager.further,
        ):
            setattr(self, name, clock.outside(getattr(self._manager, name)))
        self.cache_blocks = clock.outside(self._cache_blocks)
        self.free = clock.outside(self._free)
        self.reset_prefix_cache = clock.outside(self._reset_prefix_cache)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class of the manager that is observed: a scheduler may ask for it."""
        return self._observed

    def _cache_blocks(self, request: Any, num_computed_tokens: int) -> None:
        """Key blocks, once the tokens that they were filled with are reported."""
        self._adapter.report(request.request_id)
        self._manager.cache_blocks(request, num_computed_tokens)

    def _free(self, request: Any) -> None:
        """Report the preemption, if it is one, and free."""
        self._adapter.report(request.request_id)
        if not request.is_finished():
            self._adapter.engine.preempted(request.request_id)
        self._manager.free(request)

    def take_events(self) -> list[Any]:
        """Return the key events since the last call."""
        return self._adapter.publisher.given(self._manager.take_events())

    def _reset_prefix_cache(self) -> bool:
        return self._manager.reset_prefix_cache(self.reason)
