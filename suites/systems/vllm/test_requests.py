"""Requests of special kinds on vLLM's own scheduler: priorities, grammars, limits of adapters,
images under a budget.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`.
"""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness._util.data import fixtures
from cachewitness._util.errors import UsageError
from cachewitness.core.driving import drive
from cachewitness.core.events import Preempted, StepBegin
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Level, Media, Op, Step, Submit, Trace, TraceHeader, load
from cachewitness.engines.registry import parse
from cachewitness.workloads import layouts
from suites.support.real_vllm import REAL, SOURCE

pytestmark = REAL


def tell(
    layout: str, ops: list[Op], pages: int = 40, level: Level = "scheduler", **options: Any
) -> Result:
    header = TraceHeader("t", layouts.load(layout), pages, level=level, options=options)
    return drive(Trace(header, ops), parse(f"vllm:source={SOURCE}").open(header))


def runs(result: Result) -> list[dict[str, int]]:
    """Return how many tokens of whom each step computes."""
    begun = [event for event in result.history.events if isinstance(event, StepBegin)]
    return [{run.r: run.stop - run.start for run in event.runs} for event in begun]


def test_who_has_the_smaller_priority_is_admitted_first_and_preempted_last() -> None:
    ops: list[Op] = [
        Submit("low", "a:30", priority=2),
        Submit("high", "b:30", priority=1),
        Step(),
        Step(),
    ]
    first = tell("full", ops, max_num_seqs=1, scheduling_policy="priority")
    assert list(runs(first)[0]) == ["high"] and first.findings == []
    ops = [
        Submit("low", "a:30", priority=2),
        Step(),
        Submit("high", "b:30", priority=1),
        *[Step()] * 30,
    ]
    for policy, victim in (("priority", "low"), ("fcfs", "high")):
        result = tell("full", ops, pages=6, scheduling_policy=policy)
        assert (
            next(event.r for event in result.history.events if isinstance(event, Preempted))
            == victim
        )
        assert result.findings == []


def test_a_request_whose_grammar_is_compiled_waits_and_is_overtaken() -> None:
    ops: list[Op] = [Submit("guided", "a:20", grammar=2), Submit("free", "a:20"), *[Step()] * 5]
    result = tell("full", ops, structured_output=True)
    assert [sorted(step) for step in runs(result)] == [
        ["free"],
        ["free"],
        *[["free", "guided"]] * 3,
    ]
    assert result.findings == []


@pytest.mark.parametrize("depth", [0, 1])
def test_drafts_of_a_guided_request_are_verified(depth: int) -> None:
    ops: list[Op] = [Submit("guided", "a:20", grammar=1), *[Step()] * 12]
    result = tell("full", ops, structured_output=True, num_speculative_tokens=2, async_depth=depth)
    assert (
        max(max(step.values(), default=0) for step in runs(result)[3:]) == 3
        and result.findings == []
    )


def test_no_more_adapters_run_at_a_time_than_there_may_be() -> None:
    ops: list[Op] = [
        Submit(f"r{index}", "a:20", adapter=f"adapter-{index % 2}") for index in range(4)
    ]
    free = tell("full", [*ops, *[Step()] * 3])
    limited = tell("full", [*ops, *[Step()] * 3], max_loras=1)
    assert [sorted(step) for step in runs(free)] == [["r0", "r1", "r2", "r3"]] * 3
    assert [sorted(step) for step in runs(limited)] == [["r0", "r2"]] * 3
    assert free.findings == limited.findings == []


def test_a_chunk_ends_before_an_image_for_which_no_budget_is_left() -> None:
    """Two images of 8 tokens, and 8 tokens of images a step: the first chunk ends where the
    second image begins.
    """
    ops: list[Op] = [
        Submit("r", "a:40", media=[Media(4, 8, "cat"), Media(20, 8, "dog")]),
        Step(),
        Step(),
    ]
    assert [step["r"] for step in runs(tell("full", ops))] == [40, 1]
    result = tell("full", ops, encoder_budget=8)
    assert [step["r"] for step in runs(result)] == [20, 20] and result.findings == []


def test_an_image_that_is_longer_than_the_budget_is_encoded_all_the_same() -> None:
    """As vLLM has it, whose budget is never smaller than the longest item of its model."""
    result = tell(
        "full", [Submit("r", "a:40", media=[Media(4, 30, "cat")]), Step()], encoder_budget=8
    )
    assert runs(result) == [{"r": 40}] and result.findings == []


def test_who_is_preempted_in_the_pass_that_scheduled_it_leaves_keys_of_what_nobody_writes() -> None:
    """What vLLM does is found; a release that mends it fails here, and the finding is taken off
    the lists.
    """
    trace = load(fixtures() / "findings" / "keys-of-a-victim-of-priority.jsonl")
    found = drive(trace, parse(f"vllm:source={SOURCE}").open(trace.header)).findings
    assert [finding.anomaly for finding in found] == ["partial-commit"]


@pytest.mark.parametrize(
    ("options", "level", "message"),
    [
        ({"scheduling_policy": "lifo"}, "scheduler", "option 'scheduling_policy' cannot be 'lifo'"),
        ({"max_loras": -1}, "scheduler", "option 'max_loras' cannot be -1"),
        ({"max_loras": 1}, "manager", "option 'max_loras' .1. is the scheduler's"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    options: dict[str, Any], level: Level, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        tell("full", [], level=level, **options)
