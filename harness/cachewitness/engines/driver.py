"""Carries out the operations of a trace on a cache of any shape, at manager and at scheduler
level.

What every system has in common is here: a request is submitted, scheduled in steps, generates, and
ends. What a step computes, which pages it runs over and what is kept of it is the policy's, behind
an `Adapter`. A step may be scheduled while earlier ones have not run, as many as the adapter says;
steps run in the order in which they were scheduled.

By default the harness plays the worker and texts are scripted; an engine that computes brings a
`Device`, which is given every step, and a `Sampler`, which says what came of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from cachewitness._util.errors import UsageError
from cachewitness.core.engine import Device
from cachewitness.core.engine_failure import EngineFailure
from cachewitness.core.events import (
    Aborted,
    Accept,
    Event,
    Extended,
    Finished,
    Header,
    Paused,
    Preempted,
    ResetDone,
    Run,
    StepBegin,
    StepEnd,
    Submitted,
    Version,
)
from cachewitness.core.page_bound import longest_held
from cachewitness.core.scripted import Sampler, Scripted
from cachewitness.core.trace_format import (
    Abort,
    Extend,
    Finish,
    Media,
    Op,
    Preempt,
    Reset,
    Step,
    Submit,
    UpdateWeights,
    Vocabulary,
    length_of,
)
from cachewitness.engines.adapter import Asked, Driven, Refused, Scheduled

_NOTHING_ASKED = Step(run=[])


class Client:
    """A request as the harness and a sampler know it."""

    __slots__ = ("all_token_ids", "num_prompt_tokens", "request_id")

    def __init__(self, r: str, tokens: Sequence[int]) -> None:
        self.request_id = r
        self.all_token_ids = list(tokens)
        self.num_prompt_tokens = len(tokens)

    @property
    def num_output_tokens(self) -> int:
        """How many tokens it has generated."""
        return len(self.all_token_ids) - self.num_prompt_tokens


class InFlight(msgspec.Struct):
    """A step that was scheduled and has not run; `clients` are those in it, if a device has to
    be given their tokens.
    """

    scheduled: Scheduled
    begin: StepBegin
    clients: list[Client]


class Driver:
    """Carries out the operations of a trace on a policy. `header.level` says who decides what a
    step computes.
    """

    def __init__(self, header: Header, adapter: Driven) -> None:
        self.header = _limited(header, adapter)
        self.adapter = adapter
        self.diff = adapter.compared(header)
        self.device: Device | None = None
        self._vocabulary = Vocabulary()
        self._scripted = Scripted(self._vocabulary)
        self.sampler: Sampler = self._scripted
        self.clients: dict[str, Client] = {}
        self.in_flight: deque[InFlight] = deque()
        self._names: set[str] = set()
        self._asked_to_preempt = ""
        adapter.attach(self)

    @property
    def events(self) -> list[Event]:
        """What happened in the operation under way."""
        return self.diff.events

    def describe(self) -> Header:
        """Return the header that the engine was built with."""
        return self.header

    def close(self) -> None:
        """Nothing is held outside this process."""

    def running(self) -> list[str]:
        """Return the requests that hold their place, the one that came last at the end."""
        return self.adapter.running()

    def apply(self, op: Op) -> list[Event]:
        """Carry out one operation and return its events; one on a request that has ended by itself
        does nothing.

        Raises UsageError if it names a request that was never submitted, or submits one again.
        """
        events: list[Event] = []
        self.diff.events = events
        match op:
            case Submit():
                self._submit(op)
            case Extend():
                if self._known(op.r):
                    self._extend(op)
            case Step():
                self._step(op)
            case Finish() | Abort():
                if self._known(op.r):
                    self._end(op.r, finished=isinstance(op, Finish))
            case Preempt():
                if self._known(op.r) and op.r in self.adapter.running():
                    self.preempt(op.r)
            case Reset():
                self._reset(op)
            case UpdateWeights():
                self._update_weights(op)
        return events

    # --- life of a request ------------------------------------------------------------------------

    def submit_tokens(
        self,
        r: str,
        tokens: Sequence[int],
        *,
        salt: str = "",
        adapter: str = "",
        media: Sequence[Media] = (),
        shared: int = 0,
    ) -> list[Event]:
        """Submit a request whose prompt is given as token ids, and return the events; the sampler
        must know what follows.

        Raises Refused if it can never run.
        """
        events: list[Event] = []
        self.diff.events = events
        self._add(
            Submit(r=r, prompt="", salt=salt, adapter=adapter, media=list(media)),
            list(tokens),
            shared,
        )
        return events

    def _submit(self, op: Submit) -> None:
        first, *rest = op.prompt.split() or [""]
        self._scripted.texts[op.r] = op.stream or f"@{op.r}"
        try:
            self._add(op, self._vocabulary.tokens(op.prompt), length_of(first) if rest else 0)
        except Refused:
            self.events.append(Aborted(r=op.r, step=self.diff.step))

    def _add(self, op: Submit, tokens: list[int], shared: int) -> None:
        if op.r in self._names:
            raise UsageError(
                f"trace: request {op.r!r} is submitted twice; give the second one another name"
            )
        self._names.add(op.r)
        event = Submitted(
            r=op.r,
            tokens=tokens,
            salt=op.salt,
            adapter=op.adapter,
            media=op.media,
            kernels=op.kernels,
            session=op.session,
            prompt_logprobs=op.prompt_logprobs,
            step=self.diff.step,
        )
        if self.header.rules.captures is not None:
            event.shared = shared
        self.events.append(event)
        self.adapter.add(op, list(tokens), shared)
        self.clients[op.r] = Client(op.r, tokens)

    def _extend(self, op: Extend) -> None:
        """Give a session more input; the client of one that would get too long goes away."""
        try:
            self.adapter.extend(op, self._vocabulary.tokens(op.prompt))
        except Refused:
            self._end(op.r, finished=False)

    def paused(self, r: str, step: int) -> None:
        """Report that the answer of a session is over."""
        self.events.append(Paused(r=r, step=step))

    def extended(self, r: str, keep: int, tokens: list[int], step: int) -> None:
        """Report that a session goes on: behind the first `keep` of its tokens it has these, and
        all are its prompt now.
        """
        client = self.clients[r]
        had = len(client.all_token_ids)
        if keep < had - 1:
            # No history can say that tokens of a request are gone; the engine failed to go on.
            raise EngineFailure(
                "engine-crashed",
                f"kept {keep} of the {had} tokens of session {r!r}, not all but the last",
            )
        client.all_token_ids[keep:] = tokens
        client.num_prompt_tokens = len(client.all_token_ids)
        self.events.append(Extended(r=r, keep=keep, tokens=tokens, step=step))

    def _known(self, r: str) -> bool:
        """Whether a request is live; one that has ended is not."""
        if r not in self._names:
            raise UsageError(f"trace: request {r!r} is named before it is submitted")
        return r in self.clients

    def _end(self, r: str, *, finished: bool) -> None:
        self.over(r, self.diff.step, finished=finished)
        self.adapter.end(r, finished=finished)
        self.diff.forget(r)

    def over(self, r: str, step: int, *, finished: bool) -> None:
        """Report that a request has ended in a step, as intended or early, and forget it."""
        self.events.append((Finished if finished else Aborted)(r=r, step=step))
        del self.clients[r]

    def preempt(self, r: str) -> None:
        """Report that a request lost its place, and have its pages taken away."""
        self.preempted(r)
        self._asked_to_preempt = r
        self.adapter.preempt(r)
        self._asked_to_preempt = ""

    def preempt_all(self) -> None:
        """Preempt everybody who holds pages, whoever came last first."""
        for r in reversed(self.adapter.running()):
            self.preempt(r)

    def preempted(self, r: str) -> None:
        """Report that a request lost its place, unless that was asked for by `preempt`, which
        has reported it.
        """
        if r != self._asked_to_preempt:
            self.events.append(Preempted(r=r, step=self.diff.step))

    # --- the whole cache --------------------------------------------------------------------------

    def _reset(self, op: Reset) -> None:
        if not self.adapter.resets_at_once() and not self._drain(transfers=op.running):
            tiers = [op.tier] if op.tier else sorted({pool.tier for pool in self.header.pools})
            step = self.diff.step
            self.events.extend(ResetDone(step=step, ok=False, tier=tier) for tier in tiers)
            return
        for tier, ok in self.adapter.reset(op.tier, running=op.running):
            self.events.append(ResetDone(step=self.diff.step, ok=ok, tier=tier))

    def _update_weights(self, op: UpdateWeights) -> None:
        if not self._drain(transfers=True):
            self.events.append(ResetDone(step=self.diff.step, ok=False))
            return
        done = self.adapter.renew()
        self.events.append(ResetDone(step=self.diff.step, ok=done))
        if not done:
            return
        self.events.append(Version(step=self.diff.step, weights=op.version, adapter=op.adapter))

    def _drain(self, *, transfers: bool) -> bool:
        """Let every step that was scheduled run, and if it is asked for let transfers that are
        under way end.

        Return whether it came to that. What takes longer than a request may be made to wait is not
        waited for: perhaps somebody who holds pages for a load can never go on, since those who run
        go on too, and begin transfers of their own.
        """
        while self.in_flight:
            self._run_oldest()
        waited = 0
        while transfers and self.adapter.transferring():
            if waited > self.header.rules.progress_steps:
                return False
            self._begin(_NOTHING_ASKED, [])
            self._run_oldest()
            waited += 1
        return True

    # --- steps ------------------------------------------------------------------------------------

    def _step(self, op: Step) -> None:
        asked = None
        if self.header.level == "manager":
            asked = [
                (r, count)
                for r, count in dict(op.run).items()
                if r in self.clients or self._known(r)
            ]
            if op.run and not asked:
                return  # everybody asked for has ended by itself
        self._begin(op, asked)
        if self.adapter.cancels and op.cancel:
            self._cancel(op.cancel)
        while len(self.in_flight) > self.adapter.depth:
            self._run_oldest()
        if op.cancel:
            self._cancel(op.cancel)

    def _cancel(self, names: Sequence[str]) -> None:
        """Let requests go whose clients went away since the step was scheduled, if they have not
        ended.
        """
        for r in names:
            if self._known(r):
                self._end(r, finished=False)

    def _begin(self, op: Step, asked: Asked | None) -> None:
        step = self.diff.step = self.diff.step + 1
        scheduled = self.adapter.schedule(asked, op)
        scheduled.step = step
        begin = StepBegin(
            step=step,
            asked=asked or [],
            runs=self._runs(scheduled),
            copies=scheduled.copies,
            zeros=scheduled.zeros,
            stores=scheduled.stores,
            begun=scheduled.begun,
            ended=scheduled.ended,
            failed=scheduled.failed,
            flushed=scheduled.flushed,
        )
        self.diff.events.append(begin)
        self.in_flight.append(
            InFlight(
                scheduled, begin, [self.clients[run.r] for run in begin.runs] if self.device else []
            )
        )

    def _runs(self, scheduled: Scheduled) -> list[Run]:
        runs = [
            Run(r, start, stop, self.tables(r)) for r, (start, stop) in scheduled.chunks.items()
        ]
        for run in runs if scheduled.drafts else ():
            if drafts := scheduled.drafts.get(run.r):
                run.drafts = drafts
                self.adapter.lay_out(run)
        for run in runs if scheduled.fed else ():
            run.fed = scheduled.fed.get(run.r, [])
        for run in runs if scheduled.checkpoints else ():
            run.checkpoints = scheduled.checkpoints.get(run.r, [])
        for run in runs if scheduled.mirrors else ():
            run.mirrors = scheduled.mirrors.get(run.r, [])
        return runs

    def tables(self, r: str) -> list[list[int]]:
        """Return the block tables that the worker is given for a request, by group and column."""
        return self.adapter.worker_tables(r)

    def _run_oldest(self) -> None:
        oldest = self.in_flight.popleft()
        scheduled = oldest.scheduled
        begin = oldest.begin
        if settled := self.adapter.settled(begin):
            self.diff.events.append(settled)
        self.diff.events.append(StepEnd(step=begin.step, withdrawn=scheduled.withdrawn))
        if self.device is not None:
            pairs = zip(begin.runs, oldest.clients, strict=True)
            tokens = {run.r: _fed(run, client.all_token_ids) for run, client in pairs}
            self.device.execute(begin, scheduled.withdrawn, tokens)
        self.adapter.complete(scheduled)
        for run in begin.runs if not self.adapter.samples else ():
            client = self.clients.get(run.r)
            if client is not None and run.stop >= len(client.all_token_ids):
                self._sample(client, begin.step)

    def _sample(self, client: Client, step: int) -> None:
        """Let a request whose tokens are all computed generate one more, and end where it has as
        many as it may have.
        """
        r = client.request_id
        tokens = self.sampler.sample(client, [])
        self.generated(r, tokens, step)
        self.adapter.accept(r, tokens)
        if len(client.all_token_ids) >= self.adapter.max_model_len:
            self._end(r, finished=True)

    def generated(self, r: str, tokens: list[int], step: int) -> None:
        """Report what a request generated in a step."""
        client = self.clients[r]
        client.all_token_ids += tokens
        self.diff.events.append(
            Accept(r=r, upto=len(client.all_token_ids), tokens=tokens, step=step)
        )


def _fed(run: Run, tokens: list[int]) -> list[int]:
    """Return the tokens that a run computes from 0 on, its drafts and what its worker feeds
    instead of its own among them. Not to be changed.
    """
    if len(tokens) <= run.known and not (run.drafts or run.fed):
        return tokens  # as in every step that generates: no copy of what may be long
    known = [*tokens[: run.start], *run.fed] if run.fed else tokens[: run.known]
    return [*known, *run.drafts]


def _limited(header: Header, adapter: Driven) -> Header:
    """Return the header with the longest prompt that the adapter takes and its pools hold alone:
    by its own sizing, or else beyond doubt.
    """
    taken = adapter.max_prompt or adapter.max_model_len - 1
    most = min(taken, adapter.holds) if adapter.holds else longest_held(header, taken)
    return replace(header, rules=replace(header.rules, max_prompt=most))
