"""An engine whose scheduler is driven may have controls: some of its traces run again on them, and
are not its own.

The reference stands in for it: an older release, or itself with a fault, is the control.
"""

from __future__ import annotations

import dataclasses

import pytest

from cachewitness.core.trace_format import Level
from cachewitness.engines.answers_level import Controls
from cachewitness.engines.reference import ENGINE
from cachewitness.engines.registry import EngineSpec
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import SUITES
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration

OLDER = {"older": {"release": "0.32"}}
LOADS = Configuration(layouts.load("full"), {"tier_pages": 48})
RANDOM = [suite for suite in SUITES if suite.name == "scheduler-random"]


@pytest.mark.parametrize("levels", [("answers",), ("scheduler",)])
def test_controls_run_at_the_levels_that_the_engine_names(levels: tuple[Level, ...]) -> None:
    kind = dataclasses.replace(ENGINE, controls=Controls(OLDER, levels))
    report = Runner(EngineSpec(kind, {}, "reference"), [LOADS]).run(RANDOM)
    rows = report.suites[0].controls
    assert [row.control for row in rows] == (["older"] if levels == ("scheduler",) else [])
    assert report.suites[0].traces == 12 and report.failures == []
    for row in rows:
        assert (row.traces, row.failed) == (4, 0) and 0 < row.restored < row.answers


def test_a_finding_of_a_control_fails_the_run_under_its_name() -> None:
    kind = dataclasses.replace(
        ENGINE,
        controls=Controls({"broken": {"mutant": "hit-is-maximum-over-groups"}}, ("scheduler",)),
    )
    hybrid = Configuration(layouts.load("full-mamba"), {"retention_interval": None})
    report = Runner(EngineSpec(kind, {}, "reference"), [hybrid]).run(RANDOM)
    assert (
        report.outcome == "fail" and report.suites[0].controls[0].failed == len(report.failures) > 0
    )
    assert all(failure.id.endswith("/broken") for failure in report.failures)
