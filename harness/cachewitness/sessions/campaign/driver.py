"""Drives a campaign: has its units carried out that have no result, enters what came of each, says
how far it is, and adds up what came of all.

The driver may be killed at any time, too: all that it knows it can read again from the database, so
the same command goes on.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cachewitness._util.errors import UsageError
from cachewitness.sessions.campaign.database import Database
from cachewitness.sessions.campaign.executors import Ended, Executor
from cachewitness.sessions.campaign.perform import stamp
from cachewitness.sessions.campaign.plan import Planned
from cachewitness.sessions.campaign.results import OddRow, Results, store_name
from cachewitness.sessions.campaign.totals import Totals, of_canary, to_shrink
from cachewitness.sessions.campaign.unit import Outcome, Shrunk, Unit, entered, outcome_of
from cachewitness.sessions.campaign.worker import Task

POLL = 0.2
"""Seconds between two looks at the clock, and between two reports of progress."""
NOT_DONE = "not done"
"""What stands in the digest for the outcome of a unit that was not done."""
FRUITLESS = 10
"""So many workers may end one after another, beyond the attempts of their units, before the
campaign gives up."""


class FindingsLost(UsageError):
    """Findings were met, and the database does not have them, or cannot be read any more: they
    are told in this line alone.
    """


class CampaignSettings(NamedTuple):
    """How a campaign is carried out, which does not change what comes of it. Times are in
    seconds; `seconds` 0: no end.
    """

    database: str
    traces: str
    workers: int
    deadline: float = 3600.0
    attempts: int = 5
    seconds: float = 0.0


@dataclass
class CampaignProgress:
    """How far a campaign is. `before`: units that were done when it began; `left`: seconds for
    the rest, if known.
    """

    units: int = 0
    done: int = 0
    before: int = 0
    given_up: int = 0
    workers: int = 0
    traces: int = 0
    operations: int = 0
    findings: int = 0
    seconds: float = 0.0
    left: float | None = None
    marks: set[str] = field(default_factory=set)
    classes: set[tuple[str, ...]] = field(default_factory=set)
    lost: int = 0
    """How many workers ended that did not end by themselves."""
    incidents: list[str] = field(default_factory=list)
    """What happened to workers and to their units, a line each."""

    def take(self, unit: Unit, outcome: Outcome) -> None:
        """Take in what came of one unit."""
        if of_canary(unit):
            return
        for suite in outcome.suites:
            self.traces += suite.traces
            self.operations += suite.activity.operations
        self.marks |= outcome.marks.keys()
        for met in outcome.met:
            self.findings += met.count
            self.classes.add(met.of_class)


class Result(NamedTuple):
    """What came of a campaign: the totals, how it went, and a digest of all of it."""

    totals: Totals
    progress: CampaignProgress
    digest: str


class Driver:
    """Carries out a campaign. `on_progress` is called now and then, and when nothing is left."""

    def __init__(
        self,
        planned: Planned,
        settings: CampaignSettings,
        executor: Executor,
        on_progress: Callable[[CampaignProgress], None] | None = None,
    ) -> None:
        self._planned = planned
        self._settings = settings
        self._executor = executor
        self._on_progress = on_progress
        self._database = Database(settings.database)
        self._results = Results(
            self._database, planned.id, store_name(settings.traces, settings.database)
        )
        self._progress = CampaignProgress()
        self._units: dict[str, Unit] = {}
        """What is to be done, by its key, in the order in which it counts."""
        self._done: set[str] = set()
        """Units with a result that need not be done again by this command."""
        self._at_work: set[str] = set()
        self._ended: deque[Ended] = deque()
        """What ended and was not looked at yet."""
        self._tries: Counter[str] = Counter()
        """How many workers ended that were at a unit."""
        self._fruitless = 0
        self._lost: list[str] = []
        """What was found and could not be entered."""
        self._began = time.monotonic()
        self._reported = 0.0

    def run(self) -> Result:
        """Carry out the campaign and return what came of it; see `_run`.

        Raises FindingsLost where `_run` raises UsageError and something was found.
        """
        try:
            return self._run()
        except UsageError as error:
            found = ", ".join(
                f"{anomaly} by {checker}" for anomaly, checker, *_ in sorted(self._progress.classes)
            )
            known = (
                [f"{self._progress.findings:,} findings were met before: {found}"] if found else []
            )
            if not (known or self._lost):
                raise
            raise FindingsLost("; ".join([str(error), *known, *self._lost])) from None
        finally:
            self._database.close()

    def _run(self) -> Result:
        """Work until every unit is done or given up, time is up, or the user interrupts.

        Raises UsageError if nothing was found and the database or the store cannot be used, or
        workers end again and again.
        """
        interrupted = time_up = False
        stopped: UsageError | None = None
        try:
            self._plan(self._planned.units)
            time_up = not self._work_off()
            if not time_up:
                self._plan(to_shrink(self._planned, self._pairs()))
                time_up = not self._work_off()
            self._drain()
        except KeyboardInterrupt:
            interrupted = True
            self._drain()
        except UsageError as error:
            stopped = error
            self._drain()
        finally:
            self._executor.stop()
        why = str(stopped or "")
        result = self._added_up(
            Totals(self._planned, interrupted=interrupted, time_up=time_up, stopped=why)
        )
        if stopped and not result.totals.found:
            raise stopped
        return result

    def _plan(self, units: Sequence[Unit]) -> None:
        """Note units that are to be done, and take in the results of those that are done.

        Raises OddRow once all are taken in.
        """
        fresh = {entered(unit)[0]: unit for unit in units}
        self._units.update(fresh)
        odd: OddRow | None = None
        for key, written in self._results.read(fresh):
            try:
                outcome = self._results.outcome(key, written) if written is not None else None
            except OddRow as error:
                odd = odd or error
                continue
            if outcome is not None and outcome.judged:
                self._take(key, outcome)
                self._progress.before += 1
        if odd:
            raise odd

    def _take(self, key: str, outcome: Outcome) -> None:
        self._progress.take(self._units[key], outcome)
        self._done.add(key)

    def _work_off(self) -> bool:
        """Have every unit carried out that is not done; False if time was up before."""
        waiting = deque(
            key for key in self._units if key not in self._done and not self._given_up(key)
        )
        while waiting or self._at_work:
            if 0 < self._settings.seconds <= time.monotonic() - self._began:
                break
            while waiting and len(self._at_work) < self._settings.workers:
                self._submit(waiting.popleft())
            self._ended += self._executor.wait(POLL)
            waiting += self._looked_at()
            self._report()
        self._report(at_once=True)
        return not (waiting or self._at_work)

    def _submit(self, key: str) -> None:
        _, spec = entered(self._units[key])
        self._at_work.add(key)
        self._executor.submit(
            Task(
                key=key,
                spec=spec,
                traces=_anywhere(self._settings.traces),
                deadline=self._settings.deadline,
            )
        )

    def _looked_at(self) -> Iterator[str]:
        """Enter what came of units; yield those that are to be carried out again."""
        while self._ended:
            ended = self._ended.popleft()
            self._at_work.discard(ended.key)
            if ended.outcome:
                self._enter(ended)
            elif self._lose(ended):
                yield ended.key

    def _enter(self, ended: Ended) -> None:
        """Enter what came of a unit, with what was found when it was done before."""
        unit = self._units[ended.key]
        outcome = outcome_of(ended.outcome, ended.key)
        try:
            kept = self._results.enter(ended.key, outcome, own=of_canary(unit))
        except UsageError:
            if outcome.met and not of_canary(unit):
                finding = outcome.met[0].finding
                self._lost.append(
                    f"findings of {unit.engine.text}, {unit.policy}: {unit.name} could not be"
                    f" entered, the first being {finding.anomaly} by {finding.checker}:"
                    f" {finding.sentence}"
                )
            raise
        self._take(ended.key, kept)
        self._fruitless = 0

    def _lose(self, ended: Ended) -> bool:
        """Do without a worker that ended; whether its unit is carried out again.

        Raises UsageError if one after another ends.
        """
        self._tries[ended.key] += ended.tries
        again = not self._given_up(ended.key)
        then = "carried out again" if again else "given up"
        how = f"refused it: {ended.why}" if ended.refused else ended.why
        self._progress.lost += ended.tries
        self._progress.incidents.append(
            f"a worker at unit {self._units[ended.key].name} {how}; the unit is {then}"
        )
        self._fruitless += max(1, ended.tries)
        most = self._settings.workers
        if not ended.refused:
            most = most * self._settings.attempts + FRUITLESS
        if self._fruitless > most:
            raise UsageError(f"no worker can go on; the last one said: {ended.why}")
        return again

    def _given_up(self, key: str) -> bool:
        return self._tries[key] >= self._settings.attempts

    def _drain(self) -> None:
        """Enter what ended meanwhile: it may have found something."""
        self._ended += self._executor.wait(0.0)
        while self._ended:
            ended = self._ended.popleft()
            with suppress(UsageError):
                if ended.outcome:
                    self._enter(ended)

    def _report(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if not at_once and now - self._reported < POLL:
            return
        self._reported = now
        progress = self._progress
        progress.units = len(self._units)
        progress.done = len(self._done)
        progress.given_up = sum(self._given_up(key) for key in self._tries)
        progress.workers = len(self._at_work)
        progress.seconds = now - self._began
        here = progress.done - progress.before
        rest = progress.units - progress.done - progress.given_up
        progress.left = rest * progress.seconds / here if here > 0 else None
        if self._on_progress:
            self._on_progress(progress)

    def _pairs(self) -> Iterator[tuple[Unit, Outcome]]:
        """Yield the units that are done and what came of each, in the order of units."""
        for key, written in self._results.read(key for key in self._units if key in self._done):
            yield self._units[key], self._results.outcome(key, written)

    def _added_up(self, totals: Totals) -> Result:
        stamped: list[tuple[str, str]] = []
        for key, written in self._results.read(self._units):
            unit = self._units[key]
            if key not in self._done:
                totals.miss(unit)
                stamped.append((key, NOT_DONE))
                self._found_before(totals, key, written)
                continue
            outcome = self._results.outcome(key, written)
            if isinstance(unit, Shrunk):
                totals.small(unit, outcome)
            else:
                totals.add(unit, outcome)
            stamped.append((key, outcome.digest))
        return Result(totals, self._progress, stamp(stamped))

    def _found_before(self, totals: Totals, key: str, written: bytes | None) -> None:
        """Add what was found when a unit was done before that is to be done again and was not."""
        unit = self._units[key]
        with suppress(OddRow):
            before = self._results.outcome(key, written)
            if before.met and not of_canary(unit):
                totals.add(unit, before)


def _anywhere(name: str) -> str:
    """Return the name of a folder so that a worker with another current folder finds it; a URL as
    it is.
    """
    return name if "://" in name else str(Path(name).absolute())
