"""One rank of a scheduler that shares requests out to several: data parallelism behind one queue.

A *front* has a scheduler of vLLM's for each rank, with a cache of its own. It assigns each request
to a rank, has every rank schedule, and tells one worker the outputs of all in one, in which block
ids are those of the rank that the output names for a request. Nothing is shared between ranks but
the front, so the history is that of one rank, judged as any other: the same trace is run for each.
What the other ranks do is carried out and not observed.

A request that another rank has taken in leaves the history (`abort`, before it was looked up;
`Rules.ranks`). One that no rank has stays in all of them. Of the worker's output the rank's share
is what is told of requests that the output puts there; of statistics it is what is left without
those that the other ranks told the front.

Source of the shape: tpu-inference 0.32.0, `core/sched/dp_scheduler.py`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

from cachewitness._util.errors import UsageError
from cachewitness.core.engine_failure import EngineFailure
from cachewitness.core.events import Aborted, Event, Stats, StepBegin, Submitted, UnpublishReason
from cachewitness.core.events import Settled as SettledStep
from cachewitness.core.trace_format import Step, Submit
from cachewitness.engines.adapter import Asked, Scheduled
from cachewitness.engines.manager_adapter import NewRequest
from cachewitness.engines.observe import ObservedManager
from cachewitness.systems.vllm.clock import Clock
from cachewitness.systems.vllm.scheduler import RealScheduler
from cachewitness.systems.vllm.source import Source
from cachewitness_reference.vllm_extended.config import Options

OPTION = "data_parallel"
MOST = 64
OF = "assigned_dp_rank"
"""In an output: the rank of each request that it schedules."""
MOST_TOKENS = "max_num_scheduled_tokens_per_dp_rank"
"""In an output: how many tokens the rank has that has most."""
LOOK_UPS = (
    "requests",
    "queries",
    "hits",
    "preempted_requests",
    "preempted_queries",
    "preempted_hits",
)
"""What vLLM counts of look-ups (`PrefixCacheStats`)."""


class Ranks:
    """The ranks of an engine: how many there are, the one that is observed, and their schedulers,
    in their order.
    """

    def __init__(self, count: int, seen: int) -> None:
        self.count = count
        self.seen = seen
        self.schedulers: list[Any] = []

    def recorded(self, kind: type) -> Callable[..., Any]:
        """Return what makes a scheduler as a class does, and notes it as that of the next rank."""

        @functools.wraps(kind, updated=())
        def made(*args: Any, **kwargs: Any) -> Any:
            scheduler = kind(*args, **kwargs)
            self.schedulers.append(scheduler)
            return scheduler

        return made


def ranks_named(text: str, options: Options) -> Ranks | None:
    """Return the ranks that `data_parallel=RANK/RANKS` names, None for none. Raises UsageError for
    what names none, and for what is not driven with ranks.
    """
    if not text:
        return None
    seen, slash, count = text.partition("/")
    where = f"--engine vllm:{OPTION}={text}"
    if not (slash and seen.isdecimal() and count.isdecimal() and 1 < int(count) <= MOST):
        raise UsageError(f"{where}: write RANK/RANKS, such as 0/2; there are 2 to {MOST} ranks")
    if int(seen) >= int(count):
        raise UsageError(f"{where}: the ranks are 0 to {int(count) - 1}")
    if options.async_depth and (options.num_speculative_tokens or options.use_eagle):
        raise UsageError(f"{where}: is not driven with drafts while a step is in flight")
    return Ranks(int(count), int(seen))


def made(ranks: Ranks | None, front: Any) -> list[Any]:
    """Return the schedulers of all ranks behind a front; where there are none it is the only one.
    Raises UsageError if `prepare` has not had them made.
    """
    if ranks is None:
        return [front]
    if len(ranks.schedulers) != ranks.count:
        raise UsageError(
            f"--engine vllm:{OPTION}={ranks.seen}/{ranks.count}: {len(ranks.schedulers)} schedulers"
            " were made; `prepare` has a function make them as `ranks.recorded` says"
        )
    return ranks.schedulers


class Waiting(NamedTuple):
    """A request that no rank has taken in yet, and what it was submitted as."""

    submit: Submit
    request: Any


class Elsewhere(NamedTuple):
    """A request in a step that another rank's worker computes, up to so many tokens, without its
    drafts.
    """

    r: str
    known: int
    drafts: list[int]


class RankScheduler(RealScheduler):
    """Has a front decide over the schedulers of several ranks, one of which is observed."""

    def __init__(
        self,
        source: Source,
        scheduler: Any,
        manager: ObservedManager,
        new_request: NewRequest,
        clock: Clock,
        options: Options,
        *,
        front: Any,
        ranks: Ranks,
    ) -> None:
        parts = (source, scheduler, manager, new_request, clock, options)
        super().__init__(*parts, front=front, schedulers=ranks.schedulers)
        self._ranks = ranks
        self._waiting: dict[str, Waiting] = {}
        self._others: set[str] = set()
        """Requests that other ranks have taken in."""
        self._leaving: list[str] = []
        """Those of them of which the history does not say so yet."""
        self._elsewhere: deque[list[Elsewhere]] = deque()
        self._results: dict[str, list[Any]] = {}
        """By name of a call: what each rank answered to the last one."""
        for scheduler in self.schedulers:
            for name in ("schedule", "update_from_output", "reset_prefix_cache"):
                setattr(scheduler, name, self._noting(scheduler, name))
        self._update = self._of_its_own(self._update)

    def _noting(self, scheduler: Any, name: str) -> Callable[..., Any]:
        """Return a method of a rank's scheduler as one whose answer is noted."""
        rank = self.schedulers.index(scheduler)
        call = getattr(type(scheduler), name)
        results = self._results.setdefault(name, [None] * len(self.schedulers))

        def noted(*args: Any, **kwargs: Any) -> Any:
            results[rank] = call(scheduler, *args, **kwargs)
            return results[rank]

        return noted

    def _of_its_own(self, update: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call with outputs of the front's alone: a step that it was not asked for, since
        it said that it has no requests, has another.
        """
        return lambda output, answer: update(output, answer) if hasattr(output, OF) else {}

    def _begin(self, name: str) -> None:
        """Forget what the ranks answered to the last call of a name."""
        self._results[name][:] = [None] * len(self.schedulers)

    def close(self) -> None:
        """Have the ranks' workers end."""
        self.front.shutdown()

    # --- requests ---------------------------------------------------------------------------------

    def _submit(self, submit: Submit, request: Any) -> None:
        """Give the front a request. A rank gets a copy, and that is followed."""
        self._waiting[submit.r] = Waiting(submit, request)
        self._add_request(request)
        self._assigned()

    def _assigned(self) -> None:
        """Take note of the requests that ranks have taken in since."""
        for r, (submit, _) in [*self._waiting.items()]:
            having = [rank for rank, one in enumerate(self.schedulers) if r in one.requests]
            if not having:
                continue
            del self._waiting[r]
            here = self._ranks.seen in having
            taken_in = self.schedulers[self._ranks.seen if here else having[0]].requests[r]
            self.requests[r] = taken_in
            self._follow(submit, taken_in)
            if not here:
                self._others.add(r)
                self._leaving.append(r)

    def end(self, r: str, *, finished: bool) -> None:
        """Let a request go whose client has what it wants, or went away."""
        self._waiting.pop(r, None)
        super().end(r, finished=finished)

    def of_the_rank(self, events: Iterable[Event]) -> list[Event]:
        """Return what happened on the rank that is observed."""
        leaving, self._leaving = self._leaving, []
        kept = [
            event
            for event in events
            if (r := getattr(event, "r", "")) not in self._others
            or (r in leaving and isinstance(event, Submitted))
        ]
        return [*kept, *(Aborted(r=r, step=self.manager.step) for r in leaving)]

    # --- the whole cache --------------------------------------------------------------------------

    def _forget(self, reason: UnpublishReason, *, running: bool) -> bool:
        """Have all ranks forget their keys. The front's answer is for all of them; where it is the
        right one, that of the rank is what it answered itself.
        """
        self._begin("reset_prefix_cache")
        done = super()._forget(reason, running=running)
        answers = [bool(answer) for answer in self._results["reset_prefix_cache"]]
        return answers[self._ranks.seen] if done == all(answers) else done

    # --- steps ------------------------------------------------------------------------------------

    def schedule(self, asked: Asked | None, step: Step) -> Scheduled:
        """Have the front schedule a step; see `RealScheduler.schedule`."""
        self._begin("schedule")
        return super().schedule(asked, step)

    def complete(self, scheduled: Scheduled) -> None:
        """Answer the oldest step; see `RealScheduler.complete`."""
        self._begin("update_from_output")
        super().complete(scheduled)

    def read_by_worker(self, output: Any) -> Any:
        """Return what of an output the rank's worker reads: of the requests that the output puts
        there. Take note of who computes elsewhere.

        Raises EngineFailure for a request that was put on this rank and that another one has, or
        that is over, and if the worker is not told of all that are.
        """
        self._assigned()
        of = getattr(output, OF, {})
        here = {r for r in output.num_scheduled_tokens if of.get(r) == self._ranks.seen}
        if foreign := sorted(here - self.scheduler.requests.keys()):
            raise EngineFailure(
                "engine-crashed",
                f"had {foreign[0]} computed on rank {self._ranks.seen}, which has not taken it in",
            )
        if ended := sorted(here - self.requests.keys()):
            raise EngineFailure("engine-crashed", f"had {ended[0]} computed, which was let go")
        over = {
            r for own in self._results["schedule"] if own is not None for r in own.finished_req_ids
        }
        if untold := sorted(over - set(output.finished_req_ids)):
            raise EngineFailure(
                "engine-crashed", f"did not tell the worker that {untold[0]} is over"
            )
        share = self._share(output, here)
        self._elsewhere.append(self._computing_elsewhere(output, here))
        self._check_counts(output, share)
        return share

    def _check_counts(self, output: Any, share: Any) -> None:
        """Raise EngineFailure if the worker makes too little room for the tokens of all ranks, or
        of this one: it pads every rank's to those of the one that has most.
        """
        total = output.total_num_scheduled_tokens
        tokens = sum(output.num_scheduled_tokens.values())
        most = getattr(output, MOST_TOKENS, tokens)
        if total != tokens or most < share.total_num_scheduled_tokens:
            raise EngineFailure(
                "engine-crashed",
                f"had {tokens} tokens computed, {share.total_num_scheduled_tokens} of them on rank"
                f" {self._ranks.seen}, and told the worker of {total}, at most {most} on a rank",
            )

    def _share(self, output: Any, here: set[str]) -> Any:
        """Return an output as if there were those requests alone."""
        cached = output.scheduled_cached_reqs
        places = [place for place, r in enumerate(cached.req_ids) if r in here]
        columns = ["req_ids", "new_block_ids", "num_computed_tokens", "num_output_tokens"]
        if cached.new_token_ids:
            columns.append("new_token_ids")
        rows = {name: [getattr(cached, name)[place] for place in places] for name in columns}
        known = dataclasses.replace(
            cached, **rows, resumed_req_ids={r for r in cached.resumed_req_ids if r in here}
        )
        counts = {r: n for r, n in output.num_scheduled_tokens.items() if r in here}
        plain = self.source.part("v1.core.sched.output", "SchedulerOutput")
        values = {field.name: getattr(output, field.name) for field in dataclasses.fields(plain)}
        values |= {
            "scheduled_new_reqs": [new for new in output.scheduled_new_reqs if new.req_id in here],
            "scheduled_cached_reqs": known,
            "num_scheduled_tokens": counts,
            "total_num_scheduled_tokens": sum(counts.values()),
        }
        for name in ("scheduled_spec_decode_tokens", "scheduled_encoder_inputs"):
            values[name] = {r: of for r, of in values[name].items() if r in here}
        return plain(**values)

    def _computing_elsewhere(self, output: Any, here: set[str]) -> list[Elsewhere]:
        """Return who computes on other ranks."""
        cached = output.scheduled_cached_reqs
        starts = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        starts |= {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        drafts = output.scheduled_spec_decode_tokens
        return [
            Elsewhere(r, starts.get(r, 0) + count - len(drafts.get(r, [])), drafts.get(r, []))
            for r, count in output.num_scheduled_tokens.items()
            if r not in here
        ]

    def settled(self, begin: StepBegin) -> SettledStep | None:
        """Sample from the oldest step, on all ranks; see `RealScheduler.settled`."""
        settled = super().settled(begin)
        self._sampled_elsewhere = {
            r: self.engine.sampler.sample(request, drafts)
            if (request := self.requests.get(r)) is not None and known == request.num_tokens
            else []
            for r, known, drafts in self._elsewhere.popleft()
        }
        return settled

    def sampled_elsewhere(self) -> dict[str, list[int]]:
        """Return what the other ranks sample in the step that runs, by request."""
        return self._sampled_elsewhere

    def _model_output(self, sampled: dict[str, list[int]]) -> Any:
        self._just_sampled = sampled
        return super()._model_output(sampled)

    def statistics_of(self, outputs: Any) -> list[Stats]:
        """Return the rank's share of what operators are told.

        Raises EngineFailure if clients are not told what the ranks' schedulers have them told, or
        these were given what their workers have not sampled.
        """
        results = [result or {} for result in self._results["update_from_output"]]
        answered = sorted(answer for result in results for answer in _answers(result))
        passed_on = sorted(_answers(outputs))
        if answered != passed_on:
            wrong = sorted({*answered} ^ {*passed_on}) or passed_on
            raise EngineFailure(
                "engine-crashed",
                f"told clients {len(passed_on)} answers where its ranks gave {len(answered)}: that"
                f" of {wrong[0][1]} is another",
            )
        for _, r, tokens, _ in answered:
            if list(tokens) != (sampled := self._just_sampled.get(r, [])[: len(tokens)]):
                raise EngineFailure(
                    "engine-crashed",
                    f"gave {r} tokens {list(tokens)}; its worker sampled {sampled}",
                )
        own = [_statistics(result) for result in results]
        others = [one for rank, one in enumerate(own) if rank != self._ranks.seen and one]
        mine = {
            client: SimpleNamespace(
                scheduler_stats=output.scheduler_stats
                and self._left(output.scheduler_stats, others),
                outputs=[one for one in output.outputs if one.request_id not in self._others],
            )
            for client, output in outputs.items()
        }
        return super().statistics_of(mine)

    def _left(self, stats: Any, others: list[Any]) -> Any:
        """Return statistics of all ranks without those of the others."""
        caching = {
            name: max(
                getattr(stats.prefix_cache_stats, name)
                - sum(getattr(one.prefix_cache_stats, name) for one in others),
                0,
            )
            for name in LOOK_UPS
        }
        usage = stats.kv_cache_usage * self._ranks.count
        return SimpleNamespace(
            kv_cache_usage=usage - sum(one.kv_cache_usage for one in others),
            prefix_cache_stats=SimpleNamespace(**caching),
            connector_prefix_cache_stats=None,
        )


def _answers(outputs: Any) -> list[tuple[int, str, tuple[int, ...], str]]:
    """Return what clients are told: who, of which request, which tokens, and why it is over."""
    return [
        (client, answer.request_id, tuple(answer.new_token_ids), str(answer.finish_reason))
        for client, output in outputs.items()
        for answer in output.outputs
    ]


def _statistics(outputs: Any) -> Any:
    """Return the statistics that come with one of the answers, None for none."""
    found = [output.scheduler_stats for output in outputs.values() if output.scheduler_stats]
    return found[0] if found else None
