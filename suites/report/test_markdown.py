"""A run as the comment on a pull request."""

from __future__ import annotations

from cachewitness.core.checkers.finding import Finding
from cachewitness.core.trace_format import Trace, TraceHeader
from cachewitness.report import markdown
from cachewitness.report.summary import Failure, NotRun, Report, Stored, SuiteReport
from cachewitness.workloads.layouts import load

ODD = "x|`y`\n@somebody <b>\x1b[31m</b>"


def failing(anomaly: str, name: str, line: str = "page 3 is null") -> Failure:
    trace = Trace(TraceHeader("t", load("full"), 9, "manager", "vllm"), [])
    found = Finding(anomaly=anomaly, checker="c", sentence="Let it be.", line=line)
    return Failure(id=name, finding=found, trace=trace, shrunk=trace)


def test_each_anomaly_has_a_row_with_its_first_failure() -> None:
    suite = SuiteReport(name="random", traces=4)
    suite.failures = [failing("leak", "random:r-1@full"), failing("leak", "random:r-2@full")]
    suite.failures.append(failing("stale-hit", "random:r-3@full"))
    report = Report(engine="vllm:source=.", engine_version="0.33.0", suites=[suite])
    path = "a folder/failures/a.trace.jsonl"
    command = f"cachewitness replay '{path}' --engine vllm:source=."
    kept = {"random:r-1@full": Stored(trace=path, replay=command)}
    lines = markdown.render(report, kept).decode().splitlines()
    assert lines[:2] == [markdown.MARKER, "### cachewitness: FAIL (exit code 1)"]
    assert "| `leak` | 2 | `random:r-1@full` | `page 3 is null` |" in lines
    assert "| `stale-hit` | 1 | `random:r-3@full` | `page 3 is null` |" in lines
    assert lines[-2:] == [
        "* `DIR='a folder'`",
        '* `cachewitness replay "$DIR"/failures/a.trace.jsonl --engine vllm:source=.`',
    ]
    assert markdown.RED_BEFORE in lines


def test_names_of_others_are_no_markup_and_the_comment_is_not_too_long() -> None:
    suite = SuiteReport(name="random", traces=1)
    anomalies = [f"anomaly-{number}-{'x' * 5000}" for number in range(60)]
    suite.failures = [failing(name, f"{ODD}{name}", ODD * 400) for name in anomalies]
    report = Report(engine=ODD * 50, suites=[suite], vacuous=[ODD * 1000])
    text = markdown.render(report, {}).decode()
    assert len(text) < 65_000 and "\x1b" not in text
    rows = [line for line in text.splitlines() if line.startswith("| `anomaly")]
    assert len(rows) == markdown.ROWS_MAX and "… and 40 more anomalies" in text
    for line in rows:
        outside = line.split("`")[::2]
        assert len(outside) == 4 and not any("@" in part or "<" in part for part in outside)
        assert line.replace("\\|", "").count("|") == 5


def test_a_pass_says_what_was_covered() -> None:
    report = Report(engine="reference", suites=[SuiteReport(name="random", traces=4)])
    report.not_run = [NotRun("suite differential", "why"), NotRun("suite answers", "why")]
    lines = markdown.render(report, {}).decode().splitlines()
    assert lines[1] == "### cachewitness: pass (exit code 0)"
    assert not any("|" in line for line in lines)
    assert lines[-1] == (
        "covered: `1 suite, 4 traces, 0 operations, 0 hits in 0 look-ups; not run: 2 things`;"
        " the rest is in `report.html`"
    )
