"""The queue of units, in SQLite and in PostgreSQL: who holds a unit, whose outcome counts, what
is leased again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.sessions.campaign.database import Database, without_password
from cachewitness.sessions.campaign.queue import Queue
from suites.support import postgresql
from suites.support.campaigns import counted

UNITS = [(f"key-{number}", f"unit {number}".encode()) for number in range(4)]
ATTEMPTS = 3
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
    emptied = Database(url)
    emptied.changed("DROP TABLE IF EXISTS units, campaigns")
    emptied.close()
    return url


_OPENED: list[Database] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close what a test opened."""
    yield
    while _OPENED:
        _OPENED.pop().close()


def queue_of(database: str, name: str = "one") -> Queue:
    _OPENED.append(Database(database))
    return Queue(_OPENED[-1], name, ATTEMPTS)


def entered(database: str, name: str = "one") -> Queue:
    queue = queue_of(database, name)
    queue.enrol(name, TRACES, UNITS)
    return queue


def test_units_are_leased_in_their_order_and_each_once(database: str) -> None:
    queue = entered(database)
    leased = [queue.lease("a", 60) for _ in UNITS]
    assert [one and (one.place, one.spec) for one in leased] == [
        (n, spec) for n, (_, spec) in enumerate(UNITS)
    ]
    assert queue.lease("b", 60) is None
    assert counted(queue) == (0, 4, 0, 0)


def test_what_is_to_be_done_is_told_apart_from_what_is_done(database: str) -> None:
    """The first that wait, in order; those that are leased; and of some units those that are
    done, in whichever order.
    """
    queue = queue_of(database)
    queue.enrol("one", TRACES, [*UNITS, ("more", b""), ("most", b"")])
    leased = [queue.lease("a", 60) for _ in UNITS]
    for one in reversed(leased[1:]):
        assert one is not None and queue.complete(one, b"done")
    assert queue.rest(1) == ([4], {0}, set()) and queue.rest(5) == ([4, 5], {0}, set())
    assert queue.done() == queue.done([3, 5, 2, 0, 1]) == [1, 2, 3]
    assert queue.done([0, 3]) == [3] and queue.done([]) == []


def test_an_outcome_is_counted_once_and_from_its_holder_alone(database: str) -> None:
    """The lease runs out, another worker gets the unit, and the first comes late: its outcome is
    not taken.
    """
    queue = entered(database)
    first = queue.lease("a", 0)
    for _ in UNITS[1:]:
        queue.lease("a", 60)
    assert first is not None
    time.sleep(0.01)
    second = queue.lease("b", 60)
    assert second is not None and (second.place, second.fence) == (first.place, first.fence + 1)
    assert not queue.renew(first, 60) and queue.renew(second, 60)
    assert not queue.complete(first, b"late")
    assert queue.complete(second, b"counted") and not queue.complete(second, b"again")
    assert queue.outcome(first.place) == b"counted" and queue.late == 2
    assert queue.done() == [first.place]


def test_an_outcome_whose_lease_ran_out_counts_while_nobody_else_has_the_unit(
    database: str,
) -> None:
    queue = entered(database)
    leased = queue.lease("a", 0)
    assert leased is not None and queue.complete(leased, b"done") and queue.late == 0


def test_a_renewed_lease_is_nobody_elses(database: str) -> None:
    queue = queue_of(database)
    queue.enrol("one", TRACES, UNITS[:1])
    leased = queue.lease("a", 0)
    assert leased is not None and queue.renew(leased, 60)
    assert queue.lease("b", 60) is None


def test_a_lost_worker_gives_its_units_back_at_once(database: str) -> None:
    queue = entered(database)
    mine = [queue.lease("a", 600), queue.lease("a", 600)]
    queue.lease("b", 600), queue.lease("b", 600)
    queue.lost("a")
    time.sleep(0.01)
    again = [queue.lease("c", 600), queue.lease("c", 600), queue.lease("c", 600)]
    assert [one and one.place for one in again] == [
        mine[0] and mine[0].place,
        mine[1] and mine[1].place,
        None,
    ]


def test_a_unit_is_given_up_after_its_attempts_and_gets_them_back(database: str) -> None:
    queue = queue_of(database)
    queue.enrol("one", TRACES, UNITS[:1])
    for _ in range(ATTEMPTS):
        assert queue.lease("a", 0) is not None
        time.sleep(0.01)
    assert queue.lease("a", 0) is None and counted(queue) == (0, 0, 0, 1)
    queue.forgive()
    assert queue.lease("a", 0) is not None


def test_entering_again_changes_nothing(database: str) -> None:
    """The same command: what is done stays done, further units come behind."""
    queue = entered(database)
    leased = queue.lease("a", 60)
    assert leased is not None and queue.complete(leased, b"done")
    places = entered(database).enrol("one", TRACES, [*UNITS, ("more", b"more")])
    assert places == {**{key: n for n, (key, _) in enumerate(UNITS)}, "more": 4}
    assert counted(queue) == (4, 0, 1, 0) and queue.outcome(0) == b"done"


def test_what_came_to_nothing_is_done_again(database: str) -> None:
    """By the same command, and by another campaign: a port was taken, or memory short."""
    queue = queue_of(database)
    queue.enrol("one", TRACES, UNITS[:2])
    for judged in (True, False):
        leased = queue.lease("a", 60)
        assert leased is not None and queue.complete(leased, b"outcome", judged=judged)
    other = queue_of(database, "other")
    other.enrol("other", TRACES, UNITS[:2])
    queue.forgive()
    assert counted(queue) == counted(other) == (1, 0, 1, 0)


def test_what_another_campaign_has_done_is_done(database: str) -> None:
    """Units are the same if their keys are: a campaign with a larger budget does what is new."""
    first = queue_of(database, "first")
    first.enrol("first", TRACES, UNITS[:2])
    for _ in range(2):
        leased = first.lease("a", 60)
        assert leased is not None and first.complete(leased, b"outcome of " + leased.spec)
    second = entered(database, "second")
    assert counted(second) == (2, 0, 2, 0)
    assert [second.outcome(place) for place in range(2)] == [
        b"outcome of unit 0",
        b"outcome of unit 1",
    ]
    third = queue_of(database, "third")
    third.enrol("third", "/another/store", UNITS)
    assert counted(third) == (4, 0, 0, 0)  # its traces are elsewhere
    with pytest.raises(
        UsageError, match="it was begun with its traces in /another/store, not in /where"
    ):
        third.enrol("third", TRACES, UNITS)


def test_many_workers_at_once_lease_every_unit_once(database: str) -> None:
    units = [(f"key-{number}", b"") for number in range(40)]
    queue_of(database).enrol("one", TRACES, units)
    taken: list[int] = []

    def work() -> None:
        with closing(Database(database)) as own:
            queue = Queue(own, "one", ATTEMPTS)
            while (leased := queue.lease("w", 60)) is not None:
                taken.append(leased.place)
                assert queue.complete(leased, b"")

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(taken) == list(range(40))


def test_a_campaign_is_over_when_its_driver_says_so(database: str) -> None:
    """A worker that comes before the driver waits; it is not over."""
    early = queue_of(database)
    early.wait()
    assert not early.over and early.lease("a", 1) is None
    queue = entered(database)
    queue.end()
    assert early.over
    entered(database)
    assert not early.over


def test_a_connection_that_is_cut_is_made_again(shared: str) -> None:
    """The server restarts, or a firewall forgets the connection: what was to be done is done,
    once.
    """
    queue = entered(shared, "cut")
    other = queue_of(shared, "cut")
    leased = queue.lease("a", 60)
    assert leased is not None
    other._database.rows(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND"
        " datname IS NOT NULL"
    )
    assert (
        queue.renew(leased, 60)
        and queue.complete(leased, b"done")
        and counted(queue) == (3, 0, 1, 0)
    )


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


def test_a_canary_is_never_done_by_another_campaign(database: str) -> None:
    """What is a campaign's own is done in it; the rest is taken over."""
    first = queue_of(database, "first")
    first.enrol("first", TRACES, UNITS[:2])
    for _ in range(2):
        leased = first.lease("a", 60)
        assert leased is not None and first.complete(leased, b"outcome")
    second = queue_of(database, "second")
    second.enrol("second", TRACES, UNITS[:2], own=[UNITS[0][0]])
    assert counted(second) == (1, 0, 1, 0) and second.outcome(1) == b"outcome"


@pytest.mark.parametrize("name", ["mysql://me@host/x", ":memory:"])
def test_a_database_is_a_file_or_a_server_of_the_kind_that_is_known(name: str) -> None:
    with pytest.raises(
        UsageError, match=r"it is a file, or the URL of a PostgreSQL server, postgresql://"
    ):
        Database(name)
