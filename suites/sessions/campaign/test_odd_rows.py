"""A row of the database that cachewitness did not write is refused in one line and never
counted.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from shutil import copy

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.core.result import EXIT_FAIL, EXIT_USAGE
from cachewitness.sessions.campaign.database import Database
from cachewitness.sessions.campaign.plan import canary_unit
from cachewitness.sessions.campaign.queue import OddRow, Queue
from cachewitness.sessions.campaign.store import opened
from cachewitness.sessions.campaign.unit import entered
from cachewitness.sessions.campaign.worker import carry_out
from suites.support.campaigns import FAULTY, InTurn, Remembered, came_to, driven, planned, settings

pytestmark = pytest.mark.usefixtures("at_once")

CLEAN = (
    'name = "clean"\nstreams = ["main"]\n[[engines]]\nengine = "reference"\nlayouts = ["full"]\n'
)
BUDGET = "[budget]\ntraces = 4\nper_unit = 2\nshrink = 1\n"
LAST = "campaign = (SELECT id FROM campaigns) AND place = 2"
ODD = {
    "no outcome": ("outcome = NULL", "is done without an outcome"),
    "a text": ("outcome = 'passed'", "is done without an outcome"),
    "a number": ("outcome = 7", "is done without an outcome"),
    "bytes": ("outcome = x'00ff'", "has an outcome that is not as it was written"),
    "another unit's": (
        "outcome = (SELECT outcome FROM units AS other WHERE other.place = 1)",
        "has an outcome that is not as it was written",
    ),
    "half": ("outcome = substr(outcome, 1, 40)", "has an outcome that is not as it was written"),
    "negative": (
        """outcome = CAST(replace(CAST(outcome AS TEXT), '"traces":', '"traces":-') AS BLOB)""",
        "has an outcome that is not as it was written",
    ),
    "state": ("state = 'passed'", "is none that a campaign writes (state 'passed', place 2"),
    "fence": ("fence = -1", "fence -1"),
    "attempts": ("attempts = 'many'", "attempts 'many'"),
    "judged": ("judged = 7", "judged 7"),
    "expires": ("expires = 'soon'", "expires 'soon'"),
    "finished": ("finished = 'yesterday'", "finished 'yesterday'"),
    "place": ("place = 'first'", "place 'first'"),
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, remembered: Remembered) -> Path:
    """Return the folder of a campaign without a finding that is done."""
    folder = tmp_path_factory.mktemp("done")
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
    state = tmp_path / "state.sqlite"
    copy(done / "state.sqlite", state)
    made = planned(CLEAN + BUDGET, done)
    kept = settings(done, database=str(state))
    whole = came_to(driven(made, kept, InTurn(remembered)))
    assert edited(state, f"UPDATE units SET {change} WHERE {LAST}") == 1
    with pytest.raises(UsageError) as refused:
        driven(made, kept, InTurn(remembered))
    line = str(refused.value)
    key = made.entries[2][0]
    assert why in line and f"the row of unit {key} in the table units" in line and "\n" not in line
    remedy = f"DELETE FROM units WHERE unit = '{key}'"
    assert line.endswith(f"; {remedy} has the unit done again")
    assert edited(state, remedy) == 1
    assert came_to(driven(made, kept, InTurn(remembered))) == whole


def test_a_row_of_a_unit_that_was_not_planned_is_refused(
    done: Path, tmp_path: Path, remembered: Remembered
) -> None:
    """Findings to be shrunk are entered later and are no such unit: the campaign that is done
    has one, its self-test's.
    """
    state = tmp_path / "state.sqlite"
    copy(done / "state.sqlite", state)
    made = planned(CLEAN + BUDGET, done)
    kept = settings(done, database=str(state))
    key, spec = entered(canary_unit(made.self_test, seed=77))
    columns = "'waiting', 0, 0, '', 0, 0, 0, NULL"
    edited(
        state, f"INSERT INTO units SELECT id, 9, '{key}', x'{spec.hex()}', {columns} FROM campaigns"
    )
    with pytest.raises(
        OddRow,
        match=(
            f"unit {key} in the table units is of no unit that this campaign has .fuzz canary,"
            " seed 77"
        ),
    ):
        driven(made, kept, InTurn(remembered))


def test_a_unit_that_was_changed_is_not_carried_out(tmp_path: Path) -> None:
    """Else the outcome of something else would count for it."""
    made = planned(CLEAN + BUDGET, tmp_path)
    kept = settings(tmp_path)
    with closing(Database(kept.database)) as database:
        queue = Queue(database, made.id, 3)
        queue.enrol(made.name, kept.traces, made.entries)
        database.changed("UPDATE units SET spec = ? WHERE place = 0", made.entries[1][1])
        leased = queue.lease("w", 60)
        assert leased is not None
        with pytest.raises(
            OddRow,
            match=(
                f"unit {made.entries[0][0]} in the table units is not what was stored under"
                " this key"
            ),
        ):
            carry_out(leased, queue, opened(kept.traces), kept.given(made.id, "w", kept.traces))


def test_findings_are_told_beside_an_odd_row(tmp_path: Path, remembered: Remembered) -> None:
    """Also those of units behind it; and the command says it in its reasons."""
    made = planned(CLEAN.replace("reference", FAULTY) + BUDGET, tmp_path)
    kept = settings(tmp_path)
    whole = driven(made, kept, InTurn(remembered))
    assert edited(Path(kept.database), "UPDATE units SET outcome = x'00' WHERE place = 0") == 1
    again = driven(made, kept, InTurn(remembered))
    assert again.totals.exit_code == EXIT_FAIL and came_to(whole)[4][0] == came_to(again)[4][0]
    assert any("DELETE FROM units" in reason for reason in again.totals.reasons)


def test_an_odd_row_is_one_line_and_exit_code_4(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state.sqlite"
    copy(done / "state.sqlite", state)
    assert edited(state, f"UPDATE units SET outcome = NULL WHERE {LAST}") == 1
    places = ["--database", str(state), "--traces", str(done / "traces"), "--workers", "0"]
    assert invoke(["campaign", str(done / "campaign.toml"), *places]) == EXIT_USAGE
    captured = capsys.readouterr()
    assert (
        captured.out == "" and captured.err.count("\n") == 1 and "DELETE FROM units" in captured.err
    )


def test_a_count_that_is_none_is_one_line(tmp_path: Path) -> None:
    """Of outcomes that came too late, in the row of the campaign itself."""
    kept = settings(tmp_path)
    with closing(Database(kept.database)) as database:
        queue = Queue(database, "c", 3)
        queue.enrol("c", kept.traces, [])
        assert queue.late == 0
        database.changed("UPDATE campaigns SET late = 'x'")
        with pytest.raises(
            UsageError,
            match=r"the row of campaign c .* \(late 'x'\); UPDATE campaigns SET late = 0 mends it",
        ):
            print(queue.late)
