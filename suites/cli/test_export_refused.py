"""What `replay --export` refuses, and that a refusal hides no failure; what it writes is tried
on a real vLLM.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke, options, replay
from cachewitness.engines.export import Exported, Exporter
from cachewitness.engines.registry import kinds
from suites.support.consoles import ROOT

TRACE = ROOT / "fixtures/findings/eagle-short-window-blocks.jsonl"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--engine", "reference", "--export", "pytest"],
            "engine reference cannot be told in a test of its own; vllm can",
        ),
        (["--engine", "reference", "--output", "x.py"], "--output: belongs to --export"),
    ],
)
def test_what_is_refused_is_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["replay", str(TRACE), *arguments]) == 4
    error = capsys.readouterr().err
    assert line in error and error.count("\n") == 1


def test_a_file_that_is_there_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "test_mine.py"
    there.write_text("mine")
    assert (
        invoke(
            ["replay", str(TRACE), "--engine", "vllm", "--export", "pytest", "--output", str(there)]
        )
        == 4
    )
    assert "is there already" in capsys.readouterr().err and there.read_text() == "mine"


FAILING = "reference:mutant=hit-is-maximum-over-groups"


def exporting(monkeypatch: pytest.MonkeyPatch, exporter: Exporter) -> None:
    """Let the reference be exported by this."""
    kind = dataclasses.replace(kinds()["reference"], export=exporter)
    monkeypatch.setattr(
        replay,
        "engine_of",
        lambda *args, **kwargs: dataclasses.replace(options.engine_of(*args, **kwargs), kind=kind),
    )


def refusing(*_: object) -> Exported:
    raise UsageError("--export pytest: this cannot be told")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (None, "no test was written: --export pytest: this cannot be told"),
        ("assert False, 'r1 hits 0 tokens'", "(3 lines) fails here as the trace does"),
        (
            "assert False, 'something else'",
            "(3 lines) fails otherwise here, so it does not show this failure",
        ),
        ("assert True", "(3 lines) passes here, so it does not show this failure"),
        ("import nothing_of_this_name", "(3 lines) fails otherwise here"),
    ],
)
def test_a_failure_stays_a_failure_whatever_becomes_of_its_test(
    body: str | None,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 1, with the witness; and a test is not said to show the failure because some
    assertion of its failed.
    """
    text = f"def test_it():\n    ready = True\n    {body}\n"
    exporting(
        monkeypatch,
        refusing if body is None else lambda *_: Exported(text, "", r" hits \d+ tokens"),
    )
    witness = ROOT / "fixtures/traces/mutants/hit-is-maximum-over-groups.jsonl"
    output = tmp_path / "test_it.py"
    assert (
        invoke(
            [
                "replay",
                str(witness),
                "--engine",
                FAILING,
                "--export",
                "pytest",
                "--output",
                str(output),
            ]
        )
        == 1
    )
    out = " ".join(capsys.readouterr().out.split())
    assert sentence in out and "verdict: FAIL (exit code 1)" in out
