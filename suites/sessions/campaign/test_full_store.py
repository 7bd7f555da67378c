"""A store of traces that takes or gives nothing takes a finding from nobody."""

from __future__ import annotations

import errno
from pathlib import Path
from shutil import rmtree

import msgspec
import pytest

from cachewitness._util.errors import UsageError
from cachewitness.cli import campaign_report
from cachewitness.core.result import EXIT_FAIL
from cachewitness.report import terminal
from cachewitness.sessions.campaign.executors import Ended
from cachewitness.sessions.campaign.perform import perform, with_those_before
from cachewitness.sessions.campaign.store import Store, opened
from cachewitness.sessions.campaign.summary import document
from cachewitness.sessions.campaign.unit import Fuzzed, Outcome, Shrunk, Unit
from suites.support.campaigns import FAULTY, InTurn, Remembered, came_to, driven, planned, settings

pytestmark = pytest.mark.usefixtures("at_once")

TINY = f'name = "tiny"\nstreams = ["main"]\n[[engines]]\nengine = "{FAULTY}"\nlayouts = ["full"]\n'
BUDGET = "[budget]\ntraces = 4\nper_unit = 2\nshrink = 1\n"
FULL = "traces t: x cannot be written (No space left on device)"


class Full:
    """A store that takes nothing."""

    def put(self, content: bytes) -> str:
        raise UsageError(FULL)

    def get(self, digest: str) -> bytes:
        raise AssertionError("nothing is asked for")

    def place(self, digest: str) -> str:
        raise AssertionError("nothing is there")


class Refused(InTurn):
    """Its workers refuse a unit where the store fails."""

    def wait(self, seconds: float) -> list[Ended]:
        key = self._tasks[0].key if self._tasks else ""
        try:
            return super().wait(seconds)
        except UsageError as error:
            return [Ended(key, why=str(error), refused=True, tries=0)]


def test_a_trace_that_cannot_be_written_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(part: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = opened(str(tmp_path))
    with (
        monkeypatch.context() as patched,
        pytest.raises(UsageError, match=r"cannot be written \(No space left on device\)"),
    ):
        patched.setattr(Path, "replace", full)
        store.put(b"content")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert store.get(store.put(b"content")) == b"content"


def test_a_finding_is_told_though_the_store_takes_no_trace(
    tmp_path: Path, remembered: Remembered
) -> None:
    """The campaign fails and says what is missing; once there is room, the same command comes to
    what it would have.
    """
    made = planned(TINY + BUDGET, tmp_path)
    kept = settings(tmp_path)

    def full(unit: Unit, store: Store) -> Outcome:
        return (
            remembered(unit, store) if getattr(unit, "self_test", False) else perform(unit, Full())
        )

    result = driven(made, kept, InTurn(full))
    (subject,) = result.totals.subjects.values()
    assert result.totals.exit_code == EXIT_FAIL and subject.found and not result.totals.distinct
    assert f"have no trace, since the store does not take it ({FULL})" in result.totals.reasons[0]
    whole = driven(made, settings(tmp_path / "whole"), InTurn(remembered))
    assert came_to(driven(made, kept, InTurn(remembered))) == came_to(whole)
    assert whole.totals.distinct


def test_the_canary_is_not_found_without_its_trace(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No space left"):
        perform(planned(TINY + BUDGET, tmp_path).units[0], Full())


def test_findings_are_told_though_no_worker_can_go_on(
    tmp_path: Path, remembered: Remembered
) -> None:
    """The disk is full once the findings are stored, so that none can be shrunk."""
    made = planned(TINY + BUDGET, tmp_path)

    def full(unit: Unit, store: Store) -> Outcome:
        if isinstance(unit, Shrunk):
            raise UsageError(FULL)
        return remembered(unit, store)

    result = driven(made, settings(tmp_path), Refused(full))
    assert result.totals.exit_code == EXIT_FAIL and result.totals.undone
    assert f"no worker can go on; the last one said: {FULL}" in result.totals.reasons
    (tmp_path / "clean").mkdir()
    clean = planned((TINY + BUDGET).replace(FAULTY, "reference"), tmp_path)
    with pytest.raises(UsageError, match="no worker can go on"):
        driven(clean, settings(tmp_path / "clean"), Refused(full))


def test_a_finding_stays_though_it_is_not_met_again(tmp_path: Path, remembered: Remembered) -> None:
    """Its unit is done again for the trace, on an engine that does not do the same each time."""
    made = planned(TINY + BUDGET, tmp_path)
    kept = settings(tmp_path)
    times = iter(range(2))

    def once(unit: Unit, store: Store) -> Outcome:
        if isinstance(unit, Shrunk) or getattr(unit, "self_test", False):
            return remembered(unit, store)
        if unit != made.units[2] or next(times):
            return Outcome(digest="of a unit without a finding")
        return perform(unit, Full())

    first = driven(made, kept, InTurn(once))
    again = driven(made, kept, InTurn(once))
    assert next(times, None) is None and list(again.totals.found) == list(first.totals.found) != []
    assert again.totals.exit_code == EXIT_FAIL


@pytest.mark.parametrize("ending", ["time", "deaths"])
def test_a_finding_is_told_though_its_unit_is_not_done_again(
    ending: str, tmp_path: Path, remembered: Remembered
) -> None:
    """Time is up before, or no worker survives it: what is known of the unit is not forgotten."""
    made = planned(TINY + BUDGET, tmp_path)
    kept = settings(tmp_path, attempts=1)

    def full(unit: Unit, store: Store) -> Outcome:
        return (
            remembered(unit, store) if getattr(unit, "self_test", False) else perform(unit, Full())
        )

    first = driven(made, kept, InTurn(full))
    seconds = 1e-9 if ending == "time" else 0.0
    again = driven(made, kept._replace(seconds=seconds), InTurn(full, deadly="fuzz main"))
    assert again.totals.exit_code == EXIT_FAIL and again.totals.undone
    assert again.totals.found == first.totals.found


def test_a_finding_stays_beside_another_one_that_is_met_in_its_place(tmp_path: Path) -> None:
    made = planned(TINY + BUDGET, tmp_path)
    outcome = perform(made.units[2], opened(str(tmp_path / "traces")))
    (now,) = outcome.met
    before = msgspec.structs.replace(
        now, finding=msgspec.structs.replace(now.finding, anomaly="stale-hit"), trace=""
    )
    digest = outcome.digest
    both = with_those_before(outcome, Outcome(met=[before, now], unkept="the disk is full"))
    assert both.met == [now, before] and both.digest != digest and both.unkept == "the disk is full"


def test_a_finding_is_told_though_its_minimal_trace_is_gone(
    tmp_path: Path, remembered: Remembered, capsys: pytest.CaptureFixture[str]
) -> None:
    made = planned(TINY + BUDGET, tmp_path)
    kept = settings(tmp_path)
    result = driven(made, kept, InTurn(remembered))
    rmtree(kept.traces)
    summary = document(result, kept)
    assert summary.exit_code == EXIT_FAIL and summary.findings[0].unread.endswith(
        "cannot be read (No such file or directory)"
    )
    campaign_report.print_summary(summary, terminal.console())
    assert "a trace that cannot be read, groups full" in capsys.readouterr().out


def test_units_without_findings_need_no_store(tmp_path: Path) -> None:
    unit = planned((TINY + BUDGET).replace(FAULTY, "reference"), tmp_path).units[1]
    assert isinstance(unit, Fuzzed) and perform(unit, Full()).judged
