"""A database that goes away while a campaign runs ends it in one line: no pass, no traceback,
and what was found is told.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from cachewitness._util import strays
from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.core.result import EXIT_FAIL, EXIT_USAGE
from cachewitness.sessions.campaign import executors
from cachewitness.sessions.campaign import worker as serving
from cachewitness.sessions.campaign.database import Database
from cachewitness.sessions.campaign.executors import Ended, Processes
from cachewitness.sessions.campaign.perform import perform
from cachewitness.sessions.campaign.queue import Queue, Rest
from cachewitness.sessions.campaign.unit import Outcome, Unit
from cachewitness.sessions.campaign.worker import EXIT_LOST, FindingsLost, Given, carry_out
from suites.support.campaigns import FAULTY, InTurn, Remembered, driven, planned, settings

pytestmark = pytest.mark.usefixtures("at_once")

TINY = (
    'name = "tiny"\nstreams = ["main"]\n[[engines]]\nengine = "{}"\nlayouts ='
    ' ["full"]\n[budget]\ntraces = 4\nper_unit = 2\n'
)
GONE = "its file was removed or replaced while it was in use"
LOOKS = 6


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
    """The command has looked some times, and knows of what was found until then."""
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(TINY.format(engine))
    monkeypatch.setattr(executors, "Processes", lambda: InTurn(remembered))
    rest = Queue.rest
    left = iter(range(LOOKS))

    def looked(queue: Queue, most: int) -> Rest:
        if next(left, None) is None:
            change(Path("state.sqlite"))
        return rest(queue, most)

    monkeypatch.setattr(Queue, "rest", looked)
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


def test_a_worker_tells_what_it_could_not_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One without a finding, or with the self-test's alone, ends as any that is refused."""
    kept = settings(tmp_path)
    made = planned(TINY.format(FAULTY), tmp_path)
    given = kept.given(made.id, "w", kept.traces)
    found = perform(made.units[2], serving.opened(kept.traces))
    for place, outcome, raised in (
        (0, found, UsageError),
        (1, Outcome(), UsageError),
        (1, found, FindingsLost),
    ):
        with closing(Database(kept.database)) as database:
            queue = Queue(database, made.id, 3)
            queue.enrol(made.name, kept.traces, made.entries)
            *_, leased = [queue.lease("w", 60) for _ in range(place + 1)]
            assert leased is not None

            def without(unit: Unit, store: object, came_to: Outcome = outcome) -> Outcome:
                removed(Path(kept.database))
                return came_to

            monkeypatch.setattr(serving, "perform", without)
            with pytest.raises(UsageError, match=GONE) as error:
                carry_out(leased, queue, serving.opened(kept.traces), given)
            assert type(error.value) is raised
    assert found.met[0].finding.sentence in str(error.value)


def ended_with(code: int) -> Ended | None:
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - `stop` closes it
    process = subprocess.Popen(
        [sys.executable, "-c", f"import sys; print('a line', file=sys.stderr); sys.exit({code})"],
        stderr=errors,
    )
    process.wait()
    handle = executors._Process(process, errors, strays.new())
    try:
        return Processes().ended(handle)
    finally:
        Processes().stop(handle)


def test_the_exit_code_of_a_worker_tells_that_findings_are_lost() -> None:
    assert ended_with(EXIT_LOST) == Ended("a line", refused=True, lost=True)
    assert ended_with(EXIT_USAGE) == Ended("a line", refused=True)


class Losing:
    """Its workers met findings, and could not enter them; `running` are not stopped yet."""

    def __init__(self, lost: str, gone: Path | None = None) -> None:
        self._lost = lost
        self._gone = gone
        self.running = set[str]()

    def start(self, given: Given) -> str:
        self.running.add(given.worker)
        return given.worker

    def ended(self, handle: str) -> Ended | None:
        if self._gone:
            self._gone.unlink(missing_ok=True)
        return Ended(self._lost, refused=True, lost=True) if self._lost else None

    def stop(self, handle: str) -> None:
        self.running.discard(handle)


def test_a_campaign_whose_workers_lost_findings_tells_them(tmp_path: Path) -> None:
    made = planned(TINY.format(FAULTY), tmp_path)
    with pytest.raises(FindingsLost, match=r"said: the disk is full; the finding$"):
        driven(made, settings(tmp_path), Losing("the disk is full; the finding"))


def test_all_workers_are_ended_though_the_database_is_gone(tmp_path: Path) -> None:
    made = planned(TINY.format("reference"), tmp_path)
    kept = settings(tmp_path)
    workers = Losing("", Path(kept.database))
    with pytest.raises(UsageError, match=GONE):
        driven(made, kept, workers)
    assert workers.running == set()
