"""What came of units, by their keys: one table, which the driver of a campaign alone writes.

A row is written at once, so a unit has a result or none, whatever is killed when. A unit's key says
all that its result depends on, so a result counts in every campaign that has the unit and the store
of traces; only those of a self-test are a campaign's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from cachewitness._util.errors import UsageError
from cachewitness.sessions.campaign.database import SERVERS, Database, Execute
from cachewitness.sessions.campaign.perform import combined
from cachewitness.sessions.campaign.unit import Outcome, outcome_of, stored

_TABLE = """CREATE TABLE IF NOT EXISTS results (
    unit TEXT NOT NULL, campaign TEXT NOT NULL, traces TEXT NOT NULL, outcome {blob} NOT NULL,
    PRIMARY KEY (unit, campaign, traces))"""
"""`campaign` is empty but for a self-test."""
_ONE = "SELECT outcome FROM results WHERE unit = ? AND campaign = ? AND traces = ?"
_SEVERAL = (
    "SELECT unit, outcome FROM results WHERE traces = ? AND campaign IN ('', ?) AND unit IN (%s)"
)
_ENTER = """INSERT INTO results (unit, campaign, traces, outcome) VALUES (?, ?, ?, ?)
    ON CONFLICT (unit, campaign, traces) DO UPDATE SET outcome = excluded.outcome"""
AT_ONCE = 200
"""So many results are read at a time."""


class OddRow(UsageError):
    """A row of a unit that cachewitness did not write: the line says which, why, and how the
    unit is done again.
    """


class Results:
    """The results of a campaign's units. `traces` is the name of the store, as `store_name` gives
    it.
    """

    def __init__(self, database: Database, campaign: str, traces: str) -> None:
        self._database = database
        self._campaign = campaign
        self._traces = traces
        database.alone(lambda execute: execute(_TABLE))

    def enter(self, key: str, outcome: Outcome, *, own: bool = False) -> Outcome:
        """Enter what came of a unit, and return that with what was found when it was done before.

        `own`: it counts in this campaign alone. Raises OddRow if what is there cannot be read.
        """
        where = (key, self._campaign if own else "", self._traces)

        def enter(execute: Execute) -> Outcome:
            row = execute(_ONE, *where).fetchone()
            kept = combined(outcome, self.outcome(key, _content(row[0]))) if row else outcome
            execute(_ENTER, *where, stored(kept, key))
            return kept

        return self._database.alone(enter)

    def read(self, keys: Iterable[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield keys in their order, each with the outcome as it is written; None if there is
        none.
        """
        listed = list(keys)
        for first in range(0, len(listed), AT_ONCE):
            some = listed[first : first + AT_ONCE]
            asked = _SEVERAL % ", ".join("?" * len(some))
            rows = self._database.rows(asked, self._traces, self._campaign, *some)
            found = {str(unit): _content(outcome) for unit, outcome in rows}
            for key in some:
                yield key, found.get(key)

    def outcome(self, key: str, written: bytes | None) -> Outcome:
        """Return an outcome that was written. Raises OddRow if cachewitness did not write it."""
        try:
            return outcome_of(written or b"", key)
        except UsageError as error:
            raise OddRow(
                f"database {self._database.without_password}: the row of unit {key} in the table"
                f" results {error}; DELETE FROM results WHERE unit = '{key}' has the unit done"
                " again"
            ) from None


def store_name(traces: str, database: str) -> str:
    """Return how the rows of a database name a store of traces.

    A folder is named as it is seen from the folder of the database, so that both may be moved
    together; a URL as it is.
    """
    if "://" in traces:
        return traces
    folder = Path(traces).absolute()
    if database.startswith(SERVERS):
        return str(folder)
    return os.path.relpath(folder, Path(database).absolute().parent)


def store_place(name: str, database: str) -> str:
    """Return where a store of traces is that the rows of a database name so."""
    return name if "://" in name else os.path.normpath(Path(database).absolute().parent / name)


def _content(value: object) -> bytes:
    """Return what a column of bytes holds; nothing if it holds none."""
    return bytes(value) if isinstance(value, bytes | memoryview) else b""
