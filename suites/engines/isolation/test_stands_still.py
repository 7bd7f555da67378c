"""An engine that answers everything and runs nobody any more is a finding, told in a line, and
costs a run nothing else.
"""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from cachewitness.cli import invoke
from cachewitness.core.driving import drive
from cachewitness.core.events import StepBegin
from cachewitness.core.trace_format import (
    Finish,
    GroupSpec,
    Layout,
    Op,
    Reset,
    Step,
    Submit,
    Trace,
    TraceHeader,
)
from cachewitness.engines.isolation.engine import Isolation
from cachewitness.engines.registry import parse
from suites.support.foreign_engine import mortal  # noqa: F401
from suites.support.sampled import chosen

pytestmark = pytest.mark.usefixtures("mortal")

OPTIONS = {"tier_pages": 40, "tier_delay": 3}
STORED: list[Op] = [
    Submit("a", "doc:70"),
    *[Step()] * 8,
    Finish("a"),
    *[Step()] * 4,
    Reset(running=True, tier="local"),
]
LOADED: list[Op] = [
    Submit("b", "doc:70"),
    Step(),
    Step(fail=[0]),
    *[Step()] * 12,
    Submit("c", "other:20"),
    *[Step()] * 4,
]


def run(engine: str, suite: str, *more: str) -> tuple[int, dict[str, Any]]:
    """Run a suite; return the exit code and the report."""
    code = invoke(
        [
            "run",
            "--engine",
            engine,
            "--layout",
            "full",
            "--suite",
            suite,
            "--report",
            "out",
            "--quiet",
            *more,
        ]
    )
    return code, json.loads(Path("out/report.json").read_bytes())


@pytest.mark.parametrize(
    ("suite", "isolate"),
    chosen(
        [*product(("invariants", "scheduler"), ("yes", "no"))],
        ("invariants", "yes"),
        ("scheduler", "no"),
    ),
)
def test_it_is_a_finding_in_one_line_and_all_other_traces_run(
    suite: str, isolate: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """At either level. The trace is kept and shrunk, fails again, and passes on an engine that
    goes on.
    """
    still, calm = "mortal:how=stand-still,at=reset", "mortal"
    code, report = run(still, suite, "--isolate", isolate)
    out, _ = capsys.readouterr()
    assert code == 1
    assert re.fullmatch(
        r"verdict: FAIL \(exit code 1\): .* contradict a rule \(no-progress in \d+\)",
        out.rstrip().splitlines()[-1],
    )
    (of,) = report["suites"]
    stuck = of["failures"]
    assert {failure["anomaly"] for failure in stuck} == {"no-progress"}
    assert all(
        "\n" not in failure["sentence"] and "however it did not advance" in failure["sentence"]
        for failure in stuck
    )
    shrunk = [
        failure
        for failure in stuck
        if failure["operations"] < failure["operations_before_shrinking"]
    ]
    stored = shrunk[0]["stored"]["trace"]
    assert invoke(["replay", stored, "--engine", still]) == 1 and invoke(
        ["replay", stored, "--engine", calm]
    ) in (0, 5)
    assert of["traces"] == run(calm, suite, "--isolate", isolate)[1]["suites"][0]["traces"]


@pytest.mark.parametrize("isolated", [False, True])
def test_behind_a_load_that_failed_whoever_came_before_it_is_judged_and_who_waits_is_named(
    isolated: bool,
) -> None:
    """An engine that goes on computes what was not loaded, and has no finding; nor has one of
    which no load fails.
    """
    layout = Layout("full", [GroupSpec("full", 16)])
    trace = Trace(
        TraceHeader("still", layout, 40, level="scheduler", options=OPTIONS), [*STORED, *LOADED]
    )
    sound = trace.with_ops(Step() if isinstance(op, Step) else op for op in trace.ops)
    specs = map(parse, ("mortal:how=stand-still,at=failed-load", "mortal"))
    still, calm = (spec.isolated(Isolation()) if isolated else spec for spec in specs)
    for spec, ops in ((calm, trace), (still, sound)):
        assert drive(ops, spec.open(trace.header)).findings == []
    result = drive(trace, still.open(trace.header))
    assert [(finding.anomaly, finding.r, finding.checker) for finding in result.findings] == [
        ("no-progress", "b", "progress")
    ]
    assert result.activity.operations == len(trace.ops) and result.activity.requests == 3
    failed = next(
        event.step
        for event in result.history.events
        if isinstance(event, StepBegin) and event.failed
    )
    assert (
        "Let b be a request that could run alone, but nobody ran in " in result.findings[0].sentence
    )
    assert int(result.findings[0].sentence.rpartition("step ")[2].partition(";")[0]) > failed
