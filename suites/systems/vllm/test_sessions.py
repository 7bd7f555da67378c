"""Sessions on vLLM's own scheduler: requests that get more input when an answer is over, and keep
their blocks meanwhile.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`.
"""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness.core.checkers.finding import BEYOND_ANSWER
from cachewitness.core.driving import drive
from cachewitness.core.events import Aborted, Extended, Finished, Hit, Paused, ResetDone, StepBegin
from cachewitness.core.result import Result
from cachewitness.core.trace_format import (
    Extend,
    Finish,
    GroupSpec,
    Layout,
    Op,
    Reset,
    Step,
    Submit,
    Trace,
    TraceHeader,
)
from cachewitness.engines.registry import parse
from cachewitness.workloads import layouts
from suites.support.real_vllm import REAL, SOURCE

pytestmark = REAL

FIRST = Submit("a", "s:30", session=True, generate=3)


def tell(
    ops: list[Op],
    layout: str | Layout = "full",
    pages: int = 40,
    mutant: str = "",
    connector: str = "",
    **options: Any,
) -> Result:
    groups = layouts.load(layout) if isinstance(layout, str) else layout
    header = TraceHeader("t", groups, pages, level="scheduler", options=options)
    named = (("mutant", mutant), ("connector", connector))
    chosen = "".join(f",{name}={value}" for name, value in named if value)
    return drive(Trace(header, ops), parse(f"vllm:source={SOURCE}{chosen}").open(header))


def chunks(result: Result, r: str = "a") -> list[tuple[int, int]]:
    """Return which tokens of a request each step computes."""
    begun = [event for event in result.history.events if isinstance(event, StepBegin)]
    return [(run.start, run.stop) for event in begun for run in event.runs if run.r == r]


def test_a_session_goes_on_with_the_blocks_that_it_has_and_without_the_last_token_of_its_answer() -> (  # noqa: E501
    None
):
    result = tell([FIRST, *[Step()] * 4, Extend("a", "u:20", 2), *[Step()] * 4, Finish("a")])
    assert result.findings == []
    assert chunks(result) == [(0, 30), (30, 31), (31, 32), (32, 52), (52, 53)]
    events = [
        event
        for event in result.history.events
        if isinstance(event, Paused | Extended | Hit | Finished)
    ]
    assert [type(event) for event in events] == [Hit, Paused, Extended, Paused, Finished]
    assert isinstance(events[2], Extended) and (events[2].keep, len(events[2].tokens)) == (32, 20)


def test_input_that_comes_while_an_answer_goes_on_waits_for_its_end() -> None:
    result = tell([FIRST, Step(), Extend("a", "u:20", 2), Extend("a", "v:4", 1), *[Step()] * 7])
    assert result.findings == []
    assert chunks(result)[2:5] == [(31, 32), (32, 52), (52, 53)] and chunks(result)[5] == (53, 57)


@pytest.mark.parametrize("generate", [3, 2])
def test_steps_in_flight_behind_a_stop_token_are_dropped_and_their_slots_written_again(
    generate: int,
) -> None:
    """The first answer ends at a stop token, the second by its length, which is foreseen."""
    ops: list[Op] = [
        Submit("a", "s:30", session=True, generate=generate),
        *[Step()] * 6,
        Extend("a", "u:20", 2),
        *[Step()] * 6,
    ]
    result = tell(ops, async_depth=1)
    dropped = 30 + generate - 1
    assert result.findings == []
    assert chunks(result).count((dropped, dropped + 1)) == 1 and (dropped, dropped + 20) in chunks(
        result
    )
    assert chunks(result)[-1] == (dropped + 20, dropped + 21)


@pytest.mark.parametrize(
    ("layout", "depth", "found"),
    [("full-mamba", 1, ["state-position-skew"]), ("full-mamba", 0, []), ("full", 1, [])],
)
def test_a_step_in_flight_advances_a_running_state_beyond_the_answer(
    layout: str, depth: int, found: list[str]
) -> None:
    """What vLLM does is found; a release that mends it fails here. Attention writes the slot
    again; a state stays.
    """
    ops: list[Op] = [FIRST, *[Step()] * 6, Extend("a", "u:20", 2), *[Step()] * 6]
    result = tell(ops, layout, async_depth=depth)
    assert [finding.anomaly for finding in result.findings] == found


def test_a_reset_over_a_session_that_waits_is_refused_although_running_requests_may_be_preempted() -> (  # noqa: E501
    None
):
    """What vLLM does itself is to raise there, and to say that nobody but a load could be in the
    way.
    """
    result = tell(
        [
            FIRST,
            *[Step()] * 4,
            Submit("b", "t:20"),
            Step(),
            Reset(running=True),
            Step(),
            Finish("a"),
            Reset(running=True),
        ]
    )
    assert [event.ok for event in result.history.events if isinstance(event, ResetDone)] == [
        False,
        True,
    ]
    assert result.findings == []
    header = TraceHeader("t", layouts.load("full"), 40, level="scheduler")
    engine: Any = parse(f"vllm:source={SOURCE}").open(header)
    for op in (FIRST, *[Step()] * 4):
        engine.apply(op)
    with pytest.raises(RuntimeError, match="Failed to reset KV cache"):
        engine.adapter.scheduler.reset_prefix_cache(reset_running_requests=True)


def test_a_session_that_would_outgrow_the_model_is_let_go() -> None:
    result = tell([FIRST, *[Step()] * 4, Extend("a", "u:100", 2), Step()], max_model_len=64)
    assert [
        type(event) for event in result.history.events if isinstance(event, Aborted | Extended)
    ] == [Aborted]
    assert result.findings == []


def test_who_asks_on_behind_a_whole_answer_does_not_hit_what_took_the_place_of_its_last_token() -> (
    None
):
    """The token completes a block; the session goes on without it. The next request has it, and
    must not hit that block.
    """
    ops: list[Op] = [
        Submit("a", "s:30", session=True, generate=2),
        *[Step()] * 3,
        Extend("a", "u:20", 1),
        *[Step()] * 3,
    ]
    ops += [Submit("b", "s:30 @a:2 w:4"), *[Step()] * 2]
    assert tell(ops).findings == []
    found = tell(ops, mutant="vllm-session-keeps-a-hash-of-what-it-dropped").findings
    assert [finding.anomaly for finding in found] == ["stale-hit"]


@pytest.mark.parametrize(("depth", "found"), [(1, ["late-release"]), (0, [])])
def test_what_a_step_in_flight_computes_of_an_answer_that_is_over_is_taken_off_twice(
    depth: int, found: list[str]
) -> None:
    """What vLLM does is found; a release that mends it fails here."""
    window = Layout("window", [GroupSpec("sliding", 4, window=4)])
    ops: list[Op] = [Submit("a", "s:10", session=True, generate=2), *[Step()] * 3]
    ops += [Extend("a", "u:3", 2), Step(), Step()]
    result = tell(ops, window, async_depth=depth, retention_interval=None)
    assert [(one.anomaly, one.cause) for one in result.findings] == [
        (anomaly, BEYOND_ANSWER) for anomaly in found
    ]


@pytest.mark.parametrize("name", ["simple", "simple-lazy", "offloading", "multi"])
def test_a_session_goes_on_behind_what_it_loaded_and_what_it_computes_since_is_loaded(
    name: str,
) -> None:
    """The device forgets all that the memory has: `b` is a session whose beginning is loaded, and
    `c` loads what `b` got as further input.
    """
    ops: list[Op] = [Submit("a", "s:64"), *[Step()] * 3, Finish("a"), *[Step()] * 3]
    ops += [Reset(running=True, tier="local"), Submit("b", "s:50", session=True, generate=3)]
    ops += [*[Step()] * 6, Extend("b", "u:46", 2), *[Step()] * 5, Finish("b"), *[Step()] * 3]
    ops += [Reset(running=True, tier="local"), Submit("c", "s:50 @b:2 u:46 w:8"), *[Step()] * 4]
    result = tell(ops, connector=name, tier_pages=40)
    assert result.findings == []
    hits = {e.r: (e.tier, e.resume) for e in result.history.events if isinstance(e, Hit)}
    assert hits["b"] == ("cpu", 48)
    assert name == "simple-lazy" or (hits["c"][0] == "cpu" and hits["c"][1] > 64)
    assert [type(e) for e in result.history.events if isinstance(e, Extended)] == [Extended]
