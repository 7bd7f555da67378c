"""The driver in Rust that authors copy, of an engine that only answers, passes; the fault that
it can plant is found.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cachewitness.cli import invoke
from suites.support.drivers import SAMPLES, built, needs_compiler

needs_compiler(".rs")

SOURCE = SAMPLES / "answering_driver.rs"
LINES_MAX, LONGEST = 350, 128


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(SOURCE, tmp_path_factory.mktemp("rust"))


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_is_short_and_needs_no_crate() -> None:
    lines = SOURCE.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LINES_MAX and max(map(len, lines)) <= LONGEST
    assert {line.split("::")[0] for line in lines if line.startswith("use ")} == {"use std"}


def test_it_passes_and_restores(driver: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its answers are those of its uncached baseline, and many of them come from a cached state."""
    assert invoke(["run", "--engine", f"jsonl:command={driver}", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["configurations"] == ["blocks-8", "blocks-16"]
    assert {suite["name"] for suite in report["suites"]} == {"answers", "answers-random"}
    assert sum(suite["activity"]["hits"] for suite in report["suites"]) > 200
    controls = [row for suite in report["suites"] for row in suite["controls"]]
    assert {(row["control"], row["failed"]) for row in controls} == {("uncached", 0)}


def test_the_planted_fault_is_found_and_replayed(driver: Path) -> None:
    """A state from before the chunk that wrote it answers otherwise; the whole run of it is
    kept.
    """
    engine = f"jsonl:command={driver} --bug=stale-snapshot"
    assert invoke(["run", "--engine", engine, "--fail-fast", "--report", "kept", "--quiet"]) == 1
    (failure,) = [
        failure
        for suite in json.loads(Path("kept/report.json").read_bytes())["suites"]
        for failure in suite["failures"]
    ]
    assert (failure["anomaly"], failure["cause"]) == ("answer-differs", "cache") and failure[
        "operations"
    ] <= 4
    stored = failure["stored"]
    assert Path(stored["history"]).stat().st_size > 0
    assert invoke(["replay", stored["trace"], "--engine", engine]) == 1
    assert invoke(["replay", stored["trace"], "--engine", f"jsonl:command={driver}"]) == 0


def test_it_speaks_the_protocol(driver: Path) -> None:
    assert invoke(["protocol-check", "--", str(driver)]) == 0


def test_a_campaign_says_that_it_cannot(driver: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["fuzz", "--engine", f"jsonl:command={driver}", "--operations", "100"]) == 4
    assert "runs at no level at which this can be fuzzed" in capsys.readouterr().err
