"""A gate that is stopped from outside leaves what it knows, with the code of an interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from suites.support.forked import EARLY, ROOT, make_fork, surroundings

ARTEFACTS = "cachewitness-artefacts"
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_fork(tmp_path_factory.mktemp("stopped") / "fork", EARLY)


@contextmanager
def gated(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the gate in a process group of its own, and end the group afterwards."""
    process = subprocess.Popen(
        ["bash", str(ROOT / "ci" / "gate.sh"), "fork"],
        cwd=folder,
        env=surroundings(folder, CI="true"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE_S)


def report(folder: Path) -> dict[str, Any]:
    with suppress(OSError):
        document: dict[str, Any] = json.loads((folder / ARTEFACTS / "report.json").read_bytes())
        return document
    return {"suites": []}


def until(seen: Callable[[], object]) -> None:
    """Wait until something is seen."""
    late = time.monotonic() + PATIENCE_S
    while not seen():
        assert time.monotonic() < late, "nothing was seen in time"
        time.sleep(0.1)


def failures(folder: Path) -> list[dict[str, Any]]:
    return [failure for suite in report(folder)["suites"] for failure in suite["failures"]]


def fresh(folder: Path) -> None:
    (folder / ARTEFACTS / "report.json").unlink(missing_ok=True)


def run_of(group: int) -> int:
    """Return the process of the run itself, in the gate's group."""
    listed = subprocess.run(
        ["pgrep", "-g", str(group), "-f", "cachewitness.cli run"], capture_output=True, text=True
    )
    return min(map(int, listed.stdout.split()))


@pytest.mark.parametrize(
    ("number", "whole"),
    [(signal.SIGINT, True), (signal.SIGTERM, True), (signal.SIGTERM, False)],
    ids=["Ctrl-C", "SIGTERM to the group", "SIGTERM to the gate"],
)
def test_a_stopped_gate_reports_what_it_found(
    broken: Path, number: signal.Signals, whole: bool
) -> None:
    """The exit code is 130; the witness is printed, and all files are there."""
    fresh(broken)
    with gated(broken) as process:
        until(lambda: failures(broken))
        (os.killpg if whole else os.kill)(process.pid, number)
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, out
    assert "FAIL  premature-release" in out and "gate: stopped (exit code 130)" in out
    assert "verdict: interrupted (exit code 130): stopped before its end" in out
    there = {path.name for path in (broken / ARTEFACTS).iterdir()}
    assert {"report.txt", "report.json", "report.html", "junit.xml", "summary.md"} <= there
    assert not [name for name in there if name.startswith(".")]
    assert report(broken)["interrupted"] and failures(broken)
    assert "FAIL  premature-release" in (broken / ARTEFACTS / "summary.md").read_text()


@pytest.mark.parametrize("whole", [True, False], ids=["group", "run"])
def test_a_killed_run_leaves_a_report_that_is_marked(broken: Path, whole: bool) -> None:
    """What was written last is whole, and says that it is no verdict; so does the gate."""
    fresh(broken)
    with gated(broken) as process:
        until(lambda: failures(broken))
        if whole:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            os.kill(run_of(process.pid), signal.SIGKILL)
        out, _ = process.communicate(timeout=PATIENCE_S)
    document = report(broken)
    assert document["interrupted"] and document["exit_code"] == 130
    assert {failure["anomaly"] for failure in failures(broken)} == {"premature-release"}
    root = ElementTree.parse(broken / ARTEFACTS / "junit.xml").getroot()
    (case,) = [case for case in root.iter("testcase") if case.attrib["name"] == "interrupted"]
    assert case.find("error") is not None
    if not whole:
        assert process.returncode == 3 and "left a report of 130" in out


def test_a_gate_says_where_it_is(broken: Path) -> None:
    """Where there is no terminal, a line for each suite that has ended."""
    fresh(broken)
    with gated(broken) as process:
        assert process.stdout is not None
        until(lambda: failures(broken))
        line = next(line for line in process.stdout if line.startswith("suite "))
    assert line.startswith("suite 1/") and " traces, " in line and " failures" in line
