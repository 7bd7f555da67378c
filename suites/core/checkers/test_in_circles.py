"""An engine that lets a request run for ever and throws away what it generates: it is busy, and
nothing advances.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cachewitness.core.driving import check, drive
from cachewitness.core.events import Event, Preempted
from cachewitness.core.trace_format import Op, Preempt, Step
from cachewitness.engines import registry
from cachewitness.engines.fault_tools import adapter, wrap
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness.workloads.scenarios import SCENARIOS


def resumed_prompts_begin_again(engine: Any) -> None:
    """Take a request for unfinished by what was noted of its prompt before a preemption
    (vllm-project/vllm#37746).
    """
    scheduler = adapter(engine).scheduler
    unfinished = list[Any]()

    def update_from_output(original: Any, output: Any) -> Any:
        for request in scheduler.running:
            if request.request_id in output.generating and request.num_preemptions:
                output.generating.discard(request.request_id)
                request.num_output_placeholders -= 1
                unfinished.append(request)
        return original(output)

    def schedule_running(original: Any, output: Any, limit: int) -> Any:
        for request in [request for request in unfinished if request in scheduler.running]:
            scheduler.running.remove(request)
            scheduler._preempt(request)
            output.preempted_req_ids.append(request.request_id)
        unfinished.clear()
        return original(output, limit)

    wrap(scheduler, "update_from_output", update_from_output)
    wrap(scheduler, "_schedule_running", schedule_running)


class NumberedBefore:
    """An engine that gives its preemptions the number of the step before, as if they had been
    asked for between steps.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.describe = engine.describe
        self.close = engine.close

    def apply(self, op: Op) -> list[Event]:
        events: list[Event] = self._engine.apply(op)
        for event in events:
            if isinstance(event, Preempted) and isinstance(op, Step):
                event.step -= 1
        return events


@pytest.mark.parametrize(
    "engine_of", [lambda engine: engine, NumberedBefore], ids=["this step", "the step before"]
)
@pytest.mark.parametrize("faulty", [False, True])
def test_a_resumed_request_that_generates_nothing_is_stuck(
    faulty: bool, engine_of: Callable[[Any], Any]
) -> None:
    """Whichever number of a step its engine gives its preemptions: the harness knows which of
    them it asked for.
    """
    shape = Configuration(layouts.load("full-mamba"), {"retention_interval": None}).shape(
        "scheduler"
    )
    trace = next(scenario for scenario in SCENARIOS if scenario.name == "preempt-and-resume").trace(
        shape
    )
    engine: Any = registry.kinds()["reference"].open(trace.header, {})
    if faulty:
        resumed_prompts_begin_again(engine)
    result = drive(trace, engine_of(engine))
    found = [finding.sentence for finding in result.findings]
    assert len(found) == faulty
    assert all("computed its last token in 5 steps" in sentence for sentence in found)
    assert [finding.sentence for finding in check(result.history).findings] == found
    preemptions = [
        (event.by_engine, isinstance(trace.ops[op], Preempt))
        for event, op in zip(result.history.events, result.history.op_of, strict=True)
        if isinstance(event, Preempted)
    ]
    assert (
        (False, True) in preemptions
        and ((True, False) in preemptions) == faulty
        and all(own != asked for own, asked in preemptions)
    )


@pytest.mark.parametrize("layout", ["full", "full-mamba"])
def test_a_scheduler_that_preempts_and_gets_further_is_not(layout: str) -> None:
    """Many times, for want of room, with the number of the step before: everybody gets further
    in between.
    """
    shape = Configuration(layouts.load(layout)).shape("scheduler")
    trace = random_trace(shape, 5, withdraw=False)
    result = drive(trace, NumberedBefore(registry.kinds()["reference"].open(trace.header, {})))
    assert result.findings == check(result.history).findings == []
    assert (
        sum(isinstance(event, Preempted) and event.by_engine for event in result.history.events)
        > 10
    )
