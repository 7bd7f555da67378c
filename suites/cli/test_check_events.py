"""`check --events`: a recording, its verdict and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cachewitness.cli import invoke

STORED = {
    "type": "BlockStored",
    "block_hashes": [1],
    "parent_block_hash": None,
    "token_ids": [1, 2],
    "block_size": 2,
}
GONE = {"type": "BlockRemoved", "block_hashes": [2]}


@pytest.mark.parametrize(
    ("events", "code", "verdict"),
    [
        ([STORED], 0, "nothing in these events contradicts another"),
        ([STORED, GONE], 1, "FAIL  false-key-event: message 2; no event stored '2'"),
        ([], 5, "the recording has no event"),
    ],
    ids=["pass", "fail", "nothing"],
)
def test_the_verdict(
    events: list[object],
    code: int,
    verdict: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "recorded.json"
    file.write_text("[]" if not events else "\n".join(map(json.dumps, events)))
    assert invoke(["check", "--events", str(file)]) == code
    assert verdict in capsys.readouterr().out
    assert invoke(["check", "--events", "--json", str(file)]) == code
    assert json.loads(capsys.readouterr().out)["exit_code"] == code


def test_a_finding_that_is_expected_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "recorded.json"
    file.write_text(json.dumps(GONE))
    known = tmp_path / "known.txt"
    known.write_text("check:recorded.json@events  false-key-event  # known\n")
    assert invoke(["check", "--events", str(file), "--expected", str(known)]) == 0
    assert "listed as expected (known)" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["--once", "a"], ["--events", "a", "b"]])
def test_what_does_not_go_together_is_refused(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["check", *argv]) == 4
    assert "--" in capsys.readouterr().err
