"""What happens to the whole cache while a step is in flight is lawful."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cachewitness.core.driving import check, drive
from cachewitness.core.events import (
    Hit,
    Preempted,
    Publish,
    ResetDone,
    StepBegin,
    StepEnd,
    Unpublish,
    Version,
)
from cachewitness.core.result import Result
from cachewitness.core.trace_format import (
    Abort,
    Finish,
    GroupSpec,
    Layout,
    Op,
    Preempt,
    Reset,
    Step,
    Submit,
    Trace,
    TraceHeader,
    UpdateWeights,
)
from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import core, wrap
from cachewitness.engines.registry import parse

FULL = GroupSpec("full", 16)
STATE = GroupSpec("recurrent", 16)
PREFILLED: list[Op] = [Submit("r", "doc:33"), *[Step()] * 4]


def run(*ops: Op, **options: object) -> Result:
    """Run operations on the reference, behind a prompt that is prefilled but for the step in
    flight.
    """
    header = TraceHeader(
        "t",
        Layout("t", [FULL, STATE]),
        12,
        level="scheduler",
        options={"async_depth": 1, **options},
    )
    return drive(Trace(header, [*PREFILLED, *ops]), parse("reference").open(header))


def test_new_weights_may_end_the_keys_that_a_step_in_flight_has_just_earned() -> None:
    """The last chunk of a prompt runs, and the keys at its replay boundary end with the old
    weights, in one operation.
    """
    result = run(UpdateWeights(2), hash_block_size=8, use_eagle=True, retention_interval=0)
    tail = [
        type(event)
        for event in result.history.events
        if result.history.op_of[event.seq] == len(PREFILLED)
    ]
    assert tail.index(StepEnd) < tail.index(Preempted) < tail.index(Unpublish) < tail.index(Version)
    assert result.findings == []


def test_a_reset_does_not_wait_for_a_step_in_flight() -> None:
    """Who runs is preempted, every key ends, the step ends afterwards, and its result counts for
    nobody.
    """
    result = run(Reset(running=True), Step(), Step())
    kinds = [type(event) for event in result.history.events]
    reset = kinds.index(ResetDone)
    assert (
        kinds[:reset].count(StepBegin) == kinds[:reset].count(StepEnd) + 1 and result.findings == []
    )


def scheduled(group: GroupSpec, pages: int, **options: object) -> TraceHeader:
    """Return the header of a trace at scheduler level over one group."""
    return TraceHeader("t", Layout("t", [group]), pages, level="scheduler", options=options)


def attention(pages: int, ops: list[Op], **options: object) -> Result:
    """Run operations on the reference over full attention in blocks of two tokens."""
    header = scheduled(GroupSpec("full", 2), pages, **options)
    return drive(Trace(header, ops), parse("reference").open(header))


def test_what_is_computed_again_behind_a_withdrawal_is_nobodys_fault() -> None:
    """It was asked for, and is told when its step ends: by then two more steps compute again
    what the request had.
    """
    again: list[Op] = [Preempt("r"), Step(), Step(withdraw=["r"]), Step(), Step()]
    result = attention(3, [Submit("r", "doc:1"), Step(), Step(), *again], async_depth=2)
    begun = [event.step for event in result.history.events if isinstance(event, StepBegin)]
    ended = {
        event.step: event.withdrawn for event in result.history.events if isinstance(event, StepEnd)
    }
    assert (begun[-1], ended) == (6, {1: [], 2: [], 3: [], 4: ["r"]})
    assert result.findings == check(result.history).findings == []


def test_what_was_computed_before_is_stored_whoever_is_withdrawn() -> None:
    """The block that a generated token completes has its key when its step has run, and is stored
    with the next step.

    The request is withdrawn from that step, and the copy is made all the same: so it may be hit.
    That step 2 ends before step 3 is scheduled, the reset brings about: it waits for the copy of
    the other request's block.
    """
    in_flight: list[Op] = [Submit("r", "doc:1"), Submit("s", "doc:1 s:1"), Step(budget=2), Step()]
    result = attention(
        3,
        [*in_flight, Reset(), Step(withdraw=["r"]), Reset(tier="local"), Step()],
        async_depth=1,
        tier_pages=3,
    )
    events = result.history.events
    stored = [
        (event.r, event.length, event.step)
        for event in events
        if isinstance(event, Publish) and event.group
    ]
    assert stored == [("s", 2, 2), ("r", 2, 3)]
    assert any(
        isinstance(event, StepEnd) and (event.step, event.withdrawn) == (3, ["r"])
        for event in events
    )
    assert [
        (event.r, event.resume)
        for event in events
        if isinstance(event, Hit) and event.tier == "cpu"
    ] == [("r", 2)]
    assert result.findings == check(result.history).findings == []


@pytest.mark.parametrize("depth", [0, 1])
def test_a_reset_that_keeps_the_keys_of_a_step_in_flight_is_found(depth: int) -> None:
    """The step ends behind the reset, with the content of its keys: they have ended, and whoever
    hits one is told so.
    """
    ops: list[Op] = [
        Submit("r", "doc:40"),
        Step(),
        Reset(running=True),
        Abort("r"),
        Step(),
        Step(),
        Submit("s", "doc:40"),
        Step(),
    ]
    header = scheduled(FULL, 20, async_depth=depth)
    engine = parse("reference").open(header)
    assert isinstance(engine, Driver)
    wrap(core(engine), "reset_prefix_cache", lambda original: True)
    assert [finding.anomaly for finding in drive(Trace(header, ops), engine).findings] == [
        "stale-hit"
    ]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_an_engine_that_takes_everybody_out_of_its_steps_is_stuck(depth: int) -> None:
    """Nobody asked for it: a step from which the engine itself withdraws a request is no step in
    which it had a place.
    """
    header = scheduled(FULL, 20, async_depth=depth)

    def withdrawing(ops: list[Op], by_itself: list[str]) -> Result:
        engine = parse("reference").open(header)
        wrap(
            engine,
            "apply",
            lambda original, op: original(
                replace(op, withdraw=by_itself) if isinstance(op, Step) else op
            ),
        )
        return drive(Trace(header, ops), engine)

    assert (
        withdrawing([Submit("r", "doc:40"), *[Step()] * 12], ["r"]).findings[0].anomaly
        == "no-progress"
    )
    assert withdrawing([Submit("r", "doc:40"), *[Step(withdraw=["r"])] * 12], ["r"]).findings == []


@pytest.mark.parametrize("group", [STATE, GroupSpec("sliding", 16, 16)])
@pytest.mark.parametrize("gone", [Abort("r"), Preempt("r"), None])
def test_who_is_gone_leaves_no_keys_of_what_it_computed_from_others_content(
    group: GroupSpec, gone: Op | None
) -> None:
    """The request resumes behind the second block of another prompt, its step outlives it, and
    what it wrote there is hit.
    """
    ops: list[Op] = [
        Submit("d", "a:16 c:17"),
        Step(),
        Step(),
        Finish("d"),
        Step(),
        Step(),
        Submit("r", "b:16 c:16 e:33"),
    ]
    ops += [
        Step(budget=64),
        *([gone] if gone else []),
        Step(),
        Step(),
        Submit("s", "b:16 c:16 e:33 g:4"),
        Step(),
        Step(),
    ]
    header = scheduled(group, 40, async_depth=1, retention_interval=None)
    assert drive(Trace(header, ops), parse("reference").open(header)).findings == []
    result = drive(Trace(header, ops), parse("reference:mutant=hash-without-parent").open(header))
    assert [(event.r, event.resume) for event in result.history.events if isinstance(event, Hit)][
        -1
    ] == ("s", 64)
    assert [(finding.anomaly, finding.r) for finding in result.findings] == [("stale-hit", "r")]
    sentence = (
        "r ended, or was preempted, while that step was in flight; it was carried out all the same"
    )
    assert (sentence in result.findings[0].sentence) == (gone is not None)
    assert [(finding.anomaly, finding.r) for finding in check(result.history).findings] == [
        ("stale-hit", "r")
    ]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_step_in_flight_in_which_nothing_is_done_stands_in_the_way_of_no_reset(
    depth: int,
) -> None:
    """With steps in flight one is under way at all times, also while there is nobody who could
    run.
    """
    ops: list[Op] = [
        Submit("r", "doc:40"),
        Step(),
        Step(),
        Abort("r"),
        Step(),
        Step(),
        Step(),
        Reset(),
    ]
    header = scheduled(FULL, 20, async_depth=depth)
    assert drive(Trace(header, ops), parse("reference").open(header)).findings == []
    engine = parse("reference").open(header)
    assert isinstance(engine, Driver)
    wrap(core(engine), "reset_prefix_cache", lambda original: False)
    assert [finding.anomaly for finding in drive(Trace(header, ops), engine).findings] == [
        "refused-reset"
    ]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_page_that_a_load_of_a_step_in_flight_will_fill_is_nobody_elses(depth: int) -> None:
    """The client of the load goes away before the step runs, and another request is given the
    pages for a load of its own.
    """
    stored: list[Op] = [
        Submit("a", "doc:65"),
        *[Step()] * 10,
        Finish("a"),
        *[Step()] * 3,
        Reset(running=True, tier="local"),
    ]
    ops = [
        *stored,
        Submit("b", "doc:65"),
        Step(),
        Abort("b"),
        Submit("d", "doc:65 d:16"),
        *[Step()] * 3,
    ]
    header = scheduled(FULL, 8, async_depth=depth, tier_pages=16, tier_delay=6)
    assert drive(Trace(header, ops), parse("reference").open(header)).findings == []
    faulty = parse("reference:mutant=abandoned-load-gives-its-pages-back").open(header)
    result = drive(Trace(header, ops), faulty)
    assert [finding.anomaly for finding in result.findings] == ["aliased-write"]
