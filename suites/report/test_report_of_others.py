"""`--report DIR` of campaign, mutants and consume: a page that says what the verdict says, and
what was not run.
"""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cachewitness.cli import invoke
from cachewitness.core.engine_failure import OwnMistake
from cachewitness.sessions.campaign.perform import perform
from cachewitness.sessions.mutants import heat_map
from cachewitness.vectors import store as vectors
from suites.support import page_reports
from suites.support.browser import CHROMIUM, seen
from suites.support.campaigns import SMALL, InTurn, driven, planned, settings

FAULT = "reference:mutant=hit-is-maximum-over-groups"
LIVES = vectors.folder() / "vllm" / "lifecycle.json"
HUNT = ["mutants", "--mutant", "block-leaked", "--tensor-seconds", "0", "--jobs", "1"]
EVIL = '</script><img src=x onerror="document.title=1">'


def page_text(folder: Path, code: int) -> str:
    """Return the text of a page, after looking whether it and the report have this code, and
    whether it is drawn again.
    """
    page = (folder / "report.html").read_text()
    assert json.loads((folder / "report.json").read_text())["exit_code"] == code
    assert f"(exit code {code})" in page and "//" not in re.sub(
        r"<script.*?</script>", "", page, flags=re.DOTALL
    )
    assert invoke(["report", str(folder), "--out", str(folder / "again.html")]) == 0
    assert (folder / "again.html").read_text() == page
    return " ".join(re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL).split())


def test_a_hunt_has_its_heat_map_and_says_what_was_left_out(tmp_path: Path) -> None:
    assert invoke([*HUNT, "--report", str(tmp_path)]) == 0
    text = page_text(tmp_path, 0)
    assert (
        "No fault survived" in text
        and "further faults, which the options left out" in text
        and "tensor, score" in text
    )
    assert "H, ownership: 1 of 1" in text, "a cell of the heat map"


def test_survivors_come_first_with_what_to_do(tmp_path: Path) -> None:
    assert (
        invoke(
            [
                *HUNT,
                "--budget",
                "0.0001",
                "--mutant",
                "memory-restored-without-a-head",
                "--report",
                str(tmp_path),
            ]
        )
        == 1
    )
    text = page_text(tmp_path, 1)
    command = "cachewitness mutants --mutant block-leaked --budget 600"
    assert text.index(command) < text.index("All faults") and "1 of 1 faults survived" in text
    assert text.index("torch is missing") < text.index(command)
    rows = [
        page_reports.row("a", killed=False, detectors={}),
        page_reports.row("b", not_run="gone", detectors={}),
    ]
    assert "survived" not in heat_map.of_rows(rows) and "1 seeded faults" in heat_map.of_rows(rows)


def test_a_command_of_the_page_is_one_command(tmp_path: Path) -> None:
    """Whatever a report of somebody else calls a fault."""
    text = html.unescape(_drawn(page_reports.hunt("a; b"), tmp_path))
    assert "cachewitness mutants --mutant 'a; b-1' --budget 600" in text
    assert "cachewitness run --engine 'reference:mutant=a; b-1'" in text


def test_a_hunt_that_was_interrupted_names_whose_turn_did_not_come(tmp_path: Path) -> None:
    assert "interrupted before the turn of a-fault-4;" in _drawn(page_reports.hunt(), tmp_path)


def test_wrong_answers_are_beside_the_right_ones_and_traces_step_by_step(tmp_path: Path) -> None:
    assert (
        invoke(["consume", str(LIVES), "--engine", FAULT, "--quiet", "--report", str(tmp_path)])
        == 1
    )
    text = page_text(tmp_path, 1)
    report = json.loads((tmp_path / "report.json").read_text())
    first, *_ = [failure for failure in report["files"][0]["failures"] if "stored" in failure]
    assert first["vector"] in text and "Not run: nothing was left out" in text
    page = (tmp_path / "report.html").read_text()
    films = [
        json.loads(one)
        for one in re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    ]
    assert len(films) == len(list((tmp_path / "failures").glob("*.history.jsonl"))) > 1
    assert any(frame["failing"] for film in films for frame in film["frames"])


def test_an_engine_that_breaks_when_it_runs_again_takes_the_verdict_from_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page wants the history of a wrong answer, for which the engine runs once more."""

    def broken(*_: Any) -> Any:
        raise OwnMistake("the adapter has lost its pool")

    monkeypatch.setattr("cachewitness.vectors.document.lived", broken)
    assert (
        invoke(["consume", str(LIVES), "--engine", FAULT, "--quiet", "--report", str(tmp_path)])
        == 1
    )
    printed = capsys.readouterr()
    assert (
        "it cannot be run again: OwnMistake: the adapter has lost its pool" in printed.err
        and "failed: " in printed.out
    )
    assert "its history was not stored" in page_text(tmp_path, 1)


def test_vectors_that_cannot_be_asked_are_said_not_to_be_run(tmp_path: Path) -> None:
    openvino = vectors.folder() / "openvino_genai" / "lookup.json"
    ended = invoke(
        [
            "consume",
            str(openvino),
            "--engine",
            "reference:mutant=block-leaked",
            "--report",
            str(tmp_path),
        ]
    )
    assert ended == 5
    text = page_text(tmp_path, 5)
    assert "the engine could be asked nothing" in text and "Not run: " + str(openvino) in text


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the result of a campaign that finds something, and the folder that it has its state
    and its traces in.
    """
    folder = tmp_path_factory.mktemp("campaign")
    return driven(planned(SMALL, folder), settings(folder, workers=1), InTurn(perform)), folder


@pytest.fixture
def driven_before(run_of: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have a campaign come to what it came to before; return its command."""
    result, folder = run_of
    driver = type("Driven", (), {"__init__": lambda self, *_: None, "run": lambda self: result})
    monkeypatch.setattr("cachewitness.sessions.campaign.driver.Driver", driver)
    return [
        "campaign",
        str(folder / "campaign.toml"),
        "--workers",
        "1",
        "--traces",
        str(folder / "traces"),
    ]


def test_a_campaign_shows_its_findings_step_by_step(
    driven_before: list[str], tmp_path: Path
) -> None:
    assert invoke([*driven_before, "--report", str(tmp_path)]) == 1
    text = page_text(tmp_path, 1)
    page = (tmp_path / "report.html").read_text()
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["findings"] and page.count('class="film"') == len(report["findings"])
    for finding in report["findings"]:
        assert finding["anomaly"] in text and Path(finding["stored"]["history"]).is_file()
    assert "was found as" in text and "Not run on reference, vllm" in text


COMMANDS = {
    "cachewitness.sessions.mutants.report_page.of_hunt": HUNT,
    "cachewitness.vectors.page.of_vectors": [
        "consume",
        str(LIVES.with_name("split.json")),
        "--quiet",
    ],
    "cachewitness.sessions.campaign.page.of_campaign": ["campaign"],
}


@pytest.mark.parametrize("drawn", COMMANDS)
def test_a_page_that_cannot_be_drawn_is_a_line_and_takes_the_verdict_from_nobody(
    drawn: str,
    driven_before: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = driven_before if "campaign" in drawn else COMMANDS[drawn]
    monkeypatch.setattr(drawn, lambda *_: {}["no"])
    assert invoke([*command, "--report", str(tmp_path)]) == (1 if command is driven_before else 4)
    assert "report.html: cannot be drawn: KeyError: 'no'\n" in capsys.readouterr().err
    assert (tmp_path / "report.json").is_file() and not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("drawn", COMMANDS)
def test_a_folder_that_cannot_be_written_to_ends_it_before_anything_runs(
    drawn: str,
    driven_before: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("it runs")

    for place in (
        "cachewitness.sessions.campaign.driver.Driver",
        "cachewitness.sessions.mutants.matrix.run",
        "cachewitness.vectors.consume.consume",
    ):
        monkeypatch.setattr(place, never)
    (tmp_path / "file").write_text("")
    command = driven_before if "campaign" in drawn else COMMANDS[drawn]
    assert invoke([*command, "--report", str(tmp_path / "file")]) == 4
    assert f"--report: {tmp_path / 'file'} cannot be written to" in capsys.readouterr().err


def test_vectors_in_the_folder_of_the_report_are_not_cleared_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    shutil.copy(LIVES, path)
    assert invoke(["consume", str(path), "--report", str(tmp_path)]) == 4
    assert (
        "lies in it; name another folder" in capsys.readouterr().err
        and path.read_bytes() == LIVES.read_bytes()
    )


MADE = (page_reports.hunt, page_reports.consumed, page_reports.campaign)


def _drawn(document: Any, folder: Path) -> str:
    (folder / "report.json").write_bytes(msgspec.json.encode(document))
    assert invoke(["report", str(folder)]) == 0
    return page_text(folder, document.exit_code)


@pytest.mark.parametrize("made", MADE)
def test_names_with_markup_are_text(made: Any, tmp_path: Path) -> None:
    _drawn(made(EVIL), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert (
        "<img" not in page
        and "&lt;img" in page
        and page.count("</script>") == page.count("<script")
    )


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 5, 130])
@pytest.mark.parametrize("made", MADE)
def test_a_page_is_green_only_for_a_pass(made: Any, code: int, tmp_path: Path) -> None:
    _drawn(made(code=code), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert ('class="verdict pass"' in page) == (code == 0) and ('class="verdict fail"' in page) == (
        code == 1
    )


@pytest.mark.parametrize(
    ("made", "field"), [(page_reports.consumed, "valid"), (page_reports.hunt, "witness")]
)
def test_a_number_without_end_is_text_or_refused(
    made: Any, field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a count it is shown; what is computed with it is no figure."""
    report = re.sub(
        rf'"{field}":\d+', f'"{field}":1{"0" * 400}', msgspec.json.encode(made()).decode()
    )
    (tmp_path / "report.json").write_text(report)
    code = invoke(["report", str(tmp_path)])
    error = capsys.readouterr().err
    assert (code, error) == (0, "") or (
        code == 4 and "report.json: a number in it is too large" in error
    )


@pytest.mark.skipif(not CHROMIUM, reason="needs chromium, to see the page as a browser does")
def test_a_browser_shows_the_film_of_a_campaign(driven_before: list[str], tmp_path: Path) -> None:
    """Without an error on its console, and not wider than a phone's screen."""
    assert invoke([*driven_before, "--report", str(tmp_path / "out")]) == 1
    page = (tmp_path / "out" / "report.html").read_text()
    wide = page.replace(
        "</body>", "<script>document.title = document.documentElement.scrollWidth</script></body>"
    )
    (tmp_path / "wide.html").write_text(wide)
    dom = seen(tmp_path / "wide.html", tmp_path / "profile", "--window-size=500,800")
    assert "(here it fails)" in dom
    assert int(re.findall(r"<title>(\d+)</title>", dom)[0]) <= 500
