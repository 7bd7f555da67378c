"""A database that goes away while a campaign runs ends it in one line: no pass, no traceback,
and what was found is told.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.core.result import EXIT_FAIL, EXIT_USAGE
from cachewitness.sessions.campaign import executors
from cachewitness.sessions.campaign.database import Database
from cachewitness.sessions.campaign.driver import FindingsLost
from cachewitness.sessions.campaign.results import Results
from cachewitness.sessions.campaign.store import Store, opened
from cachewitness.sessions.campaign.unit import Outcome, Unit
from suites.support.campaigns import FAULTY, InTurn, Remembered, driven, planned, settings

pytestmark = pytest.mark.usefixtures("at_once")

TINY = (
    'name = "tiny"\nstreams = ["main"]\n[[engines]]\nengine = "{}"\nlayouts ='
    ' ["full"]\n[budget]\ntraces = 4\nper_unit = 2\n'
)
GONE = "its file was removed or replaced while it was in use"
ENTERED = 3


def removed(path: Path) -> None:
    path.unlink()


def replaced(path: Path) -> None:
    path.unlink()
    Database(str(path)).close()


@pytest.mark.parametrize("change", [removed, replaced])
@pytest.mark.parametrize(("engine", "code"), [("reference", EXIT_USAGE), (FAULTY, EXIT_FAIL)])
def test_a_database_that_goes_away_is_one_line(
    engine: str,
    code: int,
    change: Callable[[Path], None],
    tmp_path: Path,
    remembered: Remembered,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command has entered some results, and knows of what was found until then."""
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(TINY.format(engine))
    monkeypatch.setattr(executors, "Processes", lambda: InTurn(remembered))
    enter = Results.enter
    left = iter(range(ENTERED))

    def entered(results: Results, key: str, outcome: Outcome, *, own: bool) -> Outcome:
        if next(left, None) is None:
            change(Path("state.sqlite"))
        return enter(results, key, outcome, own=own)

    monkeypatch.setattr(Results, "enter", entered)
    assert (
        invoke(
            [
                "campaign",
                "c.toml",
                "--workers",
                "1",
                "--database",
                "state.sqlite",
                "--traces",
                "traces",
            ]
        )
        == code
    )
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if line.startswith("cachewitness: ")]
    assert captured.out == "" and len(lines) == 1 and GONE in lines[0] and "DELETE" not in lines[0]
    assert ("findings were met before: lost-hit by reuse-floor" in lines[0]) == (code == EXIT_FAIL)


def test_what_cannot_be_entered_is_told(tmp_path: Path, remembered: Remembered) -> None:
    """The first findings come when the database is gone; the self-test's are none."""
    made = planned(TINY.format(FAULTY), tmp_path)
    kept = settings(tmp_path, workers=1)
    found = next(
        met.finding for unit in made.units[1:] for met in remembered(unit, opened(kept.traces)).met
    )

    def without(unit: Unit, store: Store) -> Outcome:
        outcome = remembered(unit, store)
        if not getattr(unit, "self_test", False) and outcome.met:
            Path(kept.database).unlink()
        return outcome

    with pytest.raises(FindingsLost, match=GONE) as error:
        driven(made, kept, InTurn(without))
    assert f"could not be entered, the first being {found.anomaly} by" in str(error.value)
    assert found.sentence in str(error.value)
    clean = planned(TINY.format("reference"), tmp_path)
    gone = settings(tmp_path / "gone", workers=1)

    def self_test_alone(unit: Unit, store: Store) -> Outcome:
        Path(gone.database).unlink()
        return remembered(unit, store)

    with pytest.raises(UsageError, match=GONE) as error:
        driven(clean, gone, InTurn(self_test_alone))
    assert not isinstance(error.value, FindingsLost)


class Stopped(InTurn):
    """It notes that it was stopped, with the units that it was at."""

    stopped = 0

    def stop(self) -> None:
        self.stopped += 1
        super().stop()


def test_all_workers_are_ended_though_the_database_is_gone(
    tmp_path: Path, remembered: Remembered
) -> None:
    made = planned(TINY.format("reference"), tmp_path)
    kept = settings(tmp_path)
    executor = Stopped(remembered)
    with pytest.raises(UsageError, match=GONE):
        driven(made, kept, executor, lambda _: Path(kept.database).unlink(missing_ok=True))
    assert executor.stopped == 1
