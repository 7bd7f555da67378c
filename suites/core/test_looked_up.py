"""A run that starts behind its first token was looked up: the same law for a file and for a live
engine.
"""

from __future__ import annotations

import pytest

from cachewitness.core import validate
from cachewitness.core.driving import drive
from cachewitness.core.events import Hit
from cachewitness.core.intake import BadEvents
from cachewitness.core.trace_format import Finish, Step, Submit, Trace, TraceHeader
from cachewitness.workloads.layouts import load
from cachewitness.workloads.notation import parse
from suites.support.mistaken_engine import mistaken

HISTORY = """\
pool 0: 12 pages, null 0
group 0: full block 4
submit r1 a:9
acquire r1 | 1 2 3
publish 0/1 r1:4
publish 0/2 r1:8
step 1: r1 0..9 | 1 2 3
submit r2 a:9
{before}
acquire r2 | 1 2 4
begin 2: r2 8..9 | 1 2 4
{after}
end 2
{later}
"""
HIT = "hit r2 8 | 1 2"


def problems_of(before: str = "", after: str = "", later: str = "") -> list[str]:
    text = HISTORY.format(before=before, after=after, later=later)
    return [
        problem
        for _, problem in validate.problems(parse("\n".join(filter(None, text.splitlines()))))
    ]


def test_in_a_file_the_look_up_comes_with_the_run() -> None:
    """Before it, or after it in the same operation."""
    assert problems_of(before=HIT) == [] and problems_of(after=HIT) == []


@pytest.mark.parametrize("later", ["", "preempt r2\nstep 3: r2 8..9 | 1 2 4"])
def test_in_a_file_a_run_behind_nothing_that_was_looked_up_is_refused(later: str) -> None:
    """Whatever comes later: its first tokens lie in pages of which nobody said that they were
    found.
    """
    problems = problems_of(later=later)
    assert problems == [
        "'r2' runs from token 8 on, and was not looked up; report `hit`, which says where that lies"
    ]


def test_who_lost_its_place_is_looked_up_again() -> None:
    """The look-up of before says nothing of where the request resumes now."""
    assert problems_of(
        before=HIT, later="release r2\npreempt r2\nacquire r2 | 1 2 4\nstep 3: r2 8..9 | 1 2 4"
    )
    assert not problems_of(
        before=HIT,
        later=f"release r2\npreempt r2\n{HIT}\nacquire r2 | 1 2 4\nstep 3: r2 8..9 | 1 2 4",
    )


def test_of_a_live_engine_the_same_is_refused() -> None:
    header = TraceHeader("replayed", load("full"), pages=20)
    ops = [op for r in "ab" for op in (Submit(r, f"doc:40 {r}:3"), Step(run=[(r, 43)]), Finish(r))]
    trace = Trace(header, ops)
    with pytest.raises(BadEvents, match="was not looked up; report `hit`"):
        drive(
            trace,
            mistaken(
                trace, lambda op, events: [event for event in events if not isinstance(event, Hit)]
            ),
        )
