"""An engine that lets a request run for ever and throws away what it generates: it is busy, and nothing advances."""

from __future__ import annotations

from typing import Any

import pytest

from harness.engines import registry
from harness.engines.fault_tools import adapter, wrap
from harness.run.execute import drive
from harness.trace import layouts
from harness.trace.configurations import Configuration
from harness.trace.scenarios import SCENARIOS


def resumed_prompts_begin_again(engine: Any) -> None:
    """Take a request for unfinished by what was noted of its prompt before a preemption (vllm-project/vllm#37746)."""
    scheduler, unfinished = adapter(engine).scheduler, list[Any]()

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


@pytest.mark.parametrize("faulty", [False, True])
def test_a_resumed_request_that_generates_nothing_is_stuck(faulty: bool) -> None:
    shape = Configuration(layouts.load("full-mamba"), {"retention_interval": None}).shape("scheduler")
    trace = next(scenario for scenario in SCENARIOS if scenario.name == "preempt-and-resume").trace(shape)
    engine: Any = registry.kinds()["reference"].open(trace.header, {})
    if faulty:
        resumed_prompts_begin_again(engine)
    found = [finding.sentence for finding in drive(trace, engine).findings]
    assert len(found) == faulty
    assert all("computed its last token in 5 steps" in sentence for sentence in found)
