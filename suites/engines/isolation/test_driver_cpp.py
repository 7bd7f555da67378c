"""The driver in C++ that authors copy passes, and each fault that can be planted in it is found,
by every command.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cachewitness.cli import invoke
from cachewitness.core.trace_format import (
    Abort,
    GroupSpec,
    Layout,
    Step,
    Submit,
    Trace,
    TraceHeader,
    save,
)
from suites.support.drivers import SAMPLES, built, needs_compiler

needs_compiler(".cpp")

SOURCE = SAMPLES / "hybrid_driver.cpp"
ROOT = SAMPLES.parents[1]
CROWDED = Trace(
    TraceHeader(
        "crowded", Layout("hybrid-16", [GroupSpec("full", 16), GroupSpec("recurrent", 16)]), 3
    ),
    [Submit("a", "x:16"), Submit("b", "x:16 b:1"), Step([("a", 16)]), Step([("b", 1)]), Abort("b")],
)
"""A request hits what is there, has no room for the rest, and goes away."""
LINES_MAX, LONGEST = 450, 128


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(SOURCE, tmp_path_factory.mktemp("cpp"))


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_is_short_and_needs_the_standard_library_alone() -> None:
    lines = SOURCE.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LINES_MAX and max(map(len, lines)) <= LONGEST
    assert not [line for line in lines if line.startswith('#include "')]


def test_it_passes_without_a_further_option(
    driver: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the layouts that it names, and every rule about keys, states and pages had something to
    judge.
    """
    assert invoke(["run", "--engine", f"jsonl:command={driver}", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["configurations"] == ["hybrid-16", "hybrid-4"]
    hits = sum(suite["activity"]["hits"] for suite in report["suites"])
    evicted = sum(suite["activity"]["evictions"] for suite in report["suites"])
    assert hits > 100 and evicted > 500


@pytest.mark.parametrize(
    ("bug", "anomalies"),
    [
        ("early-snapshot", {"fabricated-snapshot"}),
        ("freed-while-shared", {"reference-count", "double-free", "aliased-write"}),
    ],
)
def test_a_planted_fault_is_found_and_replayed(bug: str, anomalies: set[str], driver: Path) -> None:
    """With a witness of a few operations, which the same driver without the fault passes."""
    engine = f"jsonl:command={driver} --bug={bug}"
    assert invoke(["run", "--engine", engine, "--fail-fast", "--report", "kept", "--quiet"]) == 1
    (failure,) = [
        failure
        for suite in json.loads(Path("kept/report.json").read_bytes())["suites"]
        for failure in suite["failures"]
    ]
    assert failure["anomaly"] in anomalies and failure["operations"] <= 8
    trace = failure["stored"]["trace"]
    assert invoke(["replay", trace, "--engine", engine]) == 1
    assert invoke(["replay", trace, "--engine", f"jsonl:command={driver}"]) == 0


def test_a_campaign_draws_what_the_driver_is_for(
    driver: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The layouts that it names, with no option of somebody else's policy."""
    assert invoke(["fuzz", "--engine", f"jsonl:command={driver}", "--operations", "4000"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "has no options" not in out and "verdict: pass" in out
    assert (
        invoke(
            [
                "fuzz",
                "--engine",
                f"jsonl:command={driver} --bug=early-snapshot",
                "--operations",
                "4000",
            ]
        )
        == 1
    )


def test_the_gate_takes_it(driver: Path) -> None:
    gate = [ROOT / "ci" / "gate.sh"]
    environment = os.environ | {"CACHEWITNESS_SECONDS": "1", "CACHEWITNESS_PYTHON": sys.executable}
    codes = [
        subprocess.run(
            [*gate, f"jsonl:command={driver}{bug}"], env=environment, capture_output=True
        ).returncode
        for bug in ("", " --bug=early-snapshot")
    ]
    assert codes == [0, 1]


def test_a_layout_that_it_does_not_name_is_one_line(
    driver: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["run", "--engine", f"jsonl:command={driver}", "--layout", "full-swa"]) == 4
    err = capsys.readouterr().err
    assert (
        "the engine has layouts of its own, none called 'full-swa'" in err and err.count("\n") == 1
    )


def test_a_mistake_that_was_made_while_it_was_written_is_found(
    driver: Path, tmp_path: Path
) -> None:
    """A hit for which there is no room stays in the block tables, and is given back by who never
    held it.
    """
    text = SOURCE.read_text(encoding="utf-8")
    old = "if (!request.admitted) forget_tables(request);"
    assert text.count(old) == 1
    wrong = tmp_path / "wrong.cpp"
    wrong.write_text(text.replace(old, ""))
    program = built(wrong, tmp_path)
    save(CROWDED, tmp_path / "crowded.jsonl")
    codes = [
        invoke(["replay", "crowded.jsonl", "--engine", f"jsonl:command={one}"])
        for one in (program, driver)
    ]
    assert codes == [1, 0]


def test_it_speaks_the_protocol(driver: Path) -> None:
    """With either fault too: what is wrong with a cache is for a run to say."""
    for bug in ((), ("--bug=early-snapshot",), ("--bug=freed-while-shared",)):
        assert invoke(["protocol-check", "--", str(driver), *bug]) == 0
