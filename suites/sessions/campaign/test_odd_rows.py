"""A row of the database that cachewitness did not write is refused in one line and never
counted.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from shutil import copytree

import pytest

from cachewitness.cli import invoke
from cachewitness.core.result import EXIT_FAIL, EXIT_USAGE
from cachewitness.sessions.campaign.results import OddRow
from suites.support.campaigns import FAULTY, InTurn, Remembered, came_to, driven, planned, settings

pytestmark = pytest.mark.usefixtures("at_once")

CLEAN = (
    'name = "clean"\nstreams = ["main"]\n[[engines]]\nengine = "reference"\nlayouts = ["full"]\n'
)
BUDGET = "[budget]\ntraces = 4\nper_unit = 2\nshrink = 1\n"
ODD = {
    "no bytes": ("outcome = x''", "is done without an outcome"),
    "a text": ("outcome = 'passed'", "is done without an outcome"),
    "a number": ("outcome = 7", "is done without an outcome"),
    "bytes": ("outcome = x'00ff'", "has an outcome that is not as it was written"),
    "another unit's": (
        "outcome = (SELECT outcome FROM results AS other WHERE other.unit <> results.unit)",
        "has an outcome that is not as it was written",
    ),
    "half": ("outcome = substr(outcome, 1, 40)", "has an outcome that is not as it was written"),
    "negative": (
        """outcome = CAST(replace(CAST(outcome AS TEXT), '"traces":', '"traces":-') AS BLOB)""",
        "has an outcome that is not as it was written",
    ),
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, remembered: Remembered) -> Path:
    """Return the folder of a campaign without a finding that is done."""
    folder = tmp_path_factory.mktemp("odd") / "done"
    folder.mkdir()
    driven(planned(CLEAN + BUDGET, folder), settings(folder), InTurn(remembered))
    return folder


def edited(state: Path, statement: str) -> int:
    with closing(sqlite3.connect(state)) as database, database:
        return database.execute(statement).rowcount


@pytest.mark.parametrize("name", ODD)
def test_an_odd_row_is_refused_and_its_unit_done_again(
    name: str, done: Path, tmp_path: Path, remembered: Remembered
) -> None:
    """The line says which row and why, and how the unit is done again; done so, the campaign
    comes to what it came to.
    """
    change, why = ODD[name]
    copytree(done, tmp_path / "done")
    state = tmp_path / "done/state.sqlite"
    made = planned(CLEAN + BUDGET, done)
    kept = settings(state.parent)
    whole = came_to(driven(made, kept, InTurn(remembered)))
    key = made.entries[2][0]
    assert edited(state, f"UPDATE results SET {change} WHERE unit = '{key}'") == 1
    with pytest.raises(OddRow) as refused:
        driven(made, kept, InTurn(remembered))
    line = str(refused.value)
    assert why in line and f"row of unit {key} in the table results" in line and "\n" not in line
    remedy = f"DELETE FROM results WHERE unit = '{key}'"
    assert line.endswith(f"; {remedy} has the unit done again")
    assert edited(state, remedy) == 1
    assert came_to(driven(made, kept, InTurn(remembered))) == whole


def test_findings_are_told_beside_an_odd_row(tmp_path: Path, remembered: Remembered) -> None:
    """Also those of units behind it; and the command says it in its reasons."""
    made = planned(CLEAN.replace("reference", FAULTY) + BUDGET, tmp_path)
    kept = settings(tmp_path)
    whole = driven(made, kept, InTurn(remembered))
    key = made.entries[0][0]
    assert (
        edited(Path(kept.database), f"UPDATE results SET outcome = x'00' WHERE unit = '{key}'") == 1
    )
    again = driven(made, kept, InTurn(remembered))
    assert again.totals.exit_code == EXIT_FAIL and came_to(whole)[4][0] == came_to(again)[4][0]
    assert any("DELETE FROM results" in reason for reason in again.totals.reasons)


def test_an_odd_row_is_one_line_and_exit_code_4(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copytree(done, tmp_path / "done")
    state = tmp_path / "done/state.sqlite"
    assert edited(state, "UPDATE results SET outcome = x''") > 1
    places = ["--database", str(state), "--traces", str(tmp_path / "done/traces")]
    assert invoke(["campaign", str(done / "campaign.toml"), *places]) == EXIT_USAGE
    captured = capsys.readouterr()
    assert (
        captured.out == ""
        and captured.err.count("\n") == 1
        and "DELETE FROM results" in captured.err
    )
