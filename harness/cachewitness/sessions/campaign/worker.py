"""A worker: leases units one after another, carries them out, and enters what came of them, until
the campaign is over.

It may be killed at any time. It holds nothing but leases, which run out.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from types import TracebackType
from typing import Self

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness._util.workers import die_with_the_parent
from cachewitness.core.result import EXIT_USAGE
from cachewitness.sessions.campaign import unit as units
from cachewitness.sessions.campaign.database import Database
from cachewitness.sessions.campaign.perform import perform, with_those_before
from cachewitness.sessions.campaign.queue import Leased, Queue
from cachewitness.sessions.campaign.store import Store, opened
from cachewitness.sessions.campaign.totals import of_canary

BEATS = 3
"""So many times a lease is renewed before it would run out."""
IDLE_MIN, IDLE_MAX = 0.05, 1.0
"""Seconds between two questions for a unit while there is none."""
MISSED = 10.0
"""Seconds after which a worker says that nobody drives its campaign."""
LET_GO = 1.0
"""Seconds in which a heart that beats last is waited for."""
EXIT_LOST = 74
"""The exit code of a worker that could not enter findings."""
EXIT_TOO_LONG = 75
"""The exit code of a worker whose unit took longer than the campaign allows."""


class FindingsLost(UsageError):
    """Findings were met, and the database does not have them, or cannot be read any more: they
    are told in this line alone.
    """


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has to know. `parent`: the process without which it ends; 0: none.

    `traces` is empty where the campaign's own store is taken, as its driver entered it. `lease` is
    in seconds; a unit that takes longer than `deadline` seconds ends its worker.
    """

    database: str
    traces: str
    campaign: str
    worker: str
    lease: float
    deadline: float
    attempts: int
    parent: int = 0


def serve(given: Given) -> int:
    """Work until the campaign is over; return how many units were entered.

    Raises UsageError if the database or the store of traces cannot be used, or this machine has
    another package or engine; FindingsLost if findings could not be entered.
    """
    database = Database(given.database)
    try:
        queue = Queue(database, given.campaign, given.attempts)
        queue.wait()
        store = opened(given.traces or _traces_of(queue, database))
        return _worked_off(queue, store, given)
    finally:
        database.close()


def _traces_of(queue: Queue, database: Database) -> str:
    """Return where the campaign keeps its traces, once somebody drives it; say so if nobody
    does.
    """
    began = time.monotonic()
    announced = False
    while (traces := queue.traces) is None:
        if not announced and time.monotonic() >= began + MISSED:
            announced = True
            line = (
                f"campaign {queue.campaign} is not in database {database.without_password}, and this worker"  # noqa: E501
                " waits for it"
            )
            remedy = "is it driven, by the same file, package and engines?"
            print(f"cachewitness: {line}; {remedy}", file=sys.stderr, flush=True)
        time.sleep(IDLE_MAX)
    return traces


def _worked_off(queue: Queue, store: Store, given: Given) -> int:
    """Work until the campaign is over. One that is over from the first may be about to go on, if
    somebody drives it again.
    """
    entered = 0
    idle = IDLE_MIN
    began = time.monotonic()
    while True:
        leased = queue.lease(given.worker, given.lease)
        if leased is not None:
            entered += carry_out(leased, queue, store, given)
            idle = IDLE_MIN
        elif queue.over and (given.parent or entered or time.monotonic() >= began + MISSED):
            return entered
        else:
            time.sleep(idle)
            idle = min(2 * idle, IDLE_MAX)


def carry_out(leased: Leased, queue: Queue, store: Store, given: Given) -> bool:
    """Carry out a unit while its lease is renewed, and enter what came of it; False if the lease
    was lost.

    Findings of a class that it came to before stay if it comes to none of that class now.
    """
    try:
        unit = units.read(leased.spec, leased.key)
        before = units.outcome_of(leased.before, leased.key) if leased.before else None
    except UsageError as error:
        raise queue.odd(leased.key, str(error)) from None
    units.check_same(unit)
    with _Heart(leased, given):
        outcome = perform(unit, store)
        units.check_same(unit, afresh=True)
    if before and before.met:
        outcome = with_those_before(outcome, before)
    try:
        return queue.complete(leased, units.stored(outcome, leased.key), judged=outcome.judged)
    except UsageError as error:
        if not outcome.met or of_canary(unit):
            raise
        finding = outcome.met[0].finding
        named = f"{unit.engine.text}, {unit.policy}: {unit.name}"
        first = f"{finding.anomaly} by {finding.checker}: {finding.sentence}"
        raise FindingsLost(
            f"{error}; findings of {named} could not be entered, the first being {first}"
        ) from None


class _Heart:
    """Renews a lease now and then, in a thread, and ends the process if the unit takes too long."""

    def __init__(self, leased: Leased, given: Given) -> None:
        self._leased = leased
        self._given = given
        self._over = threading.Event()
        self._until = time.monotonic() + given.deadline
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(
            LET_GO
        )  # it may be waiting for a server that is away; what it still renews is done by then

    def _beat(self) -> None:
        given = self._given
        held = True
        database: Database | None = None
        while not self._over.wait(
            min(given.lease / BEATS, max(0.0, self._until - time.monotonic()))
        ):
            if time.monotonic() >= self._until:
                os._exit(EXIT_TOO_LONG)
            if not held:
                continue  # somebody else has the unit by now
            try:
                database = database or Database(given.database)
                held = Queue(database, given.campaign, given.attempts).renew(
                    self._leased, given.lease
                )
            except UsageError:
                continue  # the lease runs out, and somebody else does the unit
        if database is not None:
            database.close()


def main() -> int:
    """Work as standard input says, for the process that started this one; return the exit code."""
    given = msgspec.json.decode(sys.stdin.buffer.read(), type=Given)
    if given.parent:
        die_with_the_parent()
        if os.getppid() != given.parent:
            return EXIT_USAGE
    try:
        serve(given)
    except UsageError as error:
        print(error, file=sys.stderr)
        return EXIT_LOST if isinstance(error, FindingsLost) else EXIT_USAGE
    return 0
