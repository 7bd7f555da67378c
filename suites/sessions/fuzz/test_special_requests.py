"""Marks of special requests are seen in what happened, and in what the trace asked."""

from __future__ import annotations

from collections import Counter

import pytest

from cachewitness.core.driving import check
from cachewitness.core.events import Event, Preempted
from cachewitness.core.trace_format import Op, Submit
from cachewitness.sessions.fuzz import coverage_points
from cachewitness.sessions.fuzz.watch import Watch
from cachewitness.workloads.notation import parse

START = """pool 0: 12 pages, null 0
group 0: full block 4
rules: alignment 4, drafts 2
"""
TWO = "submit a x:9 {first}\nsubmit b y:5 {second}\n"
SECOND_FIRST = "hit b 0\nacquire b | 1 2\nstep 1: b 0..5 | 1 2\nhit a 0\nacquire a | 3 4 5\n"
IN_ORDER = "hit a 0\nacquire a | 3 4 5\nhit b 0\nacquire b | 1 2\n"
BOTH_RUN = "step 2: a 0..9 | 3 4 5; b 0..5 | 1 2\n"


def seen(text: str, *ops: Op, last: Event | None = None) -> set[str]:
    """Return the marks of special requests that a history reaches, whose trace asks for `ops`;
    `last` is one event more.
    """
    history = parse(START + text)
    history.events += [last] if last else []
    marks = Counter[str]()
    check(history, [Watch(history.header, marks, ops)])
    return marks.keys() & coverage_points.SPECIAL.keys()


def two(first: str = "", second: str = "") -> str:
    return TWO.format(first=first, second=second)


@pytest.mark.parametrize(
    ("ops", "mark"),
    [
        ((Submit("a", "x:9", priority=2), Submit("b", "y:5")), "overtaken by priority"),
        (
            (Submit("a", "x:9", grammar=2), Submit("b", "y:5")),
            "overtaken while a grammar was compiled",
        ),
        (
            (Submit("a", "x:9", adapter="tuned"), Submit("b", "y:5")),
            "overtaken beside another adapter",
        ),
    ],
)
def test_who_came_earlier_and_waits_is_overtaken(ops: tuple[Op, ...], mark: str) -> None:
    assert seen(two() + SECOND_FIRST, *ops) == {mark}
    assert seen(two() + IN_ORDER, *ops) == set()
    plain = (Submit("a", "x:9"), Submit("b", "y:5"))
    assert seen(two() + SECOND_FIRST, *plain) == set()


def test_the_engine_preempts_below_a_priority() -> None:
    """Whom nobody with a smaller number is beside is preempted for another reason."""
    text = two() + IN_ORDER + BOTH_RUN
    victim = Preempted(r="a", by_engine=True, step=3)
    asked = (Submit("a", "x:9", priority=1), Submit("b", "y:5"))
    alike = (Submit("a", "x:9", priority=1), Submit("b", "y:5", priority=1))
    assert seen(text, *asked, last=victim) == {"preempted below a priority"}
    assert seen(text, *alike, last=victim) == set()
    assert seen(text, *asked, last=Preempted(r="a", step=3)) == set()


def test_adapters_run_in_one_step() -> None:
    assert seen(two("adapter=tuned", "adapter=other") + IN_ORDER + BOTH_RUN) == {
        "adapters in one step"
    }
    assert seen(two("adapter=tuned", "adapter=tuned") + IN_ORDER + BOTH_RUN) == set()


def test_a_session_goes_on_beside_a_step_in_flight_or_without_one() -> None:
    text = (
        "submit a x:3 session=yes\nhit a 0\nacquire a | 1 2\nstep 1: a 0..3 | 1\naccept a 4 @a:1\n"
    )
    assert seen(text + "pause a\nextend a 3 v:2\n") == {"session went on"}
    assert seen(text + "begin 2: a 3..4 | 1\npause a\nextend a 3 v:2\n") == {
        "session went on",
        "session went on beside a step in flight",
    }
    assert seen(text + "pause a\npreempt a\nrelease a\n") == {"session preempted while it waits"}


def test_log_probabilities_are_asked_for_of_what_is_cached() -> None:
    first = "submit a x:9\nacquire a | 1 2 3\npublish 0/1 a:4\nstep 1: a 0..9 | 1 2 3\n"
    asked = "submit b {}:9 prompt_logprobs=yes\nhit b 0\n"
    assert seen(first + asked.format("y")) == {"log-probabilities of a prompt"}
    assert seen(first + asked.format("x")) == {
        "log-probabilities of a prompt",
        "log-probabilities of what is cached",
    }


def test_a_chunk_ends_before_an_image_and_drafts_run_beside_a_step_in_flight() -> None:
    image = "submit a x:9 media=5+2:cat\nacquire a | 1 2 3\n"
    assert seen(image + "step 1: a 0..5 | 1 2\n") == {"chunk ended before an image"}
    assert seen(image + "step 1: a 0..6 | 1 2\n") == set()
    drafting = "submit a x:5\nacquire a | 1 2 3\nstep 1: a 0..4 | 1\n"
    run = "a 4..5 ~z:2 | 1 2"
    assert seen(f"{drafting}step 2: {run}\n") == set()
    beside = "submit b y:5\nacquire b | 4 5\nbegin 2: b 0..4 | 4\n"
    assert seen(f"{drafting}{beside}begin 3: {run}\n") == {"drafts beside a step in flight"}
