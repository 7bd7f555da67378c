"""What was found in earlier releases and is mended passes on the real vLLM that `CACHEWITNESS_VLLM_SOURCE` names, 0.33.0."""

from __future__ import annotations

import pytest

from benchmarks import findings
from harness.engines.registry import parse
from harness.history.events import Hit, Read
from harness.run.execute import drive
from harness.trace.format import load
from suites.support.real_vllm import REAL, SOURCE

MENDED = [one for one in findings.register() if one.engine == "vLLM" and "Mended in" in one.happens]


def test_there_are_some_and_each_has_a_trace() -> None:
    assert len(MENDED) >= 5 and all(one.trace and one.version < "0.33" for one in MENDED)


@pytest.mark.parametrize("one", [pytest.param(one, marks=REAL, id=one.trace) for one in MENDED])
def test_it_passes_now(one: findings.Finding) -> None:
    trace = load(findings.folder() / one.trace)
    result = drive(trace, parse(f"vllm:source={SOURCE}").open(trace.header))
    assert result.findings == []
    assert any(isinstance(event, Read | Hit) for event in result.history.events), "something ran"
