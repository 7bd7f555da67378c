"""Shares of a campaign, each with a database of its own, come to what the whole comes to once they
are merged; and none of them is taken for it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cachewitness.cli import invoke
from cachewitness.core.result import EXIT_FAIL, EXIT_PASS, EXIT_UNKNOWN, EXIT_USAGE
from cachewitness.sessions.campaign import executors
from cachewitness.sessions.campaign.database import Database
from cachewitness.sessions.campaign.driver import Result
from cachewitness.sessions.campaign.merge import merge
from cachewitness.sessions.campaign.plan import share_of
from suites.support.campaigns import (
    CLEAN,
    FAULTY,
    SMALL,
    InTurn,
    Remembered,
    came_to,
    driven,
    planned,
    settings,
)

pytestmark = pytest.mark.usefixtures("at_once")

SINGLY = f"{CLEAN}per_unit = 1\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, remembered: Remembered) -> tuple[Path, Result]:
    """Return the folder of a campaign that was done at once, and what it came to."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, driven(planned(SMALL, folder), settings(folder), InTurn(remembered))


def shares(
    folder: Path, whole: tuple[Path, Result], plain: Remembered, count: int, but: int = 0
) -> list[Path]:
    """Carry out the shares of a campaign, all but one; return their databases."""
    source, _ = whole
    databases = []
    for number in range(1, count + 1):
        if number != but:
            kept = settings(folder / str(number))
            driven(share_of(planned(SMALL, source), number, count), kept, InTurn(plain))
            databases.append(Path(kept.database))
    return databases


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_shares_come_to_what_the_whole_comes_to(
    count: int, tmp_path: Path, whole: tuple[Path, Result], remembered: Remembered
) -> None:
    databases = shares(tmp_path, whole, remembered, count)
    into = tmp_path / "merged/state.sqlite"
    assert merge(databases, into).missing == []
    for database in databases:
        shutil.rmtree(database.parent)
    made = planned(SMALL, whole[0])
    before = dict(remembered.done)
    result = driven(made, settings(into.parent), InTurn(remembered))
    assert came_to(result) == came_to(whole[1])
    assert result.progress.before >= len(made.units)
    again = sum(remembered.done.values()) - sum(before.values())
    assert again == result.progress.done - result.progress.before
    assert merge([into], tmp_path / "copy/state.sqlite").missing == []


def test_merging_twice_counts_nothing_twice(
    tmp_path: Path, whole: tuple[Path, Result], remembered: Remembered
) -> None:
    databases = shares(tmp_path, whole, remembered, 2)
    into = tmp_path / "merged/state.sqlite"
    for _ in range(2):
        merge([*databases, databases[0]], into)
    result = driven(planned(SMALL, whole[0]), settings(into.parent), InTurn(remembered))
    assert came_to(result) == came_to(whole[1])


def test_a_share_that_is_missing_is_done(
    tmp_path: Path, whole: tuple[Path, Result], remembered: Remembered
) -> None:
    """It is not as if there had been nothing in it."""
    into = tmp_path / "merged/state.sqlite"
    merge(shares(tmp_path, whole, remembered, 2, but=1), into)
    made = planned(SMALL, whole[0])
    short = driven(made, settings(into.parent)._replace(seconds=1e-9), InTurn(remembered))
    assert short.totals.undone and short.totals.exit_code not in (EXIT_PASS,)
    result = driven(made, settings(into.parent), InTurn(remembered))
    assert came_to(result) == came_to(whole[1]) and not result.totals.undone


def test_a_finding_whose_trace_is_gone_is_merged_and_its_unit_done_again(
    tmp_path: Path, whole: tuple[Path, Result], remembered: Remembered
) -> None:
    source, _ = whole
    copied = tmp_path / "share"
    shutil.copytree(source, copied)
    shutil.rmtree(copied / "traces")
    into = tmp_path / "merged/state.sqlite"
    merged = merge([copied / "state.sqlite"], into)
    assert merged.found and all("cannot be read" in line for line in merged.missing)
    made = planned(SMALL, source)
    kept = settings(into.parent)
    short = driven(made, kept._replace(seconds=1e-9), InTurn(remembered))
    assert short.totals.exit_code == EXIT_FAIL and short.totals.found == whole[1].totals.found
    assert came_to(driven(made, kept, InTurn(remembered))) == came_to(whole[1])


def command(*words: str) -> list[str]:
    return ["campaign", *words]


def test_a_share_has_no_verdict_and_the_merged_campaign_has(
    tmp_path: Path,
    remembered: Remembered,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The commands of a CI: two shares, and what judges them together."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(executors, "Processes", lambda: InTurn(remembered))
    Path("c.toml").write_text(SINGLY)
    for number in "12":
        database = ["--database", f"{number}/state.sqlite", "--traces", f"{number}/traces"]
        assert invoke(command("c.toml", "--shard", f"{number}/2", *database)) == EXIT_PASS
        out = capsys.readouterr().out
        assert f"no verdict (exit code 0): share {number}/2 is done, nothing found" in out
        assert "verdict: pass" not in out and "  pass" not in out
    named = ["--database", "all/state.sqlite", "--traces", "all/traces", "--json"]
    assert invoke(command("merge", "1/state.sqlite", "2/state.sqlite", "-o", named[1])) == 0
    assert "all/state.sqlite: " in capsys.readouterr().out
    code = invoke(command("c.toml", *named))
    summary = json.loads(capsys.readouterr().out)
    assert code == summary["exit_code"] != EXIT_FAIL
    assert summary["done"] == summary["units"] == summary["done_before"] == 7
    assert summary["self_test"]["found"]


def test_a_share_with_a_finding_fails_and_one_without_its_units_is_unknown(
    tmp_path: Path, remembered: Remembered
) -> None:
    faulty = share_of(planned(SINGLY.replace('"reference"', f'"{FAULTY}"'), tmp_path), 1, 1)
    result = driven(faulty, settings(tmp_path / "faulty"), InTurn(remembered))
    assert result.totals.exit_code == EXIT_FAIL
    clean = share_of(planned(SINGLY, tmp_path), 1, 2)
    kept = settings(tmp_path / "clean", attempts=1)
    result = driven(clean, kept, InTurn(remembered, deadly="fuzz main, seed 0, traces 0"))
    assert result.totals.exit_code == EXIT_UNKNOWN and len(result.totals.undone) == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["c.toml", "--shard", "3/2"], "'3/2' is not K/N with K from 1 to N, such as 1/3"),
        (["c.toml", "--shard", "0/2"], "is not K/N"),
        (["c.toml", "--shard", "x"], "is not K/N"),
        (["c.toml", "--shard", "1/2", "--json"], "--json: a share has no verdict"),
        (["c.toml", "--shard", "1/2", "--report", "r"], "--report: a share has no verdict"),
        (["merge", "c.toml"], "Missing option '-o'"),
        (["merge", "-o", "all"], "Missing argument 'DATABASES...'"),
        (["merge", "no.sqlite", "-o", "all"], "'no.sqlite' does not exist"),
        (["merge", "c.toml", "-o", "all"], "c.toml: file is not a database"),
        (["merge", "empty.sqlite", "-o", "all"], "empty.sqlite: no such table: results"),
        (
            ["merge", "c.toml", "-o", "postgresql://me:hidden@h/db"],
            "me@h/db: it is a file; a server",
        ),
        (["merge", "empty.sqlite", "-o", "./empty.sqlite"], "it is one of those that are merged"),
    ],
)
def test_what_does_not_fit_is_one_line(
    words: list[str],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(SINGLY + "# " * 400)
    Database("empty.sqlite").close()
    assert invoke(command(*words)) == EXIT_USAGE
    error = capsys.readouterr().err
    assert line in error and error.count("\n") == 1
