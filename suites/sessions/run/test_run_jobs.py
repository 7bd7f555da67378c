"""A run of several processes is the run of one: the same traces, failures, tallies and report,
whoever dies meanwhile.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cachewitness._util import workers
from cachewitness.cli import invoke
from cachewitness.cli.options import jobs_of
from cachewitness.core.engine import Engine
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines.isolation.engine import Isolation
from cachewitness.engines.kind import EngineKind
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.parity.answers.baseline import baseline_of
from cachewitness.parity.answers.compare import runs
from cachewitness.report.summary import Report
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import SUITES
from cachewitness.systems.sample import engine as sample
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.layouts import load
from suites.support.sampled import chosen

ANSWERS = [suite for suite in SUITES if suite.name == "answers"]
SHORT = [suite for suite in SUITES if suite.name in ("invariants", "differential")]
LAYOUTS = [Configuration(load(name)) for name in ("full", "full-mamba")]
TIMES = {"seconds", "startup_seconds", "engine_seconds", "harness_seconds"}


def outcome(report: Report) -> object:
    """Return all that a report says, but for times."""

    def timeless(value: object) -> object:
        if isinstance(value, dict):
            return {key: timeless(entry) for key, entry in value.items() if key not in TIMES}
        return [timeless(entry) for entry in value] if isinstance(value, list) else value

    return timeless(msgspec.to_builtins(report))


ENGINES = {
    "clean": parse("reference"),
    "faulty": parse("reference:mutant=block-leaked"),
    "faulty, in a process of its own": parse("reference:mutant=block-leaked").isolated(Isolation()),
}


@pytest.mark.parametrize(
    "engine", chosen(list(ENGINES), "clean", "faulty, in a process of its own")
)
def test_a_run_does_not_depend_on_the_number_of_processes(engine: str) -> None:
    """Failures with their shrunk traces, tallies, what was left out and what had nothing to
    judge, in the same order.
    """
    reports = [
        Runner(ENGINES[engine], chosen(LAYOUTS, LAYOUTS[1]), jobs=jobs).run(SHORT[:1])
        for jobs in chosen((1, 3, 2), 1, 3)
    ]
    assert all(outcome(report) == outcome(reports[0]) for report in reports[1:])
    assert bool(reports[0].failures) == (engine != "clean") and reports[0].suites[0].traces > 20


OF_ANSWERS = ["", ":mutant=snapshot-one-token-early"]


@pytest.mark.parametrize("fault", chosen(OF_ANSWERS, OF_ANSWERS[1]))
def test_an_engine_that_only_answers_is_run_side_by_side_too(fault: str) -> None:
    """Beside its baseline and its controls, with the causes of what fails; in a process of its
    own.
    """
    engine = parse(f"sample{fault}").isolated(Isolation())
    one, two = (
        Runner(engine, sample.configurations()[:1], jobs=jobs).run(ANSWERS) for jobs in (1, 2)
    )
    assert outcome(one) == outcome(two) and bool(one.failures) == bool(fault)
    assert all(failure.finding.cause for failure in one.failures) and one.suites[0].controls


def test_a_copy_of_a_process_neither_asks_nor_closes_the_twins_of_the_first() -> None:
    """Both would read each other's answers."""
    engine = parse("sample").isolated(Isolation())
    trace = next(iter(ANSWERS[0].traces(sample.configurations()[0], "answers", 0)))
    before = baseline_of(engine, trace.header)
    assert baseline_of(engine, trace.header) is before
    with workers.workers(1) as copy:
        assert copy.submit(_has_a_twin_of_its_own, id(before), trace.header).result()
    assert runs(trace, engine).findings == [], "the first one's is still there"


def _has_a_twin_of_its_own(before: int, header: TraceHeader) -> bool:
    return id(baseline_of(parse("sample").isolated(Isolation()), header)) != before


def test_endless_suites_and_a_run_that_stops_at_its_first_failure_do_not_depend_on_it_either() -> (
    None
):
    """As many random traces of each configuration; and after the first failure nothing more."""
    for fault, fail_fast in (("", False), (":mutant=reset-keeps-keys", True)):
        reports = [
            Runner(parse(f"reference{fault}"), LAYOUTS[:1], jobs=jobs, fail_fast=fail_fast).run(
                SHORT
            )
            for jobs in (1, 2)
        ]
        assert outcome(reports[0]) == outcome(reports[1])


def dying(die: Callable[[TraceHeader], None]) -> EngineSpec:
    """Return the reference, which may end its process when it is opened."""

    def opened(header: TraceHeader, options: object) -> Engine:
        die(header)
        return parse("reference").open(header)

    return EngineSpec(
        EngineKind(name="reference", summary="", levels=("manager", "scheduler"), open=opened),
        {},
        "dying",
    )


def test_a_killed_process_changes_nothing(tmp_path: Path) -> None:
    """`kill -9`: what it was at is run again, one line tells of it, and the report is the same."""
    lines = list[str]()
    once = tmp_path / "once"

    def killed(header: TraceHeader) -> None:
        if header.name == name and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    name = next(iter(SHORT[0].traces(LAYOUTS[0], "manager", 0))).header.name
    whole = Runner(dying(lambda _: None), LAYOUTS).run(SHORT[:1])
    patched = Runner(dying(killed), LAYOUTS, jobs=2, on_died=lines.append).run(SHORT[:1])
    assert outcome(patched) == outcome(whole)
    assert once.exists() and len(lines) == 1 and "signal 9" in lines[0]


def test_an_engine_that_ends_its_process_never_passes() -> None:
    """It leaves with exit code 0 in every process: unknown, with the trace by name; what was
    found before still counts.
    """
    names = [trace.header.name for trace in SHORT[0].traces(LAYOUTS[0], "manager", 0)]
    report = Runner(
        dying(lambda header: os._exit(0) if header.name == names[2] else None), LAYOUTS[:1], jobs=2
    ).run(SHORT)
    (line,) = report.suites[0].crashed
    assert line.startswith(f"trace invariants:{names[2]}@full: ") and report.suites[0].traces == 2
    assert report.exit_code == 2
    assert any(entry.what == "the rest of the run" for entry in report.not_run)


@pytest.mark.parametrize("more", [[], ["--fail-fast"]], ids=" ".join)
def test_the_command_says_why_it_is_unknown(
    more: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict names the trace, not a checker; the first trace of all ends no process but a
    worker's.
    """
    monkeypatch.setattr(
        "cachewitness.cli.options.engine_of", lambda *_: dying(lambda header: os._exit(0))
    )
    assert invoke(["run", "--layout", "full", "--suite", "invariants", "--jobs", "2", *more]) == 2
    out, err = capsys.readouterr()
    assert "verdict: unknown" in out and "trace invariants:" in out and "exit code 0" in out
    assert "what it was at is done again" in err


def test_how_many_traces_are_run_at_a_time_if_the_user_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One for each core, fewer copies of an installed engine, one of what may want a port; what
    the user says goes.
    """
    monkeypatch.setattr("cachewitness._util.workers.cores", lambda: 64)
    mine = parse("reference")
    held = parse("reference").isolated(Isolation())
    assert (jobs_of(mine, None), jobs_of(held, None), jobs_of(held, 7)) == (64, 4, 7)
    theirs = parse("jsonl:command=my-engine")
    assert (jobs_of(theirs, None), jobs_of(theirs, 2)) == (1, 2)
    assert (
        jobs_of(parse("toy"), None)
        == jobs_of(parse("sample"), None)
        == jobs_of(parse("openai-server"), None)
        == 1
    )
    assert jobs_of(parse("sample").isolated(Isolation()), None) == 2
