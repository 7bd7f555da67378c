"""The driver and the comparison of block tables, on a policy small enough to be checked by hand.

`Bump` hands out pages 0, 1, 2, ... of two pools, one for attention and one for states, and keys
whole blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from cachewitness._util.errors import UsageError
from cachewitness.core.driving import drive
from cachewitness.core.events import (
    Aborted,
    Accept,
    Acquire,
    Counts,
    Finished,
    Group,
    Header,
    Hit,
    Pool,
    Publish,
    Release,
    ResetDone,
    StepBegin,
    Unpublish,
    UnpublishReason,
    Version,
)
from cachewitness.core.events import Preempted as Lost
from cachewitness.core.trace_format import (
    Finish,
    GroupSpec,
    Layout,
    Level,
    Preempt,
    Reset,
    Step,
    Submit,
    Trace,
    TraceHeader,
    UpdateWeights,
)
from cachewitness.engines.adapter import Adapter, Asked, Refused, Scheduled
from cachewitness.engines.cache_state import ABSENT, Claim, Count, Tables
from cachewitness.engines.driver import Driver

SIZE = 4
LONGEST = 24


class Bump(Adapter):
    """Attention blocks of four tokens in pool 0; one state for each request, in pool 1; keys for
    prompts that were computed.
    """

    max_model_len = LONGEST

    def __init__(self, header: Header) -> None:
        self.free = {pool.id: list(range(pool.pages)) for pool in header.pools}
        self.held: dict[str, Tables] = {}
        self.tokens: dict[str, list[int]] = {}
        self.done: dict[str, int] = {}
        self.known: dict[tuple[int, ...], str] = {}
        self.claims: dict[Any, Claim] = {}

    def add(self, submit: Submit, tokens: list[int], shared: int) -> None:
        if len(tokens) >= LONGEST:
            raise Refused(f"request {submit.r!r} has {len(tokens)} tokens")
        self.tokens[submit.r] = tokens
        self.done[submit.r] = 0

    def schedule(self, asked: Asked | None, step: Step) -> Scheduled:
        wanted = asked if asked is not None else [(r, step.budget or 8) for r in self.tokens]
        scheduled = Scheduled()
        for r, count in wanted:
            if r not in self.held:
                self.held[r] = [[], [self.free[1].pop(0)]]
                self.diff.hit(r, 0, [[], []])
            stop = min(self.done[r] + count, len(self.tokens[r]))
            while len(self.held[r][0]) * SIZE < stop:
                self.held[r][0].append(self.free[0].pop(0))
            self.diff.settle([r], served=r)
            if stop > self.done[r]:
                scheduled.chunks[r] = (self.done[r], stop)
        return scheduled

    def complete(self, scheduled: Scheduled) -> None:
        for r, (_, stop) in scheduled.chunks.items():
            self.done[r] = stop
            for column in range(stop // SIZE):
                self.claims.setdefault(
                    (0, self.held[r][0][column], "key"), Claim((column + 1) * SIZE)
                )
            self.diff.settle([r], served=r)

    def accept(self, r: str, tokens: Sequence[int]) -> None:
        self.tokens[r] += tokens

    def end(self, r: str, *, finished: bool) -> None:
        self.let_go(r)
        del self.tokens[r]
        self.diff.settle([r])

    def preempt(self, r: str) -> None:
        self.let_go(r)
        self.done[r] = 0
        self.diff.settle([r])

    def let_go(self, r: str) -> None:
        for pool, pages in enumerate(self.held.pop(r, [])):
            self.free[pool] += pages

    def running(self) -> list[str]:
        return list(self.held)

    def forget(self, reason: UnpublishReason) -> bool:
        self.claims.clear()
        self.diff.settle(reason=reason)
        return True

    def tables(self, r: str) -> Tables:
        attention, state = self.held.get(r, [[], []])
        return [
            attention,
            state and [*[ABSENT] * max(0, -(-self.done.get(r, 0) // LONGEST)), *state][-1:],
        ]

    def keys(self) -> Mapping[Any, Claim]:
        return dict(self.claims)

    def counts(self) -> Mapping[int, Count]:
        cached = {page for _, page, _ in self.claims} - {
            page for tables in self.held.values() for page in tables[0]
        }
        held = [sum(len(tables[pool]) for tables in self.held.values()) for pool in (0, 1)]
        free = len(self.free[0]) - len(cached)
        return {0: Count(free, held[0], len(cached)), 1: Count(len(self.free[1]), held[1], 0)}

    def references(self, pool: int, page: int) -> int | None:
        return sum(page in tables[pool] for tables in self.held.values())


def header(level: Level = "manager") -> Header:
    """Return two pools: eight blocks of attention, two states."""
    groups = [
        Group(id=0, kind="full", block_size=SIZE),
        Group(id=1, kind="recurrent", block_size=LONGEST, pool=1),
    ]
    return Header(
        engine="bump",
        level=level,
        pools=[Pool(id=0, pages=8), Pool(id=1, pages=2)],
        groups=groups,
    )


def engine(level: Level = "manager") -> Driver:
    """Return an engine over a new policy."""
    return Driver(header(level), Bump(header(level)))


def test_a_step_is_told_as_hit_takes_keys_and_counts() -> None:
    """Five tokens take two blocks and a state; the first block is keyed when the step has run,
    and the books add up.
    """
    bump = engine()
    bump.apply(Submit("a", "doc:5"))
    events = bump.apply(Step(run=[("a", 5)]))
    kinds = [type(event).__name__ for event in events]
    assert kinds == [
        "Hit",
        "Acquire",
        "Acquire",
        "Counts",
        "Counts",
        "StepBegin",
        "StepEnd",
        "Publish",
        "Accept",
    ]
    takes = [
        (event.pool, event.group, event.pages) for event in events if isinstance(event, Acquire)
    ]
    assert takes == [(0, 0, [0, 1]), (1, 1, [0])]
    books = [(e.pool, e.free, e.held, e.cached, e.refs) for e in events if isinstance(e, Counts)]
    assert books == [(0, 6, 2, 0, [(0, 1), (1, 1)]), (1, 1, 1, 0, [(0, 1)])]
    published = [
        (event.group, event.page, event.r, event.length)
        for event in events
        if isinstance(event, Publish)
    ]
    assert published == [(0, 0, "a", 4)]
    assert [event.tokens for event in events if isinstance(event, Accept)] == [[2 * 65536]]


def test_a_request_that_ends_gives_back_what_it_held() -> None:
    """The end is told first, then what went, and keys stay."""
    bump = engine()
    bump.apply(Submit("a", "doc:5"))
    bump.apply(Step(run=[("a", 5)]))
    events = bump.apply(Finish("a"))
    assert isinstance(events[0], Finished)
    assert [(e.group, e.pages) for e in events if isinstance(e, Release)] == [(0, [0, 1]), (1, [0])]
    assert [(e.free, e.held, e.cached) for e in events if isinstance(e, Counts)] == [
        (7, 0, 1),
        (2, 0, 0),
    ]


def test_a_preemption_is_told_before_its_pages_go() -> None:
    """What is preempted looks itself up again; one who holds nothing cannot be preempted."""
    bump = engine()
    bump.apply(Submit("a", "doc:5"))
    assert bump.apply(Preempt("a")) == []
    bump.apply(Step(run=[("a", 5)]))
    assert [type(event) for event in bump.apply(Preempt("a"))][:2] == [Lost, Release]
    assert any(isinstance(event, Hit) for event in bump.apply(Step(run=[("a", 5)])))


@pytest.mark.parametrize(("op", "reason"), [(Reset(), "reset"), (UpdateWeights(1), "version")])
def test_keys_end_for_the_reason_at_hand(op: Any, reason: str) -> None:
    """A reset and new weights end keys, each in its own name."""
    bump = engine()
    bump.apply(Submit("a", "doc:9"))
    bump.apply(Step(run=[("a", 9)]))
    assert [(e.length, e.reason) for e in bump.apply(op) if isinstance(e, Unpublish)] == [
        (4, reason),
        (8, reason),
    ]


class Waiting(Bump):
    """Somebody waits for a transfer, for so many steps."""

    left = 0

    def transferring(self) -> bool:
        self.left -= 1
        return self.left >= 0


@pytest.mark.parametrize("op", [Reset(running=True), UpdateWeights(1)])
@pytest.mark.parametrize(("left", "ok"), [(4, True), (1 << 30, False)])
def test_what_never_comes_to_rest_is_not_waited_for_and_the_reset_is_told_as_refused(
    op: Any, left: int, ok: bool
) -> None:
    """A cache whose transfers end is reset. One that does nothing for too long is not, and gets
    no new weights.
    """
    bump = Driver(header(), adapter := Waiting(header()))
    bump.apply(Submit("a", "doc:9"))
    bump.apply(Step(run=[("a", 9)]))
    adapter.left = left
    events = bump.apply(op)
    assert [event.ok for event in events if isinstance(event, ResetDone)] == [ok]
    assert any(isinstance(event, Version) for event in events) == (
        ok and isinstance(op, UpdateWeights)
    )
    assert sum(isinstance(event, StepBegin) for event in events) == (
        4 if ok else header().rules.progress_steps + 1
    )


class WaitingBesideRuns(Waiting):
    """Whoever runs goes on meanwhile."""

    def schedule(self, asked: Asked | None, step: Step) -> Scheduled:
        return super().schedule(None, Step(budget=1))

    def complete(self, scheduled: Scheduled) -> None:
        super().complete(scheduled)
        self.tokens["a"].append(7)


def test_a_reset_waits_for_no_transfers_that_others_begin_for_ever() -> None:
    """It is refused of every tier that it asks for."""
    tiered = replace(header(), pools=[*header().pools, Pool(id=2, pages=4, tier="cpu")])
    bump = Driver(tiered, adapter := WaitingBesideRuns(tiered))
    bump.apply(Submit("a", "doc:3"))
    bump.apply(Step())
    adapter.left = 1 << 30
    for op, tiers in ((Reset(running=True), ["cpu", "local"]), (Reset(True, "cpu"), ["cpu"])):
        done = [event for event in bump.apply(op) if isinstance(event, ResetDone)]
        assert [(event.tier, event.ok) for event in done] == [(tier, False) for tier in tiers]


def test_a_key_that_ends_over_a_held_page_was_replaced() -> None:
    """Eviction is for want of room; whoever holds the page still has it."""
    bump = engine()
    bump.apply(Submit("a", "doc:5"))
    bump.apply(Step(run=[("a", 5)]))
    adapter: Any = bump.adapter
    adapter.claims.clear()
    bump.diff.events = []
    bump.diff.settle()
    assert [e.reason for e in bump.diff.events if isinstance(e, Unpublish)] == ["replace"]


def test_a_request_ends_at_the_longest_length() -> None:
    """At so many tokens it finishes by itself, and operations on it do nothing from then on."""
    bump = engine("scheduler")
    bump.apply(Submit("a", f"doc:{LONGEST - 2}"))
    events = [event for _ in range(12) for event in bump.apply(Step(budget=8))]
    assert [e.upto for e in events if isinstance(e, Accept)] == [LONGEST - 1, LONGEST]
    assert sum(isinstance(event, Finished) for event in events) == 1
    assert bump.apply(Finish("a")) == [] and bump.clients == {}


def test_a_request_that_can_never_run_is_aborted_at_once() -> None:
    """It was submitted, and it ended; a second one of a name that is in use is the trace's
    mistake.
    """
    bump = engine()
    assert isinstance(bump.apply(Submit("a", f"doc:{LONGEST}"))[-1], Aborted)
    bump.apply(Submit("b", "doc:3"))
    with pytest.raises(UsageError, match="'b' is submitted twice"):
        bump.apply(Submit("b", "doc:3"))


def test_several_pools_are_lawful_to_all_checkers() -> None:
    """A whole trace over two pools of different sizes raises nothing."""
    ops = [
        Submit("a", "doc:9"),
        Step(run=[("a", 9)]),
        Step(run=[("a", 1)]),
        Submit("b", "doc:5"),
        Step(run=[("b", 5)]),
    ]
    trace = Trace(
        TraceHeader(
            "two pools",
            Layout("two", [GroupSpec("full", SIZE), GroupSpec("recurrent", LONGEST)]),
            pages=8,
        ),
        [*ops, Finish("a"), Finish("b")],
    )
    assert drive(trace, engine()).findings == []
