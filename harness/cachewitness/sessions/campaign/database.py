"""The database of campaigns: a file of SQLite, or a PostgreSQL server.

Statements are written once, with `?` for values. Where the two differ is in `_Dialect`: what stands
for a value, the type of bytes, how one of several writers goes first, and what is raised.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cachewitness._util.errors import EngineMissing, UsageError

Execute = Callable[..., Any]
"""Carries out a statement with its values and returns its cursor."""
Result = TypeVar("Result")
SERVERS = ("postgresql://", "postgres://")
"""How the name of a database begins that is no file."""
_ALIVE = {
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""A connection whose other end went away without a word ends within a minute; the last in
milliseconds."""
_SECRET = re.compile(r"([?&](?:ssl)?password=)[^&]*", re.IGNORECASE)
LOCK = 1_702_195_311
"""The number of the lock of a server under which everything is written."""
BUSY = 60.0
"""Seconds in which another writer must be done, or a server come back."""
CONNECT = 10
"""Seconds in which a server must answer a connection."""
PAUSE = 0.5
"""Seconds between two attempts to reach a server."""


@dataclass(frozen=True)
class _Dialect:
    connect: Callable[[], Any]
    broken: tuple[type[Exception], ...]
    lost: tuple[type[Exception], ...]
    placeholder: str
    blob: str
    begin: tuple[str, ...]


class Database:
    """A connection, for one thread. Raises UsageError, one line, if the database cannot be
    opened or used.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.shared = name.startswith(SERVERS)
        self._dialect = _postgresql(name) if self.shared else _sqlite(name)
        self._connection: Any = None
        self._connection = self._reached(self._dialect.connect, patience=0.0)
        self._path = Path(name).absolute()
        self._file = None if self.shared else _file(self._path)

    @property
    def without_password(self) -> str:
        """The name without a password."""
        return without_password(self.name)

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Carry out a statement and return its rows.

        It is carried out again if the server went away meanwhile, so it must do no harm twice.
        """
        found: list[tuple[Any, ...]] = self._reached(
            lambda: self._execute(statement, *values).fetchall()
        )
        return found

    def alone(self, call: Callable[[Execute], Result]) -> Result:
        """Return what `call` does with what carries out a statement and returns its cursor: all of
        it is written or nothing, and nobody writes meanwhile.

        It is called again if the server went away meanwhile, so it must do no harm twice.
        """

        def whole() -> Result:
            with self._transaction():
                return call(self._execute)

        done: Result = self._reached(whole)
        return done

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with suppress(*self._dialect.broken):
                self._connection.close()
            self._connection = None

    def _execute(self, statement: str, *values: Any) -> Any:
        statement = statement.replace("{blob}", self._dialect.blob)
        return self._connection.execute(statement.replace("?", self._dialect.placeholder), values)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        for statement in self._dialect.begin:
            self._connection.execute(statement)
        try:
            yield
        except BaseException:
            with suppress(*self._dialect.broken):
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _reached(self, call: Callable[[], Any], patience: float = BUSY) -> Any:
        """Return what `call` does, and call it again while the server is away, for so many
        seconds.
        """
        until = time.monotonic() + patience
        if self._connection is not None and not self.shared and self._file != _file(self._path):
            gone = (
                "its file was removed or replaced while it was in use, and what is in it now is not"
                " what was done"
            )
            raise UsageError(
                f"database {self.without_password}: {gone}; put the file back, or the same command begins anew"  # noqa: E501
            )
        while True:
            try:
                if self._connection is None and patience:
                    self._connection = self._dialect.connect()
                return call()
            except self._dialect.lost as error:
                if time.monotonic() >= until:
                    raise UsageError(
                        f"database {self.without_password}: cannot be reached ({_line(error)})"
                    ) from None
                self.close()
                time.sleep(PAUSE)
            except self._dialect.broken as error:
                raise UsageError(f"database {self.without_password}: {_line(error)}") from None


def _file(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from another one of its name; None if there is none. A file in
    use shares it with no other.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def without_password(name: str) -> str:
    """Return the name of a database without its password."""
    scheme, there, rest = _SECRET.sub(r"\1…", name).partition("://")
    who, at, where = rest.rpartition("@")
    return f"{scheme}://{who.partition(':')[0]}@{where}" if there and at else scheme + there + rest


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _sqlite(name: str) -> _Dialect:
    if "://" in name or name == ":memory:":
        raise UsageError(
            f"database {without_password(name)}: it is a file, or the URL of a PostgreSQL server,"
            " postgresql://…"
        )
    path = Path(name)

    def connect() -> Any:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"database {path}: its folder cannot be made ({error.strerror})"
            ) from None
        connection = sqlite3.connect(path, timeout=BUSY, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    return _Dialect(connect, (sqlite3.Error,), (), "?", "BLOB", ("BEGIN IMMEDIATE",))


def _postgresql(name: str) -> _Dialect:
    try:
        import psycopg
    except ImportError:
        install = "pip install 'cachewitness[cluster]'"
        raise EngineMissing(
            f"database {without_password(name)}: PostgreSQL needs psycopg; {install}", install
        ) from None

    def connect() -> Any:
        return psycopg.connect(
            name, autocommit=True, connect_timeout=CONNECT, client_encoding="utf8", **_ALIVE
        )

    lost = (psycopg.OperationalError, psycopg.InterfaceError)
    begin = ("BEGIN", f"SELECT pg_advisory_xact_lock({LOCK})")
    return _Dialect(connect, (psycopg.Error,), lost, "%s", "BYTEA", begin)
