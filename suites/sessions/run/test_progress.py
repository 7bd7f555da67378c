"""What a command says while it goes: how far it is, of how much, and how long the rest will
take.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace

import pytest

from cachewitness import Engine
from cachewitness.cli import invoke
from cachewitness.cli.run import _progress_text
from cachewitness.cli.status_line import FirstFailure, StatusLine, duration
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.trace_format import Trace, TraceHeader
from cachewitness.engines.registry import parse
from cachewitness.report.summary import Failure
from cachewitness.sessions.run import progress as progress_module
from cachewitness.sessions.run import runner as runner_module
from cachewitness.sessions.run.choice import Choice
from cachewitness.sessions.run.progress import RunProgress
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import SUITES
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.layouts import load


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time, in one cell."""
    now = [0.0]
    monkeypatch.setattr(progress_module, "monotonic", lambda: now[0])
    return now


def test_the_time_left_follows_the_pace_and_the_clock(clock: list[float]) -> None:
    """Two counted suites, 100 traces and 300; then two that take 20 seconds each."""
    progress = RunProgress({"a": 100, "b": 300, "c": None, "d": None}, {"c", "d"}, 20.0)
    progress.enter("a")
    assert progress.left is None
    progress.begun, clock[0] = 50, 5.0
    assert progress.left == pytest.approx(350 * 0.1 + 40)
    progress.begun, clock[0] = 100, 10.0
    progress.enter("b")
    progress.begun, clock[0] = 100, 30.0
    assert progress.left == pytest.approx(200 * 0.15 + 40)
    progress.enter("c")
    clock[0] = 45.0
    assert (progress.number, progress.suites, progress.of, progress.left) == (
        3,
        4,
        None,
        pytest.approx(25),
    )
    progress.enter("d")
    clock[0] = 99.0
    assert progress.left == 0


def test_nobody_guesses_at_a_suite_whose_traces_are_not_known(clock: list[float]) -> None:
    progress = RunProgress({"a": 1, "b": None}, set(), 0.0)
    progress.enter("a")
    progress.begun, clock[0] = 1, 1.0
    assert progress.left is None


def test_a_run_tells_every_trace_of_the_number_that_it_runs() -> None:
    """The number is worked out beforehand, and is the one that ran."""
    calls: list[tuple[str, int, int | None]] = []
    chosen = [
        Configuration(load("full"), {}),
        Configuration(load("full-mamba"), {"retention_interval": 0}),
    ]
    runner = Runner(
        parse("reference"), chosen, on_trace=lambda at: calls.append((at.suite, at.begun, at.of))
    )
    report = runner.run([suite for suite in SUITES if suite.name in ("invariants", "random")])
    ran = {suite.name: suite.traces for suite in report.suites}
    assert calls == [(name, begun, of) for name, of in ran.items() for begun in range(1, of + 1)]


def test_a_trace_that_takes_long_is_told_of_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one too, before any has ended."""
    monkeypatch.setattr(runner_module, "TELL_S", 0.01)
    begun: list[int] = []
    here = os.getpid()

    def slow(header: TraceHeader, options: Mapping[str, str]) -> Engine:
        time.sleep(2.0 if os.getpid() != here else 0.0)
        return plain.kind.open(header, options)

    plain = parse("reference")
    spec = replace(plain, kind=replace(plain.kind, open=slow))
    runner = Runner(
        spec,
        [Configuration(load("full"), {})],
        jobs=2,
        on_trace=lambda at: begun.append(at.begun),
        choice=Choice(only=("invariants:exact-replay@*",)),
    )
    report = runner.run([suite for suite in SUITES if suite.name == "invariants"])
    assert report.suites[0].traces == 1
    assert begun.count(1) > 3


def test_a_line_says_which_suite_of_how_many(clock: list[float]) -> None:
    progress = RunProgress({"suite": 999, "differential-scheduler": 1999}, set(), 0.0)
    progress.enter("suite")
    progress.enter("differential-scheduler")
    progress.begun = 1234
    assert (
        _progress_text(progress)
        == "2/2 differential-scheduler: 1,234 of 1,999 traces, about 0 s left"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2 h"), (-3, "0 s")],
)
def test_durations_are_told_in_a_unit_that_fits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_terminal_gets_one_line_that_is_no_wider(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    line = StatusLine(at_once=True)
    line.tell(lambda: "x\x1b[31m" + "y" * 80)
    line.tell(lambda: "not told so soon")
    line.clear()
    err = capsys.readouterr().err
    assert err == "\r\x1b[Kx\\x1b[31m" + "y" * 10 + "\r\x1b[K"


def test_a_terminal_that_is_too_narrow_gets_whole_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    lines = []
    for columns in range(8, 22):
        monkeypatch.setenv("COLUMNS", str(columns))
        StatusLine(at_once=True).tell(lambda: "fuzz: 4 traces, 7 s")
        lines.append(capsys.readouterr().err.removeprefix("\r\x1b[K"))
        assert len(lines[-1]) < columns
    assert [*dict.fromkeys(lines)] == [
        "fuzz: …",
        "fuzz: 4 …",
        "fuzz: 4 traces, …",
        "fuzz: 4 traces, 7 s",
    ]


def test_a_pipe_gets_a_line_now_and_then_and_the_first_failure_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("cachewitness.cli.status_line.monotonic", lambda: now[0])
    line = StatusLine(anywhere=True, every=60.0)
    for now[0] in range(0, 130, 10):
        line.tell(lambda: f"{now[0]} s")
    assert capsys.readouterr().err == "60 s\n120 s\n"
    trace = Trace(TraceHeader("t", load("full"), 9), [])
    first = FirstFailure(line)
    for name, expected in (("a", "a reason"), ("b", ""), ("c", "")):
        found = Finding(anomaly="leak", checker="c", sentence="s")
        first.tell(Failure(id=name, finding=found, trace=trace, shrunk=trace, expected=expected))
    assert capsys.readouterr().err == "first failure: leak in b\n"


def test_a_file_gets_no_line_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["run", "--layout", "full", "--suite", "invariants", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
