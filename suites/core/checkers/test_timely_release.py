"""Pages that no run reads any more, where runs begin behind drafts that may fall."""

from __future__ import annotations

import pytest

from cachewitness.core.checkers.finding import BEYOND_ANSWER
from cachewitness.core.checkers.timely_release import TimelyRelease
from cachewitness.core.driving import check
from cachewitness.core.events import (
    Accept,
    Event,
    Extended,
    Paused,
    Run,
    StepBegin,
    StepEnd,
)
from cachewitness.workloads.notation import parse

DRAFTED = """pool 0: 20 pages, null 0
group 0: recurrent block 4
rules: alignment 4, frees-behind
submit r1 a:5
acquire r1 | 1 2 3 4 5 6 7
step 1: r1 0..5 | 1 2
accept r1 6 @r1:1
begin 2: r1 5..6 ~x:3 | 0 2 ~ 3 4 5
"""


@pytest.mark.parametrize(("table", "found"), [([0, 2, 6], []), ([1, 2, 6], ["late-release"])])
def test_a_run_behind_drafts_in_flight_may_begin_anew_where_they_fall(
    table: list[int], found: list[str]
) -> None:
    """Step 3 begins at token 9 if all drafts of step 2 stand. None does, so it begins at token 6,
    and reads the state of the second block; and so may step 4, of which the same is true.
    """
    history = parse(DRAFTED)
    events: list[Event] = [
        StepBegin(step=3, runs=[drafting(9, [0, 2, 6])]),
        StepEnd(step=2),
        Accept(r="r1", upto=7, tokens=[7], step=2),
        StepBegin(step=4, runs=[drafting(10, table)]),
    ]
    for event in events:
        event.seq = len(history.events)
        history.events.append(event)
        history.op_of.append(history.op_of[-1])
    result = check(history, [TimelyRelease()])
    assert [finding.anomaly for finding in result.findings] == found
    assert not result.tallies[0].crashed and result.tallies[0].opportunities


def drafting(start: int, table: list[int]) -> Run:
    """Return a run of one draft."""
    return Run(r="r1", start=start, stop=start + 2, tables=[table], drafts=[7], scratch=[[7]])


ANSWERED = """pool 0: 20 pages, null 0
group 0: sliding block 4 window 4
rules: alignment 4, frees-behind
submit r1 a:10 session=yes
hit r1 0
acquire r1 | 1 2 3 4
step 1: r1 0..10 | 1 2 3
accept r1 11 @r1:1
"""


@pytest.mark.parametrize(
    ("table", "causes"),
    [([0, 0, 3, 4], []), ([0, 2, 3, 4], [BEYOND_ANSWER]), ([1, 2, 3, 4], [""])],
)
def test_what_a_session_dropped_and_a_step_in_flight_computes_has_a_cause(
    table: list[int], causes: list[str]
) -> None:
    """Step 3 computes token 11, which the session drops: who takes it off twice keeps what lies in
    front of token 10, and nothing in front of that.
    """
    history = parse(ANSWERED)

    def run(start: int, stop: int, table: list[int]) -> Run:
        return Run(r="r1", start=start, stop=stop, tables=[table])

    events: list[Event] = [
        StepBegin(step=2, runs=[run(10, 11, [0, 2, 3])]),
        StepBegin(step=3, runs=[run(11, 12, [0, 2, 3])]),
        StepEnd(step=2),
        Accept(r="r1", upto=12, tokens=[7], step=2),
        Paused(r="r1", step=2),
        Extended(r="r1", keep=11, tokens=[8, 9], step=2),
        StepBegin(step=4, runs=[run(11, 13, table)]),
    ]
    for event in events:
        event.seq = len(history.events)
        history.events.append(event)
        history.op_of.append(history.op_of[-1])
    result = check(history, [TimelyRelease()])
    assert [finding.cause for finding in result.findings] == causes
