"""A campaign comes to the same whoever dies when, and is never a pass without having judged
something.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from cachewitness._util.indented import indented
from cachewitness.core.result import (
    EXIT_FAIL,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_NOTHING_CHECKED,
    EXIT_PASS,
    EXIT_UNKNOWN,
)
from cachewitness.engines.faults import fitting
from cachewitness.sessions.campaign import driver as drivers
from cachewitness.sessions.campaign.perform import perform, stamp
from cachewitness.sessions.campaign.plan import FAULTS, Planned, SelfTest, canary_unit
from cachewitness.sessions.campaign.store import opened
from cachewitness.sessions.campaign.summary import document
from cachewitness.sessions.campaign.unit import Outcome, Unit
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
from suites.support.sampled import fewer

pytestmark = pytest.mark.usefixtures("at_once")

KILLS = fewer(8, 4)


class Whole(NamedTuple):
    """A campaign that nobody interrupted, and where it is kept."""

    made: Planned
    kept: drivers.CampaignSettings
    result: drivers.Result


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, remembered: Remembered) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    made = planned(SMALL, folder)
    kept = settings(folder)
    return Whole(made, kept, driven(made, kept, InTurn(remembered)))


class Killed(BaseException):
    """What ends a driver in the middle."""


def killed_now_and_then(chance: random.Random) -> object:
    def kill(progress: drivers.CampaignProgress) -> None:
        if chance.random() < 0.2:
            raise Killed

    return kill


def test_kills_change_nothing(tmp_path: Path, remembered: Remembered, whole: Whole) -> None:
    """Workers and drivers end at random points, and the same command goes on: same findings,
    sums and digest each time.
    """
    made = whole.made
    expected = came_to(whole.result)
    died = stopped = 0
    for seed in range(KILLS):
        chance = random.Random(seed)
        executor = InTurn(remembered, deaths=chance)
        kept = settings(tmp_path / str(seed), workers=1 + seed % 3, attempts=1000)
        while True:
            try:
                result = driven(made, kept, executor, killed_now_and_then(chance))  # type: ignore[arg-type]
                break
            except Killed:
                stopped += 1
        assert came_to(result) == expected, seed
        died += executor.died
    assert died > KILLS and stopped > KILLS


def test_an_interrupt_keeps_what_ended(
    tmp_path: Path, remembered: Remembered, whole: Whole
) -> None:
    """It is no verdict, and the same command goes on."""

    def interrupt(progress: drivers.CampaignProgress) -> None:
        if progress.done == 3:
            raise KeyboardInterrupt

    kept = settings(tmp_path)
    first = driven(whole.made, kept, InTurn(remembered), interrupt)
    assert first.totals.exit_code == EXIT_INTERRUPTED and first.totals.undone
    again = driven(whole.made, kept, InTurn(remembered))
    assert again.progress.before > 3  # one that ended meanwhile was entered, too
    assert came_to(again) == came_to(whole.result)


def test_the_findings_are_those_of_the_faulty_engine(whole: Whole) -> None:
    """What is met and what is shrunk of it; that the clean engine beside it is not blamed;
    minimal traces that are there.
    """
    summary = document(whole.result, whole.kept)
    clean, faulty = summary.subjects
    assert clean.findings == 0 and clean.exit_code in (
        EXIT_PASS,
        EXIT_NOTHING_CHECKED,
    )  # few traces: rules without cases
    assert faulty.engine == FAULTY and faulty.exit_code == EXIT_FAIL
    assert faulty.findings == sum(one.met for one in summary.classes) > len(summary.findings) > 0
    assert all(one.operations <= 6 and Path(one.trace).is_file() for one in summary.findings)
    assert (
        summary.self_test.found and summary.exit_code == EXIT_FAIL and summary.done == summary.units
    )
    assert msgspec.json.decode(indented(summary))["format"] == "cachewitness.campaign"


def test_a_second_run_does_nothing_again(remembered: Remembered, whole: Whole) -> None:
    before = dict(remembered.done)
    again = driven(whole.made, whole.kept, InTurn(remembered))
    assert remembered.done == before and came_to(again) == came_to(whole.result)
    assert (
        again.progress.before == again.progress.done > len(whole.made.units)
    )  # and those that shrank what was found


def test_a_clean_engine_passes(tmp_path: Path, remembered: Remembered) -> None:
    """One on a single group leaves rules without anything to judge, which is told; so the whole
    of it must be drawn.
    """
    text = CLEAN.replace('layouts = ["full"]\n', "").replace("traces = 4", "traces = 30")
    result = driven(planned(text, tmp_path), settings(tmp_path), InTurn(remembered))
    assert result.totals.exit_code == EXIT_PASS, result.totals.reasons


def broken(kind: str, plain: Remembered) -> object:
    """Return what comes of every unit but the self-test's, if the engine or the harness does not
    work.
    """

    def call(unit: Unit, store: object) -> Outcome:
        self_test = getattr(unit, "self_test", False)
        return plain(unit, store) if self_test else Outcome(**{kind: "it raised"})  # type: ignore[arg-type]

    return call


@pytest.mark.parametrize(("kind", "code"), [("wrong", EXIT_UNKNOWN), ("crashed", EXIT_INTERNAL)])
def test_a_unit_that_came_to_nothing_is_no_pass(
    kind: str, code: int, tmp_path: Path, remembered: Remembered
) -> None:
    result = driven(planned(CLEAN, tmp_path), settings(tmp_path), InTurn(broken(kind, remembered)))  # type: ignore[arg-type]
    assert result.totals.exit_code == code and "it raised" in result.totals.reasons[0]
    again = driven(planned(CLEAN, tmp_path), settings(tmp_path), InTurn(remembered))
    assert again.totals.exit_code not in (
        code,
        EXIT_FAIL,
    )  # the same command did it again, and it worked


def test_a_unit_that_ends_every_worker_is_unknown(tmp_path: Path, remembered: Remembered) -> None:
    """It is given up after its attempts, the others are done, and the summary names it."""
    made = planned(CLEAN.replace("traces = 4", "traces = 4\nper_unit = 2"), tmp_path)
    executor = InTurn(remembered, deadly="main, seed 0, traces 2 to 3")
    result = driven(made, settings(tmp_path, attempts=2), executor)
    assert result.totals.exit_code == EXIT_UNKNOWN
    assert [line for line in result.totals.undone if "traces 2 to 3" in line] and len(
        result.totals.undone
    ) == 1


def test_without_the_canary_nothing_is_checked(tmp_path: Path, remembered: Remembered) -> None:
    """A fault that is planted and not found: here one that the unit's engine does not have."""
    made = planned(CLEAN, tmp_path)
    engine = made.units[1].engine
    blind = msgspec.structs.replace(made.units[0], engine=engine)  # type: ignore[type-var]
    result = driven(
        replace(made, units=[blind, *made.units[1:]]), settings(tmp_path), InTurn(remembered)
    )
    assert result.totals.exit_code == EXIT_NOTHING_CHECKED
    assert result.totals.reasons == [
        f"the self-test {made.self_test.mutant.name} was NOT found, so it is not proved that a fault"  # noqa: E501
        " would have been seen"
    ]


@pytest.mark.parametrize("name", FAULTS)
def test_a_canary_is_found(name: str, tmp_path: Path) -> None:
    """Each fault that a campaign may plant, as the anomaly and by the checker that it names in
    advance.
    """
    mutant = fitting("vllm")[name]
    outcome = perform(
        msgspec.structs.replace(canary_unit(SelfTest(mutant), 0), last=5), opened(str(tmp_path))
    )
    assert (mutant.anomaly, mutant.checker) in {
        (met.finding.anomaly, met.finding.checker) for met in outcome.met
    }


def test_a_campaign_whose_time_is_up_is_unknown(
    tmp_path: Path, remembered: Remembered, whole: Whole
) -> None:
    """What is not done is named, and the same command goes on."""
    kept = settings(tmp_path)
    short = driven(whole.made, kept._replace(seconds=1e-9), InTurn(remembered))
    assert (
        short.totals.exit_code == EXIT_NOTHING_CHECKED and "was not run" in short.totals.reasons[0]
    )
    assert len(short.totals.undone) == len(whole.made.units) and short.digest != stamp([])
    assert came_to(driven(whole.made, kept, InTurn(remembered))) == came_to(whole.result)
