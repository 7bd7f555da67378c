"""Many runs as one page: in order, each against the one before it, and nothing left out unsaid."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from cachewitness.cli import invoke
from suites.support.browser import CHROMIUM, seen

NARROW = ("--suite", "invariants", "--layout", "full-swa", "--option", "retention_interval=0")
Whole = dict[str, Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Return the report of a clean run."""
    folder = tmp_path_factory.mktemp("night")
    assert invoke(["run", *NARROW, "--report", str(folder), "--quiet"]) == 0
    whole: Whole = json.loads((folder / "report.json").read_bytes())
    return whole


def failing(whole: Whole) -> Whole:
    made = deepcopy(whole)
    made.update(verdict="fail", exit_code=1)
    failure = dict.fromkeys(("cause", "checker", "rule", "implies", "expected", "known"), "")
    failure |= {"id": "invariants:a<b>@full-swa[retention_interval=0]", "anomaly": "leak"}
    numbers = dict.fromkeys(("operation", "operations", "operations_before_shrinking"), 1)
    made["suites"][0]["failures"] = [failure | numbers | {"sentence": "s", "stored": None}]
    return made


def nights(folder: Path, run: Whole) -> Path:
    """Write ten nights: the ninth is red, the tenth is mended and ran fewer traces."""
    shorter = deepcopy(run)
    shorter["suites"][0]["traces"] -= 1
    for number in range(1, 11):
        made = {9: failing(run), 10: shorter}.get(number, run)
        place = folder / "2026" / f"night {number}"
        place.mkdir(parents=True)
        (place / "report.json").write_text(json.dumps(made))
    (folder / "2026" / "night 9" / "report.html").write_text("page")
    return folder


def test_runs_stand_in_order_with_what_changed(
    run: Whole, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest first, numbers by their value; links go to the pages that are there."""
    folder = nights(tmp_path / "runs", run)
    (folder / "broken").mkdir()
    (folder / "broken" / "report.json").write_text("{")
    assert invoke(["report-index", str(folder)]) == 0
    captured = capsys.readouterr()
    assert "not read: " in captured.err and "truncated" in captured.err
    assert f"written: {folder / 'index.html'}" in captured.out
    text = (folder / "index.html").read_text()
    rows = [re.sub(r"<[^>]*>", " ", row).split() for row in text.split("<tr>")[2:]]
    assert [row[1] for row in rows] == [str(number) for number in range(10, 0, -1)]
    verdicts = [row[3] for row in rows]
    assert verdicts == ["pass", "FAIL", *["pass"] * 8]
    numbers = [row[4:8] for row in rows[:3]]  # findings, expected, new, mended
    assert numbers == [["0", "0", "0", "0"], ["1", "0", "1", "0"], ["0", "0", "0", "0"]]
    assert text.count("suite invariants ran ") == 1, "fewer traces are not told"
    assert '<a href="2026/night%209/report.html">' in text and text.count("<a href") == 1
    assert "a&lt;b&gt;" in text and "a<b>" not in text and "1 file<" in text
    assert text.count("<svg") == 4 and text.count("<polyline") == 4
    assert text.count('<circle class="fail"') == 4


def test_engines_have_lines_of_their_own_and_a_run_without_hits_breaks_one(
    run: Whole, tmp_path: Path
) -> None:
    other = deepcopy(run)
    other["engine"] = "other"
    idle = deepcopy(run)
    idle["suites"][0]["activity"]["lookups"] = 0
    for number, made in enumerate([run, run, idle, run, run, other]):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "report.json").write_text(json.dumps(made))
    assert invoke(["report-index", str(tmp_path), "--out", str(tmp_path / "x.html")]) == 0
    text = (tmp_path / "x.html").read_text()
    assert text.count("<h2") == 2 and text.count("<polyline") == 5
    assert text.count("<circle") == 4 * 6 - 1


def test_a_folder_without_reports_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, problem in (
        ("nowhere", "is no folder"),
        ("", "no report.json below it can be read"),
    ):
        assert invoke(["report-index", str(tmp_path / folder)]) == 4
        assert problem in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")
def test_a_browser_shows_it_without_a_word(run: Whole, tmp_path: Path) -> None:
    folder = nights(tmp_path / "runs", run)
    assert invoke(["report-index", str(folder)]) == 0
    shown = seen(folder / "index.html", tmp_path / "profile", "--window-size=390,900")
    assert "10 runs" in shown
