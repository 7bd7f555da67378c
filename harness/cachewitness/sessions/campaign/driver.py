"""Drives a campaign: enters its units, keeps workers going, says how far it is, and adds up what
came of it.

The driver may be killed at any time, too: all that it knows it can read again from the database, so
the same command goes on.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from cachewitness._util.errors import UsageError
from cachewitness.sessions.campaign.database import Database
from cachewitness.sessions.campaign.executors import Ended, Executor
from cachewitness.sessions.campaign.perform import stamp
from cachewitness.sessions.campaign.plan import Planned
from cachewitness.sessions.campaign.queue import Held, Lease, OddRow, Queue, Rest
from cachewitness.sessions.campaign.totals import Totals, of_canary, to_shrink
from cachewitness.sessions.campaign.unit import Outcome, Shrunk, Unit, entered, outcome_of, read
from cachewitness.sessions.campaign.worker import FindingsLost, Given

POLL = 0.2
"""Seconds between two looks at the database, at least."""
RESTED = 4.0
"""After a look the driver waits so many times as long as that took, so that a large campaign is not
looked at all the time."""
NOT_DONE = "not done"
"""What stands in the digest for the outcome of a unit that was not done."""
FAR = 2.0
"""A lease that ends later than so many times its length from now was taken by another clock."""
FRUITLESS = 10
"""So many workers may end one after another, beyond the attempts of their units, before the
campaign gives up."""


class CampaignSettings(NamedTuple):
    """How a campaign is carried out, which does not change what comes of it. Times are in
    seconds; `seconds` 0: no end.
    """

    database: str
    traces: str
    workers: int
    lease: float = 30.0
    deadline: float = 3600.0
    attempts: int = 5
    seconds: float = 0.0

    def given(self, campaign: str, worker: str, traces: str) -> Given:
        """Return what a worker of a campaign has to know; `traces` is empty where it takes the
        store from the database.
        """
        return Given(
            database=_anywhere(self.database),
            traces=traces and _anywhere(traces),
            campaign=campaign,
            worker=worker,
            lease=self.lease,
            deadline=self.deadline,
            attempts=self.attempts,
        )


@dataclass
class CampaignProgress:
    """How far a campaign is. `before`: units that were done when it began; `left`: seconds for
    the rest, if known.
    """

    units: int = 0
    done: int = 0
    before: int = 0
    given_up: int = 0
    late: int = 0
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
    """What happened to workers and to what they held, a line each."""

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


def _anywhere(name: str) -> str:
    """Return the name of a file or folder so that a worker with another current folder finds it;
    a URL as it is.
    """
    return name if "://" in name else str(Path(name).absolute())


def process_name() -> str:
    """Return what names this process among those of all machines."""
    return f"{socket.gethostname()}-{os.getpid()}"


class Driver:
    """Carries out a campaign. `on_progress` is called after every look at the database."""

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
        self._queue = Queue(self._database, planned.id, settings.attempts)
        self._progress = CampaignProgress()
        self._units: dict[int, Unit] = {}
        """What is to be done, by place, in the order in which it counts."""
        self._keys: dict[int, str] = {}
        self._seen: set[int] = set()
        self._ahead: list[int] = []
        """Units of which nobody is known to have held one, the first of them last."""
        self._begun: set[int] = set()
        """Units that somebody has held, and that are not seen to be done."""
        self._crew: dict[str, Any] = {}
        self._at: dict[str, tuple[Lease, float]] = {}
        """What each worker of this driver holds, and since when, by the clock of this process."""
        self._numbers = count(1)
        self._fruitless = 0
        self._beyond: dict[Held, float] = {}
        """Leases that end later than any can, and when each was first seen, by the clock of this
        process that is never set."""
        self._lost: list[str] = []
        """What workers said of findings that they could not enter."""
        self._began = time.monotonic()

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
            lost = [line for line in self._lost if line not in str(error)]
            raise FindingsLost("; ".join([str(error), *known, *lost])) from None
        finally:
            self._database.close()

    def _run(self) -> Result:
        """Work until every unit is done or given up, time is up, or the user interrupts.

        Raises UsageError if nothing was found and the database or the store cannot be used, or
        workers end again and again.
        """
        interrupted = time_up = False
        stopped = ""
        try:
            self._enter(self._planned.units, self._planned.entries)
            self._queue.forgive()
            self._progress.before = len(self._look(self._queue.done()))
            time_up = not self._work_off()
            if not time_up:
                found = to_shrink(self._planned, self._done())
                self._enter(found, [entered(unit) for unit in found])
                self._progress.before += len(self._look(self._queue.done()))
                time_up = not self._work_off()
        except KeyboardInterrupt:
            interrupted = True
        except UsageError as error:
            with suppress(UsageError):
                self._look(
                    self._queue.done()
                )  # a unit that ended meanwhile may have found something
            if not self._progress.findings:
                raise
            stopped = str(error)
        finally:
            self._stop()
        if not (interrupted or time_up or stopped):
            self._queue.end()
        return self._added_up(
            Totals(self._planned, interrupted=interrupted, time_up=time_up, stopped=stopped)
        )

    def _enter(self, units: Sequence[Unit], entries: Sequence[tuple[str, bytes]]) -> None:
        """Enter units that are not there yet, each with its key and what is stored of it, and
        note where they all are.
        """
        keyed = [(unit, key) for unit, (key, _) in zip(units, entries, strict=True)]
        own = [key for unit, key in keyed if of_canary(unit)]
        places = self._queue.enrol(
            self._planned.name, _anywhere(self._settings.traces), entries, own=own
        )
        for unit, key in keyed:
            self._units.setdefault(places[key], unit)
            self._keys[places[key]] = key
        for key in places.keys() - self._keys.values():
            self._check_stray(places[key], key)

    def _check_stray(self, place: int, key: str) -> None:
        """Raise OddRow for a unit that this campaign never had: what is not planned is a finding
        to be shrunk.
        """
        try:
            unit = read(self._queue.spec(place), key)
        except UsageError as error:
            raise self._queue.odd(key, str(error)) from None
        if not isinstance(unit, Shrunk):
            raise self._queue.odd(key, f"is of no unit that this campaign has ({unit.name})")

    def _work_off(self) -> bool:
        """Keep workers going until nothing is left to do; False if time was up before."""
        self._ahead = sorted(self._units.keys() - self._seen, reverse=True)
        self._begun = set()
        while True:
            began = time.monotonic()
            rest = self._queue.rest(max(1, self._settings.workers))
            progress = self._progress
            over = not rest.waiting and not rest.leased
            time_up = 0 < self._settings.seconds <= began - self._began
            self._look(self._queue.done(None if over or time_up else self._perhaps_done(rest)))
            progress.units = len(self._units)
            progress.done = len(self._seen)
            progress.given_up = len(rest.given_up)
            progress.late = self._queue.late
            progress.seconds = time.monotonic() - self._began
            progress.left = self._left()
            took = time.monotonic() - began
            if self._on_progress:
                self._on_progress(progress)
            if over or time_up:
                self._queue.check()
                return over
            self._take_back()
            self._keep_going(rest)
            time.sleep(max(POLL, RESTED * took))

    def _perhaps_done(self, rest: Rest) -> set[int]:
        """Return the units that may be done and are not seen yet: those that somebody has held and
        nobody holds.

        Units are leased in the order of their places, so all before the first that waits were held.
        Their number grows with what is new and with what is at work, not with what is done, and no
        clock is asked. Units that another driver entered as done are seen once that order comes to
        them.
        """
        first = rest.waiting[0] if rest.waiting else sys.maxsize
        while self._ahead and self._ahead[-1] < first:
            self._begun.add(self._ahead.pop())
        return self._begun - rest.leased - rest.given_up

    def _look(self, done: Iterable[int]) -> list[int]:
        """Take in those of the units that are done which are new; return their places. Raises
        OddRow once all are taken in.
        """
        fresh = []
        odd = None
        for place in done:
            if place in self._units and place not in self._seen:
                try:
                    self._progress.take(self._units[place], self._outcome(place))
                except OddRow as error:
                    odd = error
                    continue
                self._seen.add(place)
                fresh.append(place)
        self._begun.difference_update(fresh)
        if odd:
            raise odd
        if fresh:
            self._fruitless = 0
        return fresh

    def _outcome(self, place: int) -> Outcome:
        written = self._queue.outcome(place)
        try:
            return outcome_of(written, self._keys[place])
        except UsageError as error:
            raise self._queue.odd(self._keys[place], str(error)) from None

    def _left(self) -> float | None:
        here = len(self._seen) - self._progress.before
        rest = self._progress.units - self._progress.done - self._progress.given_up
        return rest * self._progress.seconds / here if here > 0 else None

    def _take_back(self) -> None:
        """Have units leased again whose lease ends later than any can, if nobody renews it while
        one lasts.

        The clock of the database was set back since, and whoever holds the unit may be gone: that
        clock would have it wait.
        """
        lease = self._settings.lease
        now = time.monotonic()
        self._beyond = {
            held: self._beyond.get(held, now) for held in self._queue.beyond(FAR * lease)
        }
        for held, since in self._beyond.items():
            if now - since > lease and self._queue.take_back(held):
                what = (
                    f"{self._named(held.place)} was leased for longer than {lease:g} s, and nobody"
                    " renews that"
                )
                self._progress.incidents.append(
                    f"{what}; was the clock of the database set back? The unit is leased again"
                )

    def _named(self, place: int) -> str:
        unit = self._units.get(place)
        return f"unit {unit.name if unit else place}"

    def _keep_going(self, rest: Rest) -> None:
        """Start workers in the place of those that ended or hang, no more than there are units."""
        leases = self._queue.leases() if self._crew else {}
        for name, handle in list(self._crew.items()):
            if ended := self._executor.ended(handle) or self._hangs(
                name, leases.get(name), idle=not rest.waiting
            ):
                self._let_go(name, ended)
        while len(self._crew) < min(self._settings.workers, len(rest.waiting) + len(rest.leased)):
            name = f"{process_name()}-{next(self._numbers)}"
            self._crew[name] = self._executor.start(
                self._settings.given(self._planned.id, name, self._settings.traces)
            )
        self._progress.workers = len(self._crew)

    def _hangs(self, name: str, lease: Lease | None, *, idle: bool) -> Ended | None:
        """Return that a worker is at a unit for longer than it may be: native code can keep its own
        clock from running.

        One that lost its unit to another may be done with it; it hangs if it does not take one that
        waits (`idle`: none does).
        """
        now = time.monotonic()
        at, since = self._at.get(name, (None, now))
        if lease is not None and lease != at:
            self._at[name] = lease, now
        elif (
            at is None
            or now - since <= self._settings.deadline + self._settings.lease
            or self._queue.entered(at)
        ):
            return None
        elif lease == at:
            return Ended(
                f"is at {self._named(at.place)} for longer than {self._settings.deadline:g} s, and"
                " did not end itself"
            )
        elif not idle:
            return Ended(f"lost {self._named(at.place)}, and takes none of those that wait")
        return None

    def _let_go(self, name: str, ended: Ended) -> None:
        """Do without a worker that ended. Raises UsageError if one after another does."""
        self._executor.stop(self._crew.pop(name))
        self._at.pop(name, None)
        self._queue.lost(name)
        self._progress.lost += 1
        self._progress.incidents.append(f"worker {name} {ended.why}; what it held is leased again")
        self._fruitless += 1
        self._lost += [ended.why] if ended.lost else []
        most = (
            self._settings.workers
            if ended.refused
            else self._settings.attempts * self._settings.workers + FRUITLESS
        )
        if self._fruitless > most:
            raise UsageError(f"no worker can go on; the last one said: {ended.why}")

    def _stop(self) -> None:
        for handle in self._crew.values():
            self._executor.stop(handle)
        with suppress(UsageError):  # then their leases run out
            for name in self._crew:
                self._queue.lost(name)
        self._crew.clear()

    def _done(self) -> Iterator[tuple[Unit, Outcome]]:
        """Yield the units that are done and what came of each, in the order of units."""
        for place, unit in self._units.items():
            if place in self._seen:
                yield unit, self._outcome(place)

    def _added_up(self, totals: Totals) -> Result:
        stamped: list[tuple[str, str]] = []
        for place, unit in self._units.items():
            if place not in self._seen:
                totals.miss(unit)
                stamped.append((self._keys[place], NOT_DONE))
                continue
            outcome = self._outcome(place)
            if isinstance(unit, Shrunk):
                totals.small(unit, outcome)
            else:
                totals.add(unit, outcome)
            stamped.append((self._keys[place], outcome.digest))
        return Result(totals, self._progress, stamp(stamped))
