"""What fuzzing found in vLLM itself is kept, minimised, and found again on its reference."""

from __future__ import annotations

import pytest

from cachewitness._util.data import fixtures
from cachewitness.core.driving import drive
from cachewitness.core.trace_format import load
from cachewitness.engines.registry import parse

FINDINGS = {
    "eagle-short-window-blocks": "lost-hit",
    "eagle-window-of-one": "lost-hit",
    "eagle-partial-hits-beside-a-window": "lost-replay-boundary",
    "eagle-state-where-no-hit-ends": "over-dense-retention",
}


@pytest.mark.parametrize("name", FINDINGS)
def test_finding_is_found_again(name: str) -> None:
    """By the anomaly that was written up, at the last operation of the trace."""
    trace = load(fixtures() / "findings" / f"{name}.jsonl")
    result = drive(trace, parse("reference").open(trace.header))
    assert [(finding.anomaly, finding.op) for finding in result.findings] == [
        (FINDINGS[name], len(trace.ops) - 1)
    ]
