"""An engine that keeps something from one trace to the next fails, and it is told that no trace
alone shows the fault.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cachewitness.cli import invoke
from cachewitness.engines.isolation.engine import Isolation
from cachewitness.engines.registry import parse
from cachewitness.sessions.campaign.perform import perform
from cachewitness.sessions.campaign.store import opened
from cachewitness.sessions.run.minimize import ALONE
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import SUITES
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.layouts import load
from suites.support.campaigns import planned
from suites.support.foreign_engine import mortal  # noqa: F401

pytestmark = pytest.mark.usefixtures("mortal")

LEAKY = "mortal:how=leak"
CAMPAIGN = f"""name = "leaky"
streams = ["main"]
[[engines]]
engine = "{LEAKY}"
layouts = ["full"]
[budget]
traces = 4
per_unit = 2
"""


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_fault_that_comes_of_the_traces_before_is_told_so(jobs: int) -> None:
    """Only the third trace that a process serves is wrong: the run fails for any number of
    processes, and says what it takes.

    No smaller trace is told, since in a process of its own none fails, the whole trace included.
    """
    suite = next(suite for suite in SUITES if suite.name == "invariants")
    report = Runner(
        parse(LEAKY).isolated(Isolation()), [Configuration(load("full"))], jobs=jobs
    ).run([suite])
    (failures,) = [suite.failures for suite in report.suites]
    assert (
        report.exit_code == 1
        and failures[0].why_long == ALONE
        and failures[0].shrunk == failures[0].trace
    )


def test_a_fault_of_the_trace_itself_is_not_told_so() -> None:
    suite = next(suite for suite in SUITES if suite.name == "invariants")
    engine = parse("reference:mutant=lookup-one-unit-short").isolated(Isolation())
    report = Runner(engine, [Configuration(load("full"))]).run([suite])
    first = report.suites[0].failures[0]
    assert ALONE not in first.why_long and len(first.shrunk.ops) < len(first.trace.ops)


def test_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        invoke(["run", "--engine", LEAKY, "--layout", "full", "--suite", "invariants", "--quiet"])
        == 1
    )
    assert ALONE in " ".join(capsys.readouterr().out.split())


def test_a_unit_of_a_campaign_depends_on_no_unit_before(tmp_path: Path) -> None:
    """Two traces each, and new processes: else the second unit of a worker would fail, and the
    first pass.
    """
    made = planned(CAMPAIGN, tmp_path)
    unit = made.units[-1]
    store = opened(str(tmp_path / "traces"))
    first = perform(unit, store)
    second = perform(unit, store)
    assert first.digest == second.digest and first.met == second.met == []
