"""An engine of a reference policy that has a cache, and perhaps a scheduler, of its own kind.

What every system has in common is here: a request is submitted, scheduled in steps, generates, and ends. What a step computes,
which pages it runs over and what is kept of it is the policy's, behind an `Adapter`. A step is scheduled and carried out before
the next operation; nothing is in flight between operations.

At manager height a trace says who computes how many tokens; at scheduler height it gives a budget, and the policy's own
scheduler decides. By default the harness plays the worker and texts are scripted; an engine that computes brings a `Device`
and a `Sampler`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from harness._util.errors import UsageError
from harness.engines.block_table_diff import BlockTableDiff
from harness.engines.cache_state import CacheState
from harness.engines.protocol import Device
from harness.engines.scripted import Sampler, Scripted
from harness.history.events import (
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
from harness.trace.format import Abort, Finish, Media, Op, Preempt, Reset, Step, Submit, UpdateWeights, Vocabulary, length_of


class Refused(ValueError):
    """A request that can never run; the message is one line."""


@dataclass
class Scheduled:
    """A step as a policy scheduled it: tokens [start, stop) of each request, and what has to be moved around them.

    `zeros` are (pool, pages) to clear, then `copies` are made, then the runs, then `stores`.
    """

    chunks: dict[str, tuple[int, int]] = field(default_factory=dict)
    copies: list[Move] = field(default_factory=list)
    zeros: list[tuple[int, list[int]]] = field(default_factory=list)
    stores: list[Move] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """How many tokens are computed in all."""
        return sum(stop - start for start, stop in self.chunks.values())


class Adapter(CacheState, Protocol):
    """A policy as the harness drives it.

    An adapter settles the diff after each call that it makes on the policy, and says in between what cannot be read off
    books: hits, and (by `PolicyHeight.preempted`) that a request lost its place before its pages went.
    """

    max_model_len: int
    """A request ends when it has so many tokens."""

    def attach(self, engine: PolicyHeight) -> None:
        """Take note of the engine, whose diff is to be told, before anything is submitted."""

    def add(self, submit: Submit, tokens: list[int], shared: int) -> None:
        """Take a request in, whose first `shared` tokens are a part that others have too (the first segment of its prompt).

        Raises Refused if it can never run.
        """

    def schedule(self, asked: Sequence[tuple[str, int]] | None, budget: int) -> Scheduled:
        """Schedule a step: who computes how many tokens at most; None: the policy decides, within `budget` (0: its own)."""

    def complete(self, scheduled: Scheduled) -> None:
        """Take note that the step has run, before anything is sampled from it."""

    def accept(self, r: str, tokens: Sequence[int]) -> None:
        """Take note of what a request generated after the step that computed its last known token."""

    def end(self, r: str, *, finished: bool) -> None:
        """Let a request go that ended as intended, or early."""

    def preempt(self, r: str) -> None:
        """Take the pages of a running request away; it waits again, with what it generated."""

    def running(self) -> list[str]:
        """Return the requests that hold pages, in the order in which they came."""

    def reset(self, tier: str) -> Mapping[str, bool]:
        """Forget every key of a tier, of all if it is empty; return by tier what was answered."""

    def renew(self) -> None:
        """Forget everything that was computed, in every tier: the weights have changed, and nobody runs."""


class Client:
    """A request as the harness and a sampler know it."""

    __slots__ = ("all_token_ids", "num_prompt_tokens", "request_id")

    def __init__(self, r: str, tokens: Sequence[int]) -> None:
        self.request_id, self.all_token_ids, self.num_prompt_tokens = r, list(tokens), len(tokens)

    @property
    def num_output_tokens(self) -> int:
        """How many tokens it has generated."""
        return len(self.all_token_ids) - self.num_prompt_tokens


class PolicyHeight:
    """Carries out the operations of a trace on a policy. `header.height` says who decides what a step computes."""

    def __init__(self, header: Header, adapter: Adapter) -> None:
        self.header, self.adapter = header, adapter
        pools, null = [group.pool for group in header.groups], {pool.id: pool.null for pool in header.pools}
        self.diff = BlockTableDiff(adapter, pools, null)
        self.device: Device | None = None
        self._vocabulary = Vocabulary()
        self._scripted = Scripted(self._vocabulary)
        self.sampler: Sampler = self._scripted
        self.clients: dict[str, Client] = {}
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

    def preempted(self, r: str) -> None:
        """Report that a request lost its place; to be told before its pages go."""
        self.events.append(Preempted(r=r, step=self.diff.step))

    def apply(self, op: Op) -> list[Event]:
        """Carry out one operation and return its events; one on a request that has ended by itself does nothing."""
        events = self.diff.events = []
        match op:
            case Submit():
                first, *rest = op.prompt.split()
                shared = length_of(first) if rest else 0
                self._scripted.texts[op.r] = op.stream or f"@{op.r}"
                self._submit(op, self._vocabulary.tokens(op.prompt), shared)
            case Step():
                self._step(op)
            case Finish() | Abort():
                if op.r in self.clients:
                    self._end(op.r, finished=isinstance(op, Finish))
            case Preempt():
                if op.r in self.adapter.running():
                    self._preempt(op.r)
            case Reset():
                self._reset(op)
            case UpdateWeights():
                self._preempt_all()
                self.adapter.renew()
                events.append(ResetDone(step=self.diff.step, ok=True))
                events.append(Version(step=self.diff.step, weights=op.version, adapter=op.adapter))
        return events

    def submit_tokens(
        self, r: str, tokens: Sequence[int], *, salt: str = "", adapter: str = "", media: Sequence[Media] = (), shared: int = 0
    ) -> list[Event]:
        """Submit a request whose prompt is given as token ids, and return the events; the sampler must know what follows.

        Raises Refused if it can never run.
        """
        events = self.diff.events = []
        self._add(Submit(r=r, prompt="", salt=salt, adapter=adapter, media=list(media)), list(tokens), shared)
        return events

    # --- life of a request ---------------------------------------------------------------------------------------------

    def _submit(self, op: Submit, tokens: list[int], shared: int) -> None:
        if op.r in self.clients:
            raise UsageError(f"trace: request {op.r!r} is submitted twice; give the second one another name")
        try:
            self._add(op, tokens, shared)
        except Refused:
            self.events.append(Aborted(r=op.r, step=self.diff.step))

    def _add(self, op: Submit, tokens: list[int], shared: int) -> None:
        event = Submitted(r=op.r, tokens=tokens, salt=op.salt, adapter=op.adapter, media=op.media, step=self.diff.step)
        self.events.append(event)
        self.adapter.add(op, list(tokens), shared)
        self.clients[op.r] = Client(op.r, tokens)

    def _end(self, r: str, *, finished: bool) -> None:
        self.events.append((Finished if finished else Aborted)(r=r, step=self.diff.step))
        del self.clients[r]
        self.adapter.end(r, finished=finished)
        self.diff.forget(r)

    def _preempt(self, r: str) -> None:
        self.preempted(r)
        self.adapter.preempt(r)

    def _preempt_all(self) -> None:
        for r in reversed(self.adapter.running()):
            self._preempt(r)

    def _reset(self, op: Reset) -> None:
        if op.running:
            self._preempt_all()
        for tier, ok in self.adapter.reset(op.tier).items():
            self.events.append(ResetDone(step=self.diff.step, ok=ok, tier=tier))

    # --- steps ---------------------------------------------------------------------------------------------------------

    def _step(self, op: Step) -> None:
        asked = [(r, count) for r, count in dict(op.run).items() if r in self.clients]
        manager = self.header.height == "manager"
        if manager and op.run and not asked:
            return  # everybody asked for has ended by itself
        step = self.diff.step = self.diff.step + 1
        scheduled = self.adapter.schedule(asked if manager else None, op.budget)
        begin = StepBegin(
            step=step,
            asked=asked if manager else [],
            runs=[Run(r, start, stop, self.diff.tables(r)) for r, (start, stop) in scheduled.chunks.items()],
            copies=scheduled.copies,
            zeros=scheduled.zeros,
            stores=scheduled.stores,
        )
        self.events.append(begin)
        self.events.append(StepEnd(step=step))
        if self.device is not None:
            self.device.execute(begin, (), {run.r: self.clients[run.r].all_token_ids[: run.stop] for run in begin.runs})
        self.adapter.complete(scheduled)
        for run in begin.runs:
            if run.r in self.clients:
                self._sample(self.clients[run.r], run.stop)

    def _sample(self, client: Client, computed: int) -> None:
        """Let a request whose tokens are all computed generate one more, and end where it has as many as it may have."""
        r = client.request_id
        if computed < len(client.all_token_ids):
            return
        tokens = self.sampler.sample(client, [])
        client.all_token_ids += tokens
        self.events.append(Accept(r=r, upto=len(client.all_token_ids), tokens=tokens, step=self.diff.step))
        self.adapter.accept(r, tokens)
        if len(client.all_token_ids) >= self.adapter.max_model_len:
            self._end(r, finished=True)
