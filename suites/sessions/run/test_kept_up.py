"""What a run leaves while it goes on, and how much it keeps and shrinks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cachewitness.cli import invoke
from cachewitness.cli.status_line import SuiteLines
from cachewitness.cli.suites import SUITES
from cachewitness.engines.registry import parse
from cachewitness.report.summary import Report, SuiteReport
from cachewitness.sessions.run import snapshots
from cachewitness.sessions.run.runner import Runner
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration

FAULT = "reference:mutant=window-freed-early"
FAILING = ("run", "--engine", FAULT, "--suite", "invariants", "--layout", "full-swa")


def document(folder: Path) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads((folder / "report.json").read_bytes())
    return whole


def failures(whole: dict[str, Any]) -> list[dict[str, Any]]:
    return [failure for suite in whole["suites"] for failure in suite["failures"]]


def test_the_report_so_far_is_one_of_an_interrupted_run() -> None:
    """It has what was found until then, and what was judged, and changes nothing of the run."""
    seen: list[Report] = []
    runner = Runner(
        parse(FAULT),
        [Configuration(layouts.load("full-swa"), {"retention_interval": 0})],
        on_step=lambda so_far: seen.append(so_far()),
    )
    whole = runner.run([suite for suite in SUITES if suite.name == "invariants"])
    assert not whole.interrupted and whole.exit_code == 1
    assert {report.exit_code for report in seen} == {130}
    traces = [report.suites[0].traces for report in seen]
    assert traces == sorted(traces) and traces[-1] == whole.suites[0].traces
    assert len(seen[-1].failures) == len(whole.failures)
    tallies = {tally.checker: tally.opportunities for tally in seen[-1].tallies()}
    assert tallies == {tally.checker: tally.opportunities for tally in whole.tallies()}
    assert len(seen) > traces[-1], "attempts at a smaller trace are no steps"


def test_snapshots_are_taken_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, then at most once a second, and seldom if writing takes long."""
    now = [0.0]
    takes = [0.0]
    written: list[float] = []

    def write(at: float) -> None:
        written.append(at)
        now[0] += takes[0]

    monkeypatch.setattr(snapshots, "monotonic", lambda: now[0])
    kept = snapshots.Snapshots(write)
    for _ in range(30):
        kept.offer(lambda: now[0])
        now[0] += 0.1
    assert written == pytest.approx([0.0, 1.0, 2.0], abs=0.15)
    takes[0] = 0.5
    for _ in range(100):
        kept.offer(lambda: now[0])
        now[0] += 0.1
    assert len(written) == 4


def test_so_many_failures_are_kept_and_the_rest_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke([*FAILING, "--report", "all", "--max-failures", "1000"]) == 1
    capsys.readouterr()
    assert invoke([*FAILING, "--report", "some", "--max-failures", "2"]) == 1
    out = capsys.readouterr().out
    every = document(tmp_path / "all")
    some = document(tmp_path / "some")
    assert [one["id"] for one in failures(some)] == [one["id"] for one in failures(every)]
    assert [bool(one["stored"]) for one in failures(some)[:3]] == [True, True, False]
    assert every["not_kept"] == 0 and some["not_kept"] == len(failures(some)) - 2 > 0
    kept = sorted((tmp_path / "some" / "failures").glob("*.history.jsonl"))
    assert len(kept) == 2
    assert f"{some['not_kept']} are named alone, and were not kept (--max-failures)" in " ".join(
        out.split()
    )


def test_attempts_at_a_smaller_trace_are_bounded_and_the_report_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke([*FAILING, "--quiet", "--shrink-attempts", "3"]) == 1
    assert "stopped after 3 attempts" in capsys.readouterr().out
    assert invoke([*FAILING, "--quiet"]) == 1
    assert "stopped after" not in capsys.readouterr().out


def test_a_suite_that_has_ended_is_told_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In CI from the first, elsewhere when a run has taken a while; never of a quiet run."""
    suite = SuiteReport(name="invariants", traces=1234, seconds=5.0)
    monkeypatch.setenv("CI", "true")
    SuiteLines().tell(suite, 2, 9)
    assert capsys.readouterr().err == "suite 2/9 invariants: 1,234 traces, 0 failures, 5.0 s\n"
    SuiteLines(shown=False).tell(suite, 2, 9)
    monkeypatch.delenv("CI")
    SuiteLines().tell(suite, 2, 9)
    assert capsys.readouterr().err == ""


def test_the_time_of_the_harness_is_processor_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an engine that does not tell its own none is told."""
    monkeypatch.chdir(tmp_path)
    invoke([*FAILING, "--report", "out"])
    whole = document(tmp_path / "out")
    assert whole["engine_seconds"] is None and whole["harness_seconds"] is None
