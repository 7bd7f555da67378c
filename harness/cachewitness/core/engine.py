"""What an engine is to the harness: three methods.

There are no optional methods: a capability is an operation that the engine accepts or an event that
it emits. Checkers see the ledger and the event, never an engine.

An engine that decides and an engine that computes may be two things: `Device` is the second, given
the steps of the first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from cachewitness.core.events import Event, Header, StepBegin
from cachewitness.core.scripted import Sampler
from cachewitness.core.trace_format import Media, Op


class Engine(Protocol):
    """A cache under test, built for one trace."""

    def describe(self) -> Header:
        """Return the pools, the groups and the rules that the engine declares."""

    def apply(self, op: Op) -> list[Event]:
        """Carry out one operation and return what happened, in order; no `read`, `write`, `copy` or
        `zero` among it.

        Raises whatever the engine raises: that is a verdict (`engine-crashed`), not an error of the harness.
        """  # noqa: E501

    def close(self) -> None:
        """Let go of everything."""


class Device(Protocol):
    """Carries out steps on pages of its own, in the order in which they were scheduled.

    Whatever moves is in `begin`: zeros, then copies (one simultaneous permutation), then the runs
    over their tables, drafts and scratch states, then the stores to another tier. Nothing moves
    between steps.
    """

    def execute(
        self, begin: StepBegin, withdrawn: Collection[str], tokens: Mapping[str, list[int]]
    ) -> None:
        """Carry a step out; called when it ends, before anything is sampled from it.

        Requests in `withdrawn` do not run. `tokens[r]` are the tokens of a run from 0 on, drafts
        included; fewer than its `stop` if r ended before its last token was known, and then nobody
        asks for what it computes. They grow after the call, and are not to be changed.
        """


class Stepping(Protocol):
    """An engine at scheduler level that lets a device compute its steps and a sampler say what
    comes of them.

    `events` are those of the operation under way, so far.
    """

    header: Header
    device: Device | None
    sampler: Sampler

    @property
    def events(self) -> list[Event]:
        """What happened in the operation under way."""

    def apply(self, op: Op) -> list[Event]:
        """See `Engine`."""

    def close(self) -> None:
        """See `Engine`."""

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
        """Submit a request whose prompt is given as token ids; `shared` of them are a part that
        others have too.

        Raises ValueError if it can never run.
        """

    def running(self) -> list[str]:
        """Return the requests that hold their place, the one that came last at the end."""
