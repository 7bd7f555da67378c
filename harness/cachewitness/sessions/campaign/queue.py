"""The units of a campaign in its database: who holds which, and what came of each.

A worker leases a unit for some seconds and renews the lease while it lives. A lease that ran out is
given to somebody else, with the next number (`fence`). An outcome is taken only from whoever has
the latest number, so a unit is counted once, whoever comes late. An outcome is one row, written at
once: a unit is done or not done, whatever is killed when.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cachewitness._util.errors import UsageError
from cachewitness.sessions.campaign.database import Database

OVER = "over"

_TABLES = (
    """CREATE TABLE IF NOT EXISTS campaigns (
        id TEXT PRIMARY KEY, name TEXT NOT NULL, traces TEXT NOT NULL, state TEXT NOT NULL, late INTEGER NOT NULL)""",  # noqa: E501
    """CREATE TABLE IF NOT EXISTS units (
        campaign TEXT NOT NULL, place INTEGER NOT NULL, unit TEXT NOT NULL, spec {blob} NOT NULL, state TEXT NOT NULL,
        fence INTEGER NOT NULL, attempts INTEGER NOT NULL, worker TEXT NOT NULL, expires DOUBLE PRECISION NOT NULL,
        finished DOUBLE PRECISION NOT NULL, judged INTEGER NOT NULL, outcome {blob},
        PRIMARY KEY (campaign, place), UNIQUE (campaign, unit))""",  # noqa: E501
    "CREATE INDEX IF NOT EXISTS units_by_state ON units (campaign, state, place)",
    "CREATE INDEX IF NOT EXISTS units_by_key ON units (unit)",
)

_SOUND = """state IN ('waiting', 'leased', 'done') AND judged IN (0, 1)
    AND place BETWEEN 0 AND 2147483647 AND fence BETWEEN 0 AND 2147483647 AND attempts BETWEEN 0 AND 2147483647
    AND expires BETWEEN 0 AND 1e300 AND finished BETWEEN 0 AND 1e300"""  # noqa: E501
"""What is true of every row that is written here. SQLite takes a text in any column, and holds it
for larger than a number."""
_PLACES = "SELECT unit, place FROM units WHERE campaign = ?"
_DONE_BEFORE = """UPDATE units SET state = 'done', worker = 'before', finished = {now}, judged = 1, outcome = other.outcome
    FROM units AS other JOIN campaigns ON campaigns.id = other.campaign
    WHERE units.campaign = ? AND units.state = 'waiting' AND other.unit = units.unit AND other.state = 'done'
    AND other.judged = 1 AND campaigns.traces = ?%s"""  # noqa: E501
_LEASE = """UPDATE units SET state = 'leased', fence = fence + 1, attempts = attempts + 1, worker = ?, expires = {now} + ?
    WHERE campaign = ? AND place = (
        SELECT place FROM units WHERE campaign = ? AND %s ORDER BY place LIMIT 1 {skip})
    RETURNING place, fence, unit, spec, outcome"""  # noqa: E501
_FRESH = _LEASE % "state = 'waiting'"
_AGAIN = _LEASE % "state = 'leased' AND expires < {now} AND attempts < ?"


class OddRow(UsageError):
    """A row of a unit that cachewitness did not write: the line says which, why, and how the
    unit is done again.
    """


class Leased(NamedTuple):
    """A unit that a worker holds: its place in the campaign, the number of its lease, its key, and
    what to do.

    `before`: what came of it when it was done before; empty if it was not.
    """

    place: int
    fence: int
    key: str
    spec: bytes
    before: bytes = b""


class Lease(NamedTuple):
    """The place of a unit that is leased, and the number of its lease."""

    place: int
    fence: int


class Held(NamedTuple):
    """A lease as it stands in the database, until it is renewed: the place of the unit, the
    number of the lease, its end.
    """

    place: int
    fence: int
    expires: float


class Rest(NamedTuple):
    """What is still to be done, by places: the first units that wait, in order, and those that are
    leased.

    `given_up` ran out of attempts, and nobody holds them.
    """

    waiting: list[int]
    leased: set[int]
    given_up: set[int]


class Queue:
    """The units of one campaign. `attempts`: so often a unit is leased before it is given up."""

    def __init__(self, database: Database, campaign: str, attempts: int) -> None:
        self._database = database
        self.campaign = campaign
        self._attempts = attempts

    def enrol(
        self, name: str, traces: str, units: Sequence[tuple[str, bytes]], own: Sequence[str] = ()
    ) -> dict[str, int]:
        """Enter units, each a key and what to do, behind those that are there; return the places of
        all units by their keys.

        A unit that is there already stays as it is. One that another campaign of this database has
        done, with the same store of traces, is done here too, but not one whose key is in `own`.
        Raises UsageError if the campaign was begun with another store.
        """
        statements = self._tables()
        statements.append(
            (
                (
                    "INSERT INTO campaigns (id, name, traces, state, late) VALUES (?, ?, ?, 'open',"
                    " 0) ON CONFLICT (id) DO UPDATE SET state = 'open'"
                ),
                (self.campaign, name, traces),
            )
        )
        statements += [
            (
                (
                    "INSERT INTO units (campaign, place, unit, spec, state, fence, attempts,"
                    " worker, expires, finished, judged, outcome) SELECT ?, coalesce(max(place) +"
                    " 1, 0), ?, ?, 'waiting', 0, 0, '', 0, 0, 0, NULL FROM units WHERE campaign = ?"
                    " ON CONFLICT (campaign, unit) DO NOTHING"
                ),
                (self.campaign, unit, spec, self.campaign),
            )
            for unit, spec in units
        ]
        but = f" AND units.unit NOT IN ({', '.join('?' * len(own))})" if own else ""
        statements.append((_DONE_BEFORE % but, (self.campaign, traces, *own)))
        self._database.write(statements)
        self.check()
        ((begun,),) = self._database.rows(
            "SELECT traces FROM campaigns WHERE id = ?", self.campaign
        )
        if begun != traces:
            raise UsageError(
                f"campaign {name}: it was begun with its traces in {begun}, not in {traces}; name"
                " that"
            )
        return {
            str(unit): int(place) for unit, place in self._database.rows(_PLACES, self.campaign)
        }

    def _tables(self) -> list[tuple[str, tuple[object, ...]]]:
        alone = [self._database.alone] if self._database.alone else []
        return [(statement, ()) for statement in (*alone, *_TABLES)]

    def wait(self) -> None:
        """Make the tables if they are not there, so that a worker may come before the driver."""
        self._database.write(self._tables())

    def forgive(self) -> None:
        """Give every unit its attempts back, and have those done again that came to nothing."""
        self._database.changed(
            "UPDATE units SET state = 'waiting' WHERE campaign = ? AND state = 'done' AND"
            " judged = 0",
            self.campaign,
        )
        self._database.changed(
            "UPDATE units SET attempts = 0 WHERE campaign = ? AND state <> 'done'", self.campaign
        )

    def lease(self, worker: str, seconds: float) -> Leased | None:
        """Return a unit to carry out within so many seconds, unless the lease is renewed; None
        if there is none now.
        """
        named = (worker, seconds, self.campaign, self.campaign)
        rows = self._database.rows(_FRESH, *named) or self._database.rows(
            _AGAIN, *named, self._attempts
        )
        if not rows:
            return None
        place, fence, key, spec, before = rows[0]
        return Leased(place, fence, str(key), _content(spec), _content(before))

    def renew(self, leased: Leased, seconds: float) -> bool:
        """Hold a unit for so many seconds from now; False if somebody else has it by now."""
        statement = (
            "UPDATE units SET expires = {now} + ? WHERE campaign = ? AND place = ? AND fence = ?"
            " AND state = 'leased'"
        )
        return bool(
            self._database.changed(statement, seconds, self.campaign, leased.place, leased.fence)
        )

    def complete(self, leased: Leased, outcome: bytes, *, judged: bool = True) -> bool:
        """Enter what came of a unit; False, and it is not counted, if somebody else has the unit by
        now.

        `judged`: it need not be done again by the same command.
        """
        statement = (
            "UPDATE units SET state = 'done', outcome = ?, judged = ?, finished = {now} "
            "WHERE campaign = ? AND place = ? AND fence = ? AND state = 'leased'"
        )
        if self._database.changed(
            statement, outcome, int(judged), self.campaign, leased.place, leased.fence
        ):
            return True
        self._database.changed("UPDATE campaigns SET late = late + 1 WHERE id = ?", self.campaign)
        return False

    def lost(self, worker: str) -> None:
        """End the leases of a worker that is known to be gone."""
        self._database.changed(
            "UPDATE units SET expires = 0 WHERE campaign = ? AND state = 'leased' AND worker = ?",
            self.campaign,
            worker,
        )

    def leases(self) -> dict[str, Lease]:
        """Return which lease each worker has, whether or not it ran out."""
        rows = self._database.rows(
            "SELECT worker, place, fence FROM units WHERE campaign = ? AND state = 'leased'",
            self.campaign,
        )
        return {str(worker): Lease(place, fence) for worker, place, fence in rows}

    def entered(self, lease: Lease) -> bool:
        """Whether the outcome of a unit was entered under this lease."""
        statement = (
            "SELECT 1 FROM units WHERE campaign = ? AND place = ? AND fence = ? AND state = 'done'"
        )
        return bool(self._database.rows(statement, self.campaign, *lease))

    def beyond(self, seconds: float) -> list[Held]:
        """Return the leases that end later than so many seconds from now."""
        rows = self._database.rows(
            "SELECT place, fence, expires FROM units WHERE campaign = ? AND state = 'leased' AND"
            " expires > {now} + ?",
            self.campaign,
            seconds,
        )
        return [Held(*row) for row in rows]

    def take_back(self, held: Held) -> bool:
        """End a lease; False if it was renewed meanwhile."""
        statement = (
            "UPDATE units SET expires = 0 WHERE campaign = ? AND state = 'leased' AND place = ? AND"
            " fence = ? AND expires = ?"
        )
        return bool(
            self._database.changed(statement, self.campaign, held.place, held.fence, held.expires)
        )

    def rest(self, most: int) -> Rest:
        """Return what is still to be done: the first units that wait, at most so many, and all that
        are leased.

        That costs no more the more is done. Raises OddRow if the row of one of them is as none is
        written.
        """
        waiting = (
            f"SELECT place, {_SOUND} FROM units WHERE campaign = ? AND state = 'waiting' ORDER BY"
            " place LIMIT ?"
        )
        leased = (
            f"SELECT place, {_SOUND}, expires < {{now}} AND attempts >= ? FROM units WHERE campaign"
            " = ? AND state = 'leased'"
        )
        first = self._database.rows(
            waiting, self.campaign, most
        )  # before the leased: no unit is leased unseen in between
        held = self._database.rows(leased, self._attempts, self.campaign)
        if not all(row[1] for row in (*first, *held)):
            self.check()
        return Rest(
            [int(place) for place, _ in first],
            {int(place) for place, _, given_up in held if not given_up},
            {int(place) for place, _, given_up in held if given_up},
        )

    def done(self, among: Iterable[int] | None = None) -> list[int]:
        """Return the places of the units that are done, of some units if given; not by times,
        since a clock may be set back.
        """
        if among is None:
            statement = (
                f"SELECT place FROM units WHERE campaign = ? AND state = 'done' AND {_SOUND}"
            )
            return sorted(int(place) for (place,) in self._database.rows(statement, self.campaign))
        # one by one: asked for several, a server that has no statistics yet reads all that are done
        statement = (
            f"SELECT state = 'done' AND {_SOUND} FROM units WHERE campaign = ? AND place = ?"
        )
        return [
            place
            for place in sorted(among)
            if (True,) in self._database.rows(statement, self.campaign, place)
        ]

    def check(self) -> None:
        """Raise OddRow if there is a row as none is written."""
        columns = ("state", "place", "fence", "attempts", "judged", "expires", "finished")
        statement = (
            f"SELECT unit, {', '.join(columns)} FROM units WHERE campaign = ? AND NOT ({_SOUND})"
            " LIMIT 1"
        )
        for key, *values in self._database.rows(statement, self.campaign):
            row = ", ".join(
                f"{column} {value!r}" for column, value in zip(columns, values, strict=True)
            )
            raise self.odd(key, f"is none that a campaign writes ({row})")

    def odd(self, key: str, why: str) -> OddRow:
        """Return what is raised for the row of a unit that cannot be used."""
        row = f"database {self._database.without_password}: the row of unit {key} in the table units {why}"  # noqa: E501
        return OddRow(f"{row}; DELETE FROM units WHERE unit = '{key}' has the unit done again")

    def outcome(self, place: int) -> bytes:
        """Return what came of a unit that is done; nothing if its row is gone or has no outcome."""
        rows = self._database.rows(
            "SELECT outcome FROM units WHERE campaign = ? AND place = ?", self.campaign, place
        )
        return _content(rows[0][0]) if rows else b""

    def spec(self, place: int) -> bytes:
        """Return what a unit is, as it was stored."""
        rows = self._database.rows(
            "SELECT spec FROM units WHERE campaign = ? AND place = ?", self.campaign, place
        )
        return _content(rows[0][0]) if rows else b""

    def end(self) -> None:
        """Tell every worker that there will be no more."""
        self._database.changed("UPDATE campaigns SET state = 'over' WHERE id = ?", self.campaign)

    @property
    def traces(self) -> str | None:
        """Where the campaign keeps its traces; None if nobody has entered it yet."""
        rows = self._database.rows("SELECT traces FROM campaigns WHERE id = ?", self.campaign)
        return str(rows[0][0]) if rows else None

    @property
    def over(self) -> bool:
        """Whether there will be no more; not if nobody has entered the campaign yet."""
        rows = self._database.rows("SELECT state FROM campaigns WHERE id = ?", self.campaign)
        return bool(rows) and rows[0][0] == OVER

    @property
    def late(self) -> int:
        """How many outcomes came from workers that had lost their lease, and were not counted."""
        rows = self._database.rows("SELECT late FROM campaigns WHERE id = ?", self.campaign)
        late = rows[0][0] if rows else 0
        if not isinstance(late, int):
            row = (
                f"the row of campaign {self.campaign} in the table campaigns is none that a"
                f" campaign writes (late {late!r})"
            )
            raise UsageError(
                f"database {self._database.without_password}: {row}; UPDATE campaigns SET late = 0 mends it"  # noqa: E501
            )
        return late


def _content(value: object) -> bytes:
    """Return what a column of bytes holds; nothing if it holds none."""
    return bytes(value) if isinstance(value, bytes | memoryview) else b""
