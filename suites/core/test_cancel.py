"""A client that goes away while its step is scheduled: the step runs or not, and nothing of it
is left behind.
"""

from __future__ import annotations

import pytest

from cachewitness.core.driving import drive
from cachewitness.core.events import Aborted, Finished, Release, StepBegin, StepEnd
from cachewitness.core.trace_format import (
    Abort,
    Finish,
    Level,
    Op,
    Step,
    Submit,
    Trace,
    TraceHeader,
)
from cachewitness.engines import policy as policies
from cachewitness.engines.registry import parse
from cachewitness.workloads.capabilities import fitting

OPS: list[Op] = [
    Submit("a", "A:33"),
    Submit("b", "A:16 b:17"),
    Step(run=[("a", 33), ("b", 33)], cancel=["a"]),
    Submit("c", "A:33"),
    *[Step(run=[("b", 1), ("c", 33)]) for _ in range(4)],
    Finish("b"),
    Finish("c"),
]


def _trace(policy: str, level: Level) -> Trace:
    own, *_ = [
        c
        for c in policies.get(policy).configurations()
        if c.layout.name != "full" and c.runs_at(level)
    ]
    ops = [
        Step(budget=66, cancel=op.cancel) if level == "scheduler" and isinstance(op, Step) else op
        for op in OPS
    ]
    header = TraceHeader(
        name="cancel",
        layout=own.layout,
        pages=60,
        level=level,
        policy=policy,
        options=own.options,
    )
    return Trace(header, ops)


@pytest.mark.parametrize("policy", policies.names())
def test_every_policy_survives_a_client_that_goes_away(policy: str) -> None:
    """At each of its levels: nothing is found, the request is aborted with its step, and its
    pages are given back.
    """
    for level in policies.get(policy).levels:
        trace = _trace(policy, level)
        result = drive(trace, parse("reference").open(trace.header))
        assert not result.findings and not any(tally.crashed for tally in result.tallies)
        events = [
            event
            for event, op in zip(result.history.events, result.history.op_of, strict=True)
            if op == 2
        ]
        assert [event.r for event in events if isinstance(event, Aborted)] == ["a"]
        assert any(
            isinstance(event, Release) and event.holder == "a" for event in result.history.events
        )
        assert not any(
            isinstance(event, Finished) and event.r == "a" for event in result.history.events
        )


@pytest.mark.parametrize("level", ["manager", "scheduler"])
def test_the_abort_comes_between_the_scheduling_of_a_step_and_its_end(level: Level) -> None:
    trace = _trace("vllm", level)
    events = [
        type(event) for event in drive(trace, parse("reference").open(trace.header)).history.events
    ]
    first = events.index(Aborted)
    assert (
        StepBegin in events[:first] and StepEnd not in events[:first] and StepEnd in events[first:]
    )


def test_an_engine_that_cannot_is_asked_to_abort_after_the_step() -> None:
    """And one that cannot abort either, to finish."""
    trace = _trace("vllm", "manager")
    step, abort = fitting(trace, ["abort"]).ops[2:4]
    assert isinstance(step, Step) and not step.cancel and abort == Abort("a")
    assert fitting(trace, []).ops[3] == Finish("a")
