"""What `replay --export` refuses before anything is run; what it writes is tried on a real vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli import invoke
from suites.support.consoles import ROOT

TRACE = ROOT / "fixtures/findings/eagle-short-window-blocks.jsonl"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--engine", "reference", "--export", "pytest"], "engine reference cannot be told in a test of its own; vllm can"),
        (["--engine", "reference", "--output", "x.py"], "--output: belongs to --export"),
    ],
)
def test_what_is_refused_is_one_line(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["replay", str(TRACE), *arguments]) == 4
    said = capsys.readouterr().err
    assert line in said and said.count("\n") == 1


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "test_mine.py"
    there.write_text("mine")
    assert invoke(["replay", str(TRACE), "--engine", "vllm", "--export", "pytest", "--output", str(there)]) == 4
    assert "is there already" in capsys.readouterr().err and there.read_text() == "mine"
