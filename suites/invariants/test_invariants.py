"""The scenarios and random workloads as tests: every rule holds on every configuration, and had something to judge.

`CACHEWITNESS_ENGINE` names another engine than the reference, in the words of `--engine`.
"""

from __future__ import annotations

import os

import pytest

from harness.cells import Cell, default_cells
from harness.engines.registry import parse
from harness.run import SUITES, Report, Runner
from harness.verdict import EXIT_PASS

ENGINE = os.environ.get("CACHEWITNESS_ENGINE", "reference")
NAMED = ("no-fabricated-snapshots", "replay-boundary-retained", "interval-sparsity")


def run(cells: list[Cell], *names: str) -> Report:
    return Runner(parse(ENGINE), cells).run([suite for suite in SUITES if suite.name in names])


@pytest.mark.parametrize("cell", default_cells(), ids=lambda cell: cell.name)
def test_every_rule_holds_on_the_configuration(cell: Cell) -> None:
    report = run([cell], "invariants", "random")
    assert [failure.finding.sentence for suite in report.suites for failure in suite.failures] == []
    assert sum(suite.activity.hits for suite in report.suites) > 0


def test_a_run_over_all_configurations_is_not_vacuous() -> None:
    """The three named invariants each had opportunities; states were restored, pages evicted, requests preempted."""
    report = run(default_cells(), "invariants")
    assert report.exit_code == EXIT_PASS and report.vacuous == []
    opportunities = {tally.checker: tally.opportunities for tally in report.tallies()}
    assert all(opportunities[name] > 0 for name in NAMED)
    activity = report.suites[0].activity
    assert min(activity.restored, activity.evictions, activity.preemptions) > 0


@pytest.mark.parametrize("suite", ["scheduler", "scheduler-random"])
def test_every_rule_holds_under_the_engine_s_own_scheduler(suite: str) -> None:
    kind = parse(ENGINE).kind
    assert "scheduler" in kind.heights or kind.name != "reference"
    if "scheduler" in kind.heights:
        report = run(default_cells(), suite)
        assert [failure.finding.sentence for entry in report.suites for failure in entry.failures] == []
        assert report.suites[0].activity.preemptions > 0
