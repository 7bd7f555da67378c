"""What an exhaustive search enumerates: small configurations, and the operations that are offered
in each state.

Blocks are of two tokens, so lengths one below, on and one above a boundary are all lengths there
are. Requests are called r1, r2, … in the order in which they come and the first text is called A,
because neither name means anything: renaming them gives the same trace. At manager level an abort
does the same as a finish, so it is not tried. A request ends by itself when it has as many tokens
as the model allows, so there are finitely many states, and a search that has seen them all has seen
every trace, however long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.trace_format import (
    Abort,
    Finish,
    GroupSpec,
    Layout,
    Level,
    Op,
    Preempt,
    Reset,
    Step,
    Submit,
    TraceHeader,
)
from cachewitness.workloads.configurations import Configuration

BLOCK = 2
"""Tokens in a block of every group, unless a layout says otherwise."""


@dataclass(frozen=True)
class Bound:
    """How much is enumerated: `requests` are submitted at most, prompts have up to `blocks` blocks,
    the pool has `pages`.

    The null block is one of the pages. A request has up to `generated` tokens more than the longest
    prompt.
    """

    requests: int = 2
    blocks: int = 1
    pages: int = 5
    generated: int = 1

    @property
    def longest(self) -> int:
        """The longest prompt, in tokens: one behind a boundary, so that all of the blocks before
        it can be hit.
        """
        return self.blocks * BLOCK + 1

    @property
    def model_len(self) -> int:
        """How many tokens a request has at most."""
        return self.longest + self.generated


@dataclass(frozen=True)
class Scope:
    """A configuration at a level, and a bound."""

    configuration: Configuration
    level: Level
    bound: Bound

    @property
    def name(self) -> str:
        """The configuration and the level, as reports name them."""
        return f"{self.configuration.name} at {self.level} level"

    @property
    def quick(self) -> bool:
        """Whether it is searched unless everything is asked for: no second tier, and at manager
        level one group alone.
        """
        groups = self.configuration.layout.groups
        tier = self.configuration.options.get("tier_pages")
        return not tier and (self.level == "scheduler" or len(groups) == 1)

    def header(self) -> TraceHeader:
        """Return the header of every trace of the scope."""
        options = {"max_model_len": self.bound.model_len, **self.configuration.options}
        return TraceHeader(
            name="exhaustive",
            layout=self.configuration.layout,
            pages=self.bound.pages,
            level=self.level,
            policy=self.configuration.policy,
            options=options,
            story="found by enumeration",
            source="harness/cachewitness/sessions/fuzz/scope.py",
        )

    def texts(self) -> list[str]:
        """Return the names of all texts that can appear, so that their tokens can be numbered
        before anything happens.
        """
        return ["A", "B", *(f"@r{number + 1}" for number in range(self.bound.requests))]

    def first(self) -> Iterator[Submit]:
        """Yield the first operations: the first request's prompt is of the text A."""
        for tokens in range(1, self.bound.longest + 1):
            yield Submit("r1", f"A:{tokens}")

    def last(self, ledger: Ledger) -> bool:
        """Whether nobody is submitted any more."""
        return len(ledger.requests) >= self.bound.requests

    def operations(self, ledger: Ledger) -> list[Op]:
        """Return what can be asked in the state of a ledger, each thing once."""
        live = [request.r for request in ledger.requests.values() if request.live]
        ops: list[Op] = []
        if not self.last(ledger):
            ops += self._submits(ledger)
        ops += self._steps(ledger, live)
        for r in live:
            ops += [Finish(r), Abort(r)] if self.level == "scheduler" else [Finish(r)]
            if ledger.holdings.pages_of.get(r):
                ops.append(Preempt(r))
        ops.append(Reset())
        if self.configuration.options.get("tier_pages"):
            ops += [Reset(tier="local"), Reset(tier="cpu")]
        if any(ledger.holdings.pages_of.get(r) for r in live):
            ops.append(Reset(running=True))
        return ops

    def _submits(self, ledger: Ledger) -> Iterator[Op]:
        """Yield the next request with every prompt: of A, of B, of A up to a boundary and then
        B, of what others generated.
        """
        r = f"r{len(ledger.requests) + 1}"
        for tokens in range(1, self.bound.longest + 1):
            for shared in {0, tokens, *range(BLOCK, tokens, BLOCK)}:
                terms = (
                    f"A:{shared}" if shared else "",
                    f"B:{tokens - shared}" if shared < tokens else "",
                )
                yield Submit(r, " ".join(filter(None, terms)))
        for request in ledger.requests.values():
            for tokens in range(
                request.prompt_tokens + 1, min(len(request.tokens), self.bound.longest) + 1
            ):
                yield Submit(
                    r, f"A:{request.prompt_tokens} @{request.r}:{tokens - request.prompt_tokens}"
                )

    def _steps(self, ledger: Ledger, live: list[str]) -> Iterator[Op]:
        """Yield steps: everybody may be left out, compute one token, one block, or all it lacks;
        one of them may be withdrawn.

        Of budgets: a block of all groups, one token more, and enough for everybody.
        """
        if self.level == "scheduler":
            unit = self.configuration.shape(self.level).unit
            enough = 2 * self.bound.model_len
            if live:
                yield from (Step(budget=budget) for budget in (unit, unit + 1, enough))
                yield from (Step(budget=enough, withdraw=[r]) for r in live)
            return
        choices = []
        for r in live:
            request = ledger.requests[r]
            lacking = len(request.tokens) - request.computed
            choices.append([0, *sorted({min(1, lacking), min(BLOCK, lacking), lacking} - {0})])
        for counts in product(*choices):
            run = [(r, count) for r, count in zip(live, counts, strict=True) if count]
            if run:
                yield Step(run=run)
        whole = [(r, max(tokens)) for r, tokens in zip(live, choices, strict=True) if max(tokens)]
        for r, _ in whole:
            yield Step(run=whole, withdraw=[r])


def _layout(name: str, *groups: GroupSpec) -> Layout:
    return Layout(
        name=name,
        groups=list(groups),
        story="for an exhaustive search",
        source="harness/cachewitness/sessions/fuzz/scope.py",
    )


_FULL = GroupSpec(kind="full", block_size=BLOCK)
_STATE = GroupSpec(kind="recurrent", block_size=BLOCK)
_WINDOW = GroupSpec(kind="sliding", block_size=BLOCK, window=3)

CONFIGURATIONS: tuple[Configuration, ...] = (
    Configuration(_layout("small-full", _FULL)),
    Configuration(_layout("small-window", _FULL, _WINDOW), {"retention_interval": None}),
    Configuration(_layout("small-window", _FULL, _WINDOW), {"retention_interval": 0}),
    Configuration(_layout("small-state", _FULL, _STATE), {"retention_interval": None}),
    Configuration(_layout("small-state", _FULL, _STATE), {"retention_interval": 0}),
    Configuration(
        _layout("small-unequal", _FULL, GroupSpec(kind="recurrent", block_size=2 * BLOCK)),
        {"retention_interval": 0},
    ),
    Configuration(_layout("small-full", _FULL), {"tier_pages": 3}),
    Configuration(
        _layout("small-state", _FULL, _STATE), {"retention_interval": 0, "tier_pages": 3}
    ),
)
"""The configurations of a search in which the user chose none."""
