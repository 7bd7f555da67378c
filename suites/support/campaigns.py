"""Campaigns for tests: small ones, and workers within the test's own process that die where they
are told to.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from cachewitness.cli.campaign import planned_of
from cachewitness.sessions.campaign import file as files
from cachewitness.sessions.campaign import unit as units
from cachewitness.sessions.campaign.database import Database
from cachewitness.sessions.campaign.driver import CampaignProgress, CampaignSettings, Driver, Result
from cachewitness.sessions.campaign.executors import Ended
from cachewitness.sessions.campaign.perform import perform
from cachewitness.sessions.campaign.plan import Planned
from cachewitness.sessions.campaign.queue import Queue
from cachewitness.sessions.campaign.store import Store, opened
from cachewitness.sessions.campaign.unit import Outcome, Unit
from cachewitness.sessions.campaign.worker import Given

FAULTY = "reference:mutant=lookup-one-unit-short"
SMALL = f"""
name = "small"
streams = ["main"]
[[engines]]
engine = "reference"
layouts = ["full"]
[[engines]]
engine = "{FAULTY}"
layouts = ["full"]
[budget]
traces = 4
per_unit = 2
shrink = 1
"""


def faulty(name: str, lease: float) -> str:
    """Return the text of a campaign of thirty units on an engine with a fault, whose leases last
    so many seconds.
    """
    return f"""name = "{name}"
streams = ["main"]
[[engines]]
engine = "{FAULTY}"
layouts = ["full"]
[budget]
traces = 60
per_unit = 2
shrink = 1
lease = {lease}
"""


Perform = Callable[[Unit, Store], Outcome]


def planned(text: str, folder: Path) -> Planned:
    """Return the campaign of a file with this text."""
    path = folder / "campaign.toml"
    path.write_text(text, encoding="utf-8")
    return planned_of(files.load(path), path)


def settings(
    folder: Path, *, workers: int = 2, database: str = "", lease: float = 30.0, attempts: int = 5
) -> CampaignSettings:
    """Return where a campaign of a test is kept."""
    return CampaignSettings(
        database=database or str(folder / "state.sqlite"),
        traces=str(folder / "traces"),
        workers=workers,
        lease=lease,
        attempts=attempts,
    )


class Remembered:
    """Carries out every unit once and remembers what came of it; `done` counts how often each
    was asked for.
    """

    def __init__(self) -> None:
        self._outcomes: dict[str, bytes] = {}
        self.done: dict[str, int] = {}

    def __call__(self, unit: Unit, store: Store) -> Outcome:
        """Return what came of a unit, a copy that nobody else has."""
        key, _ = units.entered(unit)
        self.done[key] = self.done.get(key, 0) + 1
        if key not in self._outcomes:
            self._outcomes[key] = units.stored(perform(unit, store), key)
        return units.outcome_of(self._outcomes[key], key)


@dataclass
class InTurn:
    """An executor whose workers do one unit each time they are looked at, one after another, and
    die where chance says.

    A worker dies with a unit that it has leased, with one that it has carried out and not entered,
    or behind one.
    """

    call: Perform
    deaths: random.Random | None = None
    deadly: str = ""
    """What is in the name of a unit that ends whoever begins it."""
    died: int = 0
    _workers: dict[str, Given] = field(default_factory=dict)

    def cores(self) -> int:
        return 2

    def start(self, given: Given) -> str:
        self._workers[given.worker] = given
        return given.worker

    def ended(self, handle: str) -> Ended | None:
        given = self._workers[handle]
        database = Database(given.database)
        place = self._one(Queue(database, given.campaign, given.attempts), given)
        database.close()
        self.died += bool(place)
        return Ended("engine-crashed") if place else None

    def _one(self, queue: Queue, given: Given) -> str:
        """Do one unit if there is one; return where the worker dies, empty if it does not."""
        drawn = (
            self.deaths.choice(["leased", "carried out", "entered", "", "", ""])
            if self.deaths
            else ""
        )
        leased = queue.lease(given.worker, given.lease)
        if leased is None:
            return ""
        unit = units.read(leased.spec, leased.key)
        place = "leased" if self.deadly and self.deadly in unit.name else drawn
        if place != "leased":
            outcome = self.call(unit, opened(given.traces))
            if place != "carried out":
                assert queue.complete(
                    leased, units.stored(outcome, leased.key), judged=outcome.judged
                )
        return place

    def stop(self, handle: str) -> None:
        del self._workers[handle]


def driven(
    made: Planned,
    kept: CampaignSettings,
    executor: Any,
    on_progress: Callable[[CampaignProgress], None] | None = None,
) -> Result:
    """Drive a campaign to its end."""
    return Driver(made, kept, executor, on_progress).run()


def counted(queue: Queue) -> tuple[int, int, int, int]:
    """Return how many units of a small campaign wait, are leased, are done and were given up."""
    rest = queue.rest(1000)
    return len(rest.waiting), len(rest.leased), len(queue.done()), len(rest.given_up)


def came_to(result: Result) -> Any:
    """Return what a campaign came to, but for times: what must not depend on workers, deaths or
    interruptions.
    """
    totals = result.totals
    suites = [
        (
            key,
            name,
            suite.traces,
            msgspec.to_builtins(suite.activity),
            msgspec.to_builtins(suite.tallies),
        )
        for key, subject in totals.subjects.items()
        for name, suite in subject.suites.items()
    ]
    findings = [
        msgspec.to_builtins(one)
        for one in (*totals.found.values(), *totals.distinct.values(), totals.self_test)
    ]
    marks = [(key, sorted(subject.marks.items())) for key, subject in totals.subjects.items()]
    return result.digest, totals.exit_code, totals.reasons, suites, findings, marks, totals.undone
