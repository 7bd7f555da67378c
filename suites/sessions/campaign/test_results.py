"""The results of units, in SQLite and in PostgreSQL: whose they are, what counts where there are
two, and what goes wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.checkers.finding import Finding
from cachewitness.sessions.campaign.database import Database, without_password
from cachewitness.sessions.campaign.results import Results, store_name
from cachewitness.sessions.campaign.unit import Met, Outcome, stored
from suites.support import postgresql

KEYS = [f"key-{number}" for number in range(4)]
TRACES = "/where/traces/are"


@pytest.fixture(scope="module")
def shared() -> Iterator[str]:
    """Yield a server whose texts have no encoding, the least that one can have."""
    if why := postgresql.missing():
        pytest.skip(why)
    with postgresql.server(encoding="SQL_ASCII") as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return an empty database."""
    if request.param == "sqlite":
        return str(tmp_path / "state.sqlite")
    url: str = request.getfixturevalue("shared")
    with closing(Database(url)) as emptied:
        emptied.alone(lambda execute: execute("DROP TABLE IF EXISTS results"))
    return url


_OPENED: list[Database] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close what a test opened."""
    yield
    while _OPENED:
        _OPENED.pop().close()


def results_of(database: str, campaign: str = "one", traces: str = TRACES) -> Results:
    _OPENED.append(Database(database))
    return Results(_OPENED[-1], campaign, traces)


def found(anomaly: str, *, unkept: str = "") -> Outcome:
    """Return an outcome with a finding."""
    finding = Finding(anomaly=anomaly, checker="safety-law", sentence="…", seq=1, op=1)
    met = Met(id="fuzz:1@l", finding=finding, trace="0", level="manager", kinds=["full"])
    return Outcome(digest=anomaly, met=[met], unkept=unkept)


def anomalies(outcome: Outcome) -> list[str]:
    return [met.finding.anomaly for met in outcome.met]


def test_what_is_entered_is_read_in_the_order_that_is_asked_for(database: str) -> None:
    results = results_of(database)
    for key in KEYS[:3]:
        results.enter(key, Outcome(digest=key))
    asked = [KEYS[2], KEYS[3], KEYS[0]]
    read = dict(results.read(asked))
    assert list(read) == asked and read[KEYS[3]] is None
    assert read[KEYS[0]] == stored(Outcome(digest=KEYS[0]), KEYS[0])
    assert results.outcome(KEYS[0], read[KEYS[0]]).digest == KEYS[0]


def test_a_result_counts_in_every_campaign_with_its_store_but_for_a_self_test(
    database: str,
) -> None:
    first = results_of(database)
    first.enter(KEYS[0], Outcome(digest="shared"))
    first.enter(KEYS[1], Outcome(digest="own"), own=True)
    assert [written is None for _, written in first.read(KEYS[:2])] == [False, False]
    other = results_of(database, "other")
    assert [written is None for _, written in other.read(KEYS[:2])] == [False, True]
    elsewhere = results_of(database, traces="/another/store")
    assert [written for _, written in elsewhere.read(KEYS[:2])] == [None, None]


@pytest.mark.parametrize(
    ("before", "now", "kept"),
    [
        (Outcome(digest="a"), Outcome(digest="b"), []),
        (found("leak"), Outcome(digest="b"), ["leak"]),
        (Outcome(digest="a"), found("leak"), ["leak"]),
        (found("leak"), found("leak"), ["leak"]),
        (found("leak"), found("stale-hit"), ["stale-hit", "leak"]),
        (found("leak", unkept="the disk is full"), Outcome(wrong="x"), ["leak"]),
    ],
)
def test_no_finding_gives_way_to_what_came_later(
    before: Outcome, now: Outcome, kept: list[str], database: str
) -> None:
    """A unit is done twice: by two drivers, or again for its trace."""
    results = results_of(database)
    results.enter(KEYS[0], before)
    assert anomalies(results.enter(KEYS[0], now)) == kept
    ((_, written),) = results_of(database).read(KEYS[:1])
    assert anomalies(results.outcome(KEYS[0], written)) == kept


def test_what_was_judged_does_not_give_way_to_what_came_to_nothing(database: str) -> None:
    results = results_of(database)
    assert results.enter(KEYS[0], Outcome(wrong="memory was short")).wrong
    assert results.enter(KEYS[0], Outcome(digest="judged")).digest == "judged"
    assert results.enter(KEYS[0], Outcome(wrong="memory was short")).digest == "judged"


def test_two_drivers_at_once_lose_nothing(database: str) -> None:
    """Each enters findings of its own for the same units."""
    results_of(database)

    def drive(anomaly: str) -> None:
        with closing(Database(database)) as own:
            results = Results(own, "one", TRACES)
            for key in KEYS:
                results.enter(key, found(anomaly))

    drivers = [threading.Thread(target=drive, args=[one]) for one in ("leak", "stale-hit", "x")]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    results = results_of(database)
    for key, written in results.read(KEYS):
        assert set(anomalies(results.outcome(key, written))) == {"leak", "stale-hit", "x"}


def test_a_connection_that_is_cut_is_made_again(shared: str) -> None:
    """The server restarts, or a firewall forgets the connection: what was to be written is."""
    results = results_of(shared, "cut")
    with closing(Database(shared)) as other:
        other.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            " AND datname IS NOT NULL"
        )
    assert results.enter("cut", Outcome(digest="cut")).digest == "cut"
    ((_, written),) = results.read(["cut"])
    assert written


def test_a_store_is_named_as_it_is_seen_from_the_database(tmp_path: Path) -> None:
    """So that both may be moved together."""
    state = str(tmp_path / "a/state.sqlite")
    assert store_name(str(tmp_path / "a/traces"), state) == "traces"
    assert store_name(str(tmp_path / "b/traces"), state) == "../b/traces"
    assert store_name("s3://bucket/traces", state) == "s3://bucket/traces"
    assert store_name("/t", "postgresql://me@host/db") == "/t"


def test_a_database_that_is_none_is_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.sqlite"
    broken.write_text(
        "this is no database, although it is long enough to be taken for one at first sight" * 20
    )
    with pytest.raises(UsageError, match=r"broken\.sqlite: file is not a database"):
        Database(str(broken))
    with pytest.raises(UsageError, match="its folder cannot be made"):
        Database(str(broken / "state.sqlite"))


def test_a_password_is_not_told() -> None:
    assert without_password("postgresql://me:secret@host:5432/db") == "postgresql://me@host:5432/db"
    assert without_password("postgresql://host/db") == "postgresql://host/db"
    assert (
        without_password("postgresql://me@host/db?password=se@cret&sslmode=require")
        == "postgresql://me@host/db?password=…&sslmode=require"
    )


@pytest.mark.parametrize("name", ["mysql://me@host/x", ":memory:"])
def test_a_database_is_a_file_or_a_server_of_the_kind_that_is_known(name: str) -> None:
    with pytest.raises(
        UsageError, match=r"it is a file, or the URL of a PostgreSQL server, postgresql://"
    ):
        Database(name)
