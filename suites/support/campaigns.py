"""Campaigns for tests: small ones, and workers within the test's own process that die where they
should.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from cachewitness.cli.campaign import planned_of
from cachewitness.sessions.campaign import file as files
from cachewitness.sessions.campaign import unit as units
from cachewitness.sessions.campaign.driver import CampaignProgress, CampaignSettings, Driver, Result
from cachewitness.sessions.campaign.executors import Ended
from cachewitness.sessions.campaign.perform import perform
from cachewitness.sessions.campaign.plan import Planned
from cachewitness.sessions.campaign.store import Store, opened
from cachewitness.sessions.campaign.unit import Outcome, Unit
from cachewitness.sessions.campaign.worker import Task

FAULTY = "reference:mutant=lookup-one-unit-short"
CLEAN = (
    'name = "clean"\nstreams = ["main"]\n[[engines]]\nengine = "reference"\nlayouts ='
    ' ["full"]\n[budget]\ntraces = 4\n'
)
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


def faulty(name: str) -> str:
    """Return the text of a campaign of thirty units on an engine with a fault."""
    return f"""name = "{name}"
streams = ["main"]
[[engines]]
engine = "{FAULTY}"
layouts = ["full"]
[budget]
traces = 60
per_unit = 2
shrink = 1
"""


Perform = Callable[[Unit, Store], Outcome]


def planned(text: str, folder: Path) -> Planned:
    """Return the campaign of a file with this text."""
    path = folder / "campaign.toml"
    path.write_text(text, encoding="utf-8")
    return planned_of(files.load(path), path)


def settings(
    folder: Path, *, workers: int = 2, database: str = "", attempts: int = 5
) -> CampaignSettings:
    """Return where a campaign of a test is kept."""
    return CampaignSettings(
        database=database or str(folder / "state.sqlite"),
        traces=str(folder / "traces"),
        workers=workers,
        attempts=attempts,
    )


def task_of(made: Planned, place: int, folder: Path, deadline: float = 60.0) -> Task:
    """Return a unit of a campaign as a worker gets it."""
    key, spec = made.entries[place]
    return Task(key=key, spec=spec, traces=str(folder / "traces"), deadline=deadline)


class Remembered:
    """Carries out every unit once and remembers what came of it, with its traces; `done` counts
    how often each was asked for.
    """

    def __init__(self) -> None:
        self._outcomes: dict[str, bytes] = {}
        self._traces: dict[str, bytes] = {}
        self.done: dict[str, int] = {}

    def __call__(self, unit: Unit, store: Store) -> Outcome:
        """Return what came of a unit, a copy that nobody else has; its traces are in the store."""
        key, _ = units.entered(unit)
        self.done[key] = self.done.get(key, 0) + 1
        if key not in self._outcomes:
            self._outcomes[key] = units.stored(perform(unit, store), key)
        outcome = units.outcome_of(self._outcomes[key], key)
        for met in filter(None, (*outcome.met, outcome.small)):
            if met.trace in self._traces:
                store.put(self._traces[met.trace])
            else:
                self._traces[met.trace] = store.get(met.trace)
        return outcome


@dataclass
class InTurn:
    """An executor that carries out one unit each time it is asked, one after another, and whose
    workers die where chance says: with a unit that they have begun, or with what came of it.
    """

    call: Perform
    deaths: random.Random | None = None
    deadly: str = ""
    """What is in the name of a unit that ends whoever begins it."""
    died: int = 0
    _tasks: deque[Task] = field(default_factory=deque)

    def cores(self) -> int:
        return 2

    def submit(self, task: Task) -> None:
        self._tasks.append(task)

    def wait(self, seconds: float) -> list[Ended]:
        if not self._tasks:
            return []
        task = self._tasks.popleft()
        unit = units.read(task.spec, task.key)
        drawn = self.deaths.choice(["begun", "carried out", "", "", ""]) if self.deaths else ""
        place = "begun" if self.deadly and self.deadly in unit.name else drawn
        outcome = Outcome() if place == "begun" else self.call(unit, opened(task.traces))
        if place:
            self.died += 1
            return [Ended(task.key, why="was ended by signal 9")]
        return [Ended(task.key, units.stored(outcome, task.key))]

    def stop(self) -> None:
        self._tasks.clear()


def driven(
    made: Planned,
    kept: CampaignSettings,
    executor: Any,
    on_progress: Callable[[CampaignProgress], None] | None = None,
) -> Result:
    """Drive a campaign to its end."""
    return Driver(made, kept, executor, on_progress).run()


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
