"""What the driver asks of a cache, and perhaps of its scheduler. One adapter stands between the
two, for a system of any shape.

At manager level a trace says who computes how many tokens; at scheduler level it gives a budget,
and the system's own scheduler decides. What a step computes, which pages it runs over and what is
kept of it is the system's at both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from cachewitness.core.events import Event, Header, Move, Run, Settled, StepBegin, UnpublishReason
from cachewitness.core.scripted import Sampler
from cachewitness.core.trace_format import Extend, Step, Submit
from cachewitness.engines.block_table_diff import BlockTableDiff
from cachewitness.engines.cache_state import CacheState, Tables

CAPABILITIES = ["abort", "adapter", "cancel", "media", "preempt", "reset", "salt", "update_weights"]
"""What the driver carries out on any adapter."""

LOCAL, SECOND = "local", "cpu"
"""The names of the tiers, as a reset names them."""

Asked = list[tuple[str, int]]
"""Who is to compute how many tokens at most."""


class Refused(ValueError):
    """A request that can never run; the message is one line."""


class Scheduled(msgspec.Struct):
    """A step as a policy scheduled it: tokens [start, stop) of each request, and what has to be
    moved around them.

    `zeros` are (pool, pages) to clear, then `copies` are made, then the runs, then `stores`. The
    last tokens of a run are its `drafts`. Transfers that take steps have a number: they are `begun`
    with this step, and `ended` or `failed` when it has run, or `flushed`, over before its runs.
    `fed` are the tokens that a worker feeds for those of a request that has others, `checkpoints`
    the states that it writes on its way through a chunk, `mirrors` the tokens that it writes to a
    second place. `withdrawn` are requests that were scheduled and taken back before the step
    begins; they have no chunk.
    """

    chunks: dict[str, tuple[int, int]] = {}
    copies: list[Move] = []
    zeros: list[tuple[int, list[int]]] = []
    stores: list[Move] = []
    drafts: dict[str, list[int]] = {}
    fed: dict[str, list[int]] = {}
    checkpoints: dict[str, list[tuple[int, int, int]]] = {}
    mirrors: dict[str, list[tuple[int, int, int, int]]] = {}
    withdrawn: list[str] = []
    begun: list[tuple[int, Move]] = []
    ended: list[int] = []
    failed: list[int] = []
    flushed: list[int] = []
    step: int = 0
    """Its number, which the driver writes here."""

    @property
    def num_tokens(self) -> int:
        """How many tokens are computed in all."""
        return sum(stop - start for start, stop in self.chunks.values())


class Host(Protocol):
    """The driver as an adapter sees it: where it says what cannot be read off tables, keys and
    counts.
    """

    diff: BlockTableDiff
    sampler: Sampler

    @property
    def events(self) -> list[Event]:
        """What happened in the operation under way."""

    def preempt(self, r: str) -> None:
        """Report that a request lost its place, and have the adapter take its pages away."""

    def preempt_all(self) -> None:
        """Preempt everybody who holds pages, whoever came last first."""

    def preempted(self, r: str) -> None:
        """Report that a request lost its place; to be told before its pages go. Told by the
        driver where the driver asked.
        """

    def generated(self, r: str, tokens: list[int], step: int) -> None:
        """Report what a request generated in a step."""

    def paused(self, r: str, step: int) -> None:
        """Report that the answer of a session is over."""

    def extended(self, r: str, keep: int, tokens: list[int], step: int) -> None:
        """Report that a session goes on: behind the first `keep` of its tokens it has these, and
        all are its prompt now.
        """

    def over(self, r: str, step: int, *, finished: bool) -> None:
        """Report that a request has ended in a step, as intended or early, and forget it."""


class Driven(Protocol):
    """A policy as the harness drives it. What has a body here need not be written.

    An adapter settles the diff after each call that it makes on the policy, and says in between
    what cannot be read off tables: hits, and (by `Host.preempted`) that a request lost its place
    before its pages went.
    """

    engine: Host
    diff: BlockTableDiff
    max_model_len: int
    """A request ends when it has so many tokens."""
    max_prompt: int = 0
    """A prompt of more tokens is refused; 0: one that leaves no room to generate below
    `max_model_len`."""
    holds: int = 0
    """The longest prompt, in tokens, that the pools hold while nobody else runs, to its end, by the
    policy's own sizing; 0: what they hold with a spare block for every group."""
    depth: int = 0
    """How many steps may have been scheduled and not run when an operation is over."""
    cancels: bool = False
    """Whether a request can be let go when its step was scheduled and has not run; else it is when
    the step has run."""
    samples: bool = False
    """Whether the policy asks the sampler by itself, in `complete`, and reports by `Host` what was
    generated and who ended."""

    def compared(self, header: Header) -> BlockTableDiff:
        """Return what compares the cache with what it was, for the groups and pools of a header."""

    def attach(self, engine: Host) -> None:
        """Take note of the driver, before anything is submitted."""
        self.engine = engine
        self.diff = engine.diff

    def add(self, submit: Submit, tokens: list[int], shared: int) -> None:
        """Take a request in, whose first `shared` tokens are a part that others have too (the first
        segment of its prompt).

        Raises Refused if it can never run.
        """

    def extend(self, extend: Extend, tokens: list[int]) -> None:
        """Give a session more input; there are none unless the adapter says so (the capability
        `session`).

        Raises Refused if it would get too long.
        """
        raise Refused(f"{extend.r} is no session")

    def schedule(self, asked: Asked | None, step: Step) -> Scheduled:
        """Schedule a step: who computes how many tokens at most; None: the policy decides, within
        `step.budget` (0: its own).

        Nobody is asked in a step that is there for transfers alone.
        """

    def settled(self, begin: StepBegin) -> Settled | None:
        """Return what of a step was not known when it was scheduled; asked when it runs, all
        steps before being over.
        """
        return None

    def complete(self, scheduled: Scheduled) -> None:
        """Take note that a step has run, before anything is sampled from it."""

    def accept(self, r: str, tokens: Sequence[int]) -> None:
        """Take note of what a request generated after the step that computed its last known
        token.
        """

    def end(self, r: str, *, finished: bool) -> None:
        """Let a request go that ended as intended, or early."""

    def preempt(self, r: str) -> None:
        """Take the pages of a running request away; it waits again, with what it generated."""

    def running(self) -> list[str]:
        """Return the requests that hold pages, in the order in which they came."""

    def worker_tables(self, r: str) -> Tables:
        """Return the block tables that the worker is given for a request: those that the cache
        shows, by default.
        """
        return self.diff.tables(r)

    def lay_out(self, run: Run) -> None:
        """Give a run that has drafts the pages of the states after them: what the cache shows
        beside its tables, by default.
        """
        run.scratch = self.diff.scratch(run.r)

    def transferring(self) -> bool:
        """Whether transfers are under way that go on while nobody computes."""
        return False

    def resets_at_once(self) -> bool:
        """Whether a reset does not wait now for the steps that are in flight."""
        return False

    def forget(self, reason: UnpublishReason) -> bool:
        """Forget every key of the device's cache, for a reason; return whether it was done.
        There may be none to forget.
        """
        return True

    def reset(self, tier: str, *, running: bool) -> Iterable[tuple[str, bool]]:
        """Forget every key of a tier, of all tiers if it is empty; yield of each whether it was
        done.

        `running`: whoever holds pages of the device is preempted first.
        """
        if tier in ("", LOCAL):
            if running:
                self.engine.preempt_all()
            yield LOCAL, self.forget("reset")

    def renew(self) -> bool:
        """Forget everything that was computed, in every tier: the weights have changed. Return
        whether it was done.
        """
        self.engine.preempt_all()
        return self.forget("version")


class Adapter(CacheState, Driven, Protocol):
    """A policy that shows its cache whole after each call: what most adapters are."""

    def compared(self, header: Header) -> BlockTableDiff:
        """Return a comparison of everything that the cache shows."""
        return BlockTableDiff(
            self,
            [group.pool for group in header.groups],
            {pool.id: pool.null for pool in header.pools},
            {pool.id: pool.pages for pool in header.pools},
        )
