"""A clock that is set, forward or back, makes nobody wait for hours, doubles no outcome and
hides none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cachewitness.sessions.campaign import database as databases
from cachewitness.sessions.campaign import driver as drivers
from cachewitness.sessions.campaign.database import Database
from cachewitness.sessions.campaign.driver import CampaignProgress
from cachewitness.sessions.campaign.queue import Leased, Queue
from cachewitness.sessions.campaign.store import opened
from cachewitness.sessions.campaign.unit import stored
from suites.support.campaigns import (
    FAULTY,
    SMALL,
    InTurn,
    Remembered,
    came_to,
    driven,
    planned,
    settings,
)

HOURS = 7200.0
LEASE = 0.5
CLEAN = (
    'name = "clean"\nstreams = ["main"]\n[[engines]]\nengine = "reference"\nlayouts ='
    ' ["full"]\n[budget]\ntraces = 1\n'
)


class Clock:
    """The clock of every database that is opened; `ahead` is how many seconds it is ahead."""

    ahead = 0.0

    def __init__(self) -> None:
        self._plain = databases._sqlite

    def __call__(self, name: str) -> databases._Dialect:
        dialect = self._plain(name)

        def connect() -> Any:
            connection = dialect.connect()
            connection.create_function("clock", 0, lambda: time.time() + self.ahead)
            return connection

        return replace(dialect, connect=connect, now="clock()")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(drivers, "POLL", 0.01)
    made = Clock()
    monkeypatch.setattr(databases, "_sqlite", made)
    return made


@pytest.mark.parametrize("step", [HOURS, -HOURS])
def test_a_clock_that_is_set_hides_no_outcome(
    step: float, clock: Clock, tmp_path: Path, remembered: Remembered
) -> None:
    """It is set after each look: a unit that is finished then has a time long before, or long
    after, that of one before it.
    """
    made = planned(SMALL, tmp_path)
    whole = came_to(driven(made, settings(tmp_path / "whole"), InTurn(remembered)))

    def advance(progress: CampaignProgress) -> None:
        clock.ahead += step

    result = driven(made, settings(tmp_path, workers=1), InTurn(remembered), advance)
    assert came_to(result) == whole
    assert result.progress.late == 0 and FAULTY in str(whole)


@pytest.fixture
def ahead(clock: Clock, tmp_path: Path) -> Iterator[tuple[Queue, Leased]]:
    """Yield the first unit of a campaign, leased by somebody else while the clock was ahead."""
    made = planned(CLEAN, tmp_path)
    kept = settings(tmp_path)
    with closing(Database(kept.database)) as database:
        queue = Queue(database, made.id, 5)
        queue.enrol(made.name, kept.traces, made.entries)
        clock.ahead = HOURS
        leased = queue.lease("elsewhere", LEASE)
        clock.ahead = 0.0
        assert leased is not None
        yield queue, leased


def test_a_unit_that_was_leased_while_the_clock_was_ahead_is_leased_again(
    ahead: tuple[Queue, Leased], tmp_path: Path, remembered: Remembered
) -> None:
    """After the time of a lease, not after hours, and a line says so."""
    queue, leased = ahead
    began = time.monotonic()
    result = driven(planned(CLEAN, tmp_path), settings(tmp_path, lease=LEASE), InTurn(remembered))
    assert LEASE <= time.monotonic() - began < HOURS / 10
    assert result.totals.undone == [] and not queue.renew(leased, LEASE)
    (line,) = result.progress.incidents
    assert (
        line.startswith("unit fuzz canary")
        and "was the clock of the database set back? The unit is leased again" in line
    )


def test_a_worker_that_lives_keeps_its_unit_when_the_clock_is_set_back(
    ahead: tuple[Queue, Leased], clock: Clock, tmp_path: Path, remembered: Remembered
) -> None:
    """It renews its lease before one is over, so the unit is not done twice."""
    queue, leased = ahead
    began = renewed = time.monotonic()

    def on_progress(progress: CampaignProgress) -> None:
        nonlocal renewed
        now = time.monotonic()
        if now - began > 3 * LEASE:
            queue.complete(
                leased, stored(remembered(made.units[0], opened(kept.traces)), leased.key)
            )
        elif now - renewed > LEASE / 3:
            assert queue.renew(leased, LEASE)
            renewed = now

    made = planned(CLEAN, tmp_path)
    kept = settings(tmp_path, lease=LEASE)
    result = driven(made, kept, InTurn(remembered), on_progress)
    assert (
        result.totals.undone == [] and result.progress.incidents == [] and result.progress.lost == 0
    )
