"""`--report DIR` of replay, check and fuzz: the same folder as that of a run, and never a better
verdict than the exit code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn
from xml.etree import ElementTree

import pytest

from cachewitness._util import data, reading
from cachewitness.cli import invoke
from cachewitness.core import events as history
from cachewitness.core.checkers.anomalies import DISAGREEMENTS
from cachewitness.core.checkers.finding import Finding, Tally
from cachewitness.core.engine_failure import OwnMistake
from cachewitness.core.result import Activity, Result, exit_code
from cachewitness.core.trace_format import load
from cachewitness.report.one_trace import report_of
from cachewitness.sessions.fuzz.self_test import CanaryResult

FAULT = "reference:mutant=hit-is-maximum-over-groups"
TRACE = data.fixtures() / "traces" / "mutants" / "hit-is-maximum-over-groups.jsonl"
SENTENCE = "is the null block, where nothing is ever stored"
FILES = {"badge.json", "comment.md", "junit.xml", "report.html", "report.json", "report.sarif"}


def code_and_page(folder: Path) -> tuple[int, str]:
    """Return the exit code of the report in a folder, and its page, after looking whether all
    its files say the same.
    """
    document = json.loads((folder / "report.json").read_text())
    code = document["exit_code"]
    page = (folder / "report.html").read_text()
    junit = ElementTree.parse(folder / "junit.xml").getroot()
    invocation = json.loads((folder / "report.sarif").read_text())["runs"][0]["invocations"][0]
    assert invocation["exitCode"] == code and f"(exit code {code})" in page
    assert (int(junit.get("failures", "")) + int(junit.get("errors", "")) == 0) == (code == 0)
    assert (json.loads((folder / "badge.json").read_text())["color"] == "brightgreen") == (
        code == 0
    )
    return code, page


@pytest.mark.parametrize(("engine", "code"), [(FAULT, 1), ("reference", 0)])
def test_a_replay_has_the_report_of_a_run(engine: str, code: int, tmp_path: Path) -> None:
    assert invoke(["replay", str(TRACE), "--engine", engine, "--report", str(tmp_path)]) == code
    assert {path.name for path in tmp_path.iterdir()} >= FILES
    reported, page = code_and_page(tmp_path)
    assert reported == code and (SENTENCE in page) == bool(code)
    (tmp_path / "report.html").unlink()
    assert invoke(["report", str(tmp_path)]) == 0 and (tmp_path / "report.html").read_text() == page


def test_an_engine_that_breaks_when_it_runs_again_takes_the_verdict_from_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page wants the history of a failure, for which the engine runs once more."""

    def broken(*_: object) -> NoReturn:
        raise OwnMistake("the adapter has lost its pool")

    monkeypatch.setattr("cachewitness.sessions.run.store.explained", broken)
    assert invoke(["replay", str(TRACE), "--engine", FAULT, "--report", str(tmp_path)]) == 1
    assert (
        "it cannot be run again: OwnMistake: the adapter has lost its pool"
        in capsys.readouterr().err
    )
    assert code_and_page(tmp_path)[0] == 1


def test_what_a_replay_kept_fails_again_and_is_not_cleared_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        invoke(["replay", str(TRACE), "--engine", FAULT, "--differential", "--report", "out"]) == 1
    )
    (failure,) = json.loads(Path("out/report.json").read_text())["suites"][0]["failures"]
    capsys.readouterr()
    again = failure["stored"]["replay"].split()[1:]
    assert invoke([*again, "--report", "out"]) == 4
    assert "lies in it; name another folder" in capsys.readouterr().err
    assert invoke([*again, "--report", "other"]) == 1 and code_and_page(Path("other"))[0] == 1


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            [],
            (
                "replay: the trace came on standard input; to run it again, keep it in a file or"
                " name --report DIR"
            ),
        ),
        (
            ["--report", "out"],
            "replay: the trace came on standard input; it is kept in out/failures",
        ),
        (["--shrink"], f"replay: cachewitness replay standard-input.shrunk.jsonl --engine {FAULT}"),
    ],
)
def test_no_command_names_standard_input_as_a_file(
    options: list[str],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reading, "_standard_input", lambda: TRACE)
    assert invoke(["replay", "-", "--engine", FAULT, *options]) == 1
    assert line in capsys.readouterr().out.splitlines()
    assert Path("standard-input.shrunk.jsonl").is_file() == ("--shrink" in options)


def test_a_trace_is_told_how_it_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["report", str(TRACE)]) == 4
    assert (
        "a trace has to be run: `cachewitness replay FILE --report DIR`" in capsys.readouterr().err
    )


def test_a_history_that_is_checked_has_a_page(tmp_path: Path) -> None:
    recorded = tmp_path / "it.jsonl"
    folder = tmp_path / "out"
    invoke(["replay", str(TRACE), "--engine", FAULT, "--history", str(recorded), "--quiet"])
    assert invoke(["check", str(recorded), "--report", str(folder)]) == 1
    page = (folder / "report.html").read_text()
    assert "<strong>FAIL</strong> (exit code 1)" in page and SENTENCE in page


def test_the_page_of_a_history_knows_the_list_of_expected_failures(tmp_path: Path) -> None:
    recorded = tmp_path / "it.jsonl"
    listed = tmp_path / "expected"
    invoke(["replay", str(TRACE), "--engine", FAULT, "--history", str(recorded), "--quiet"])
    listed.write_text("check:*  group-misalignment  # our issue <17>\n")
    asked = ["check", str(recorded), "--expected", str(listed), "--report", str(tmp_path / "out")]
    assert invoke(asked) == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert (
        "<strong>pass</strong> (exit code 0)" in page
        and "our issue &lt;17&gt;" in page
        and SENTENCE in page
    )


FUZZ = ["fuzz", "--layout", "full-mamba", "--operations", "150", "--jobs", "1", "--no-lockstep"]


def test_a_campaign_that_finds_something_has_the_report_of_a_run(tmp_path: Path) -> None:
    assert invoke([*FUZZ, "--engine", FAULT, "--report", str(tmp_path)]) == 1
    code, page = code_and_page(tmp_path)
    assert (
        code == 1
        and 'class="film"' in page
        and len(list((tmp_path / "failures").glob("*.history.jsonl"))) == 1
    )


MISSED = CanaryResult(mutant="a-fault", anomaly="leak", reported=False, checker="", operations=9)


@pytest.mark.parametrize(
    ("self_test", "codes", "sentence"),
    [(MISSED, {3}, "was NOT reported as leak"), (None, {5}, "no fault could be")],
)
def test_a_campaign_that_proved_nothing_has_no_green_report(
    self_test: CanaryResult | None,
    codes: set[int],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "cachewitness.sessions.fuzz.self_test.run_self_test", lambda plan: self_test
    )
    ended = invoke([*FUZZ, "--operations", "400", "--report", str(tmp_path)])
    code, page = code_and_page(tmp_path)
    assert {ended} == {code} == codes and sentence in page


def test_an_exhaustive_search_is_told_how_it_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["fuzz", "--exhaustive", "--report", str(tmp_path / "out")]) == 4
    assert (
        "`replay FILE --report DIR` draws it" in capsys.readouterr().err
        and not (tmp_path / "out").exists()
    )


IDLE = Tally(checker="identity")
BUSY = Tally(checker="ownership", opportunities=3)
CRASHED = Tally(checker="progress", opportunities=3, crashed="RuntimeError: boom")
LEAK = Finding(anomaly="leak", sentence="Let a.", checker="ownership", op=0)
OWN = Finding(anomaly=DISAGREEMENTS[0].name, sentence="Let b.", checker="tensors", op=0)


@pytest.mark.parametrize("bad", ["", "events that cannot be followed"])
@pytest.mark.parametrize("tallies", [[IDLE], [BUSY], [BUSY, CRASHED]])
@pytest.mark.parametrize("findings", [[], [LEAK], [LEAK, OWN]])
def test_the_report_of_one_trace_has_its_exit_code(
    findings: list[Finding], tallies: list[Tally], bad: str
) -> None:
    trace = load(TRACE)
    empty = history.History(header=history.Header("mine", "manager", [], []), events=[], op_of=[])
    result = Result(
        trace=trace, history=empty, findings=findings, tallies=tallies, activity=Activity()
    )
    report = report_of(result, trace, "mine", "replay", seconds=0.0, bad=bad)
    assert report.exit_code == exit_code(result, bad)
