"""`explain` tells what an anomaly is by something that fails there and then, and draws the
moment of a finding.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cachewitness._util.data import fault_traces
from cachewitness.cli import invoke
from cachewitness.core import stored as history
from cachewitness.core.checkers.anomalies import CATALOGUE
from cachewitness.core.driving import drive
from cachewitness.core.trace_format import save
from cachewitness.core.validate import load_trace
from cachewitness.engines.registry import parse
from cachewitness.systems.sample import engine as sample
from cachewitness.workloads.answer_stories import write

FAULT = "hit-is-maximum-over-groups"
WITNESS = fault_traces() / f"{FAULT}.jsonl"
WRONG = (
    "page 0    WRONG    the state after 16 tokens of c1; but page 0 is the null page, which holds"
    " nothing  <-- here"
)


@pytest.mark.parametrize("anomaly", [anomaly.name for anomaly in CATALOGUE])
def test_every_anomaly_is_explained(anomaly: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["explain", anomaly]) == 0
    out = capsys.readouterr().out
    assert (
        out.startswith(f"{anomaly}\n  the rule: ")
        and f"more: docs/reference/anomalies.md#{anomaly}" in out
    )


def test_an_anomaly_has_its_example_and_its_look_alikes(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["explain", "group-misalignment"]) == 0
    out = capsys.readouterr().out
    assert WRONG in out and f"{FAULT}: LMCache/LMCache#4247" in out and "> 4  step c1+1" in out
    assert "of a recurrent group the last column alone is restored" in out


def test_a_trace_is_drawn_on_the_engine_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["explain", str(WITNESS), "--engine", f"reference:mutant={FAULT}"]) == 0
    assert WRONG in capsys.readouterr().out
    assert invoke(["explain", str(WITNESS)]) == 0
    assert "nothing is wrong with it" in capsys.readouterr().out


def test_a_trace_at_answers_level_is_run_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With prompts spelled, beside the uncached twin: a right engine is not said to die of it."""
    save(write(sample.configurations()[0].shape("answers"), "replays", 0), tmp_path / "asked.jsonl")
    for engine, outcome in {
        "sample": "nothing is wrong with it",
        "sample:mutant=snapshot-one-token-early": "answer-differs",
    }.items():
        assert invoke(["explain", str(tmp_path / "asked.jsonl"), "--engine", engine]) == 0
        out = capsys.readouterr().out
        assert outcome in out and "engine-crashed" not in out


def test_a_history_is_drawn_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = load_trace(WITNESS)
    history.save(
        drive(trace, parse(f"reference:mutant={FAULT}").open(trace.header)).history,
        tmp_path / "h.jsonl",
    )
    assert invoke(["explain", str(tmp_path / "h.jsonl")]) == 0
    assert WRONG in capsys.readouterr().out


@pytest.mark.parametrize(
    ("what", "message"),
    [("stale-hitt", "did you mean 'stale-hit'"), ("no/such.jsonl", "is no anomaly and no file")],
)
def test_what_is_neither_is_one_line(
    what: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["explain", what]) == 4
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "command", ["explain a b c", "bisect --engine x --good a --bad b --trace a b c"]
)
def test_a_pattern_that_matched_several_files_is_one_line(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(command.split()) == 4
    err = capsys.readouterr().err
    assert "takes one file, and 2 more are named: name one of them" in err
    assert err.count("\n") == 1
