"""What a campaign costs beside its work: one worker and two, and the load that units put on a
database.

    python -m benchmarks.campaign_scaling [--database URL] [--times 3] \
        [--write docs/results/campaign.md]

The same campaign is carried out by one worker and by two, in turn; the best time of each counts.
Then workers that do nothing but lease units and enter outcomes, as large as those of the campaign,
show how many units the database takes in a second, and adding outcomes up how many the driver does.
The page works out what 1,000 workers would do from these figures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1] / source)
    for source in ("", "harness", "reference_impl")
]

from benchmarks import sections
from cachewitness import __version__
from cachewitness._util import pages, workers
from cachewitness.cli.campaign import planned_of
from cachewitness.sessions.campaign import file as files
from cachewitness.sessions.campaign.database import Database
from cachewitness.sessions.campaign.plan import Planned
from cachewitness.sessions.campaign.queue import Queue
from cachewitness.sessions.campaign.store import opened
from cachewitness.sessions.campaign.totals import Totals
from cachewitness.sessions.campaign.unit import entered, outcome_of
from cachewitness.sessions.campaign.worker import Given, carry_out

ROOT = Path(__file__).resolve().parents[1]
FILE = """name = "{name}"
seeds = [0]
streams = ["main"]
[[engines]]
engine = "reference"
[budget]
traces = 600
per_unit = {per_unit}
"""
PER_UNIT, USUAL = 10, 50
CLIENTS = (1, 2, 8)
SECONDS = 5.0
DONE = (10_000, 100_000)
"""So many units are done where a driver's look is timed."""
LOOKS, NEW = 20, 10
"""So many looks are timed, each of which finds so many units finished."""
WORKERS = 1_000
CONNECTIONS = 100
"""What PostgreSQL allows if nobody says otherwise."""


def planned(folder: Path, name: str) -> Planned:
    """Return the campaign that is measured."""
    path = folder / f"{name}.toml"
    path.write_text(FILE.format(name=name, per_unit=PER_UNIT), encoding="utf-8")
    return planned_of(files.load(path), path)


def timed(folder: Path, name: str, count: int) -> dict[str, Any]:
    """Carry out the campaign anew with so many workers; return its summary."""
    planned(folder, name)
    command = [
        sys.executable,
        "-P",
        "-m",
        "cachewitness.cli",
        "campaign",
        f"{name}.toml",
        "--json",
        "--workers",
        str(count),
    ]
    command += ["--database", str(folder / f"{name}.sqlite"), "--traces", str(folder / name)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/harness:{ROOT}/reference_impl"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def statements(
    folder: Path, database: str, made: Planned
) -> tuple[Counter[str], list[bytes], float]:
    """Carry the campaign out in this process; return the statements of a worker by kind, the
    outcomes, and seconds per unit.
    """
    counted: Counter[str] = Counter()
    plain = Database._execute

    def execute(self: Database, statement: str, values: tuple[Any, ...]) -> Any:
        counted[statement.split()[0]] += 1
        return plain(self, statement, values)

    setup = Database(database)
    queue = Queue(setup, made.id, 5)
    queue.enrol(made.name, str(folder), made.entries)
    Database._execute = execute  # type: ignore[method-assign]
    began = time.perf_counter()
    try:
        given = Given(
            database=database,
            traces=str(folder),
            campaign=made.id,
            worker="w",
            lease=30.0,
            deadline=600.0,
            attempts=5,
        )
        mine = Queue(Database(database), made.id, 5)
        store = opened(str(folder))
        while (leased := mine.lease("w", 30.0)) is not None:
            carry_out(leased, mine, store, given)
    finally:
        Database._execute = plain  # type: ignore[method-assign]
    seconds = (time.perf_counter() - began) / len(made.units)
    outcomes = [queue.outcome(place) for place in queue.done()]
    return counted, outcomes, seconds


def _client(database: str, campaign: str, outcome: bytes, seconds: float) -> tuple[int, float]:
    """Lease units and enter outcomes for so long, or until there are none; return how many, and
    the seconds that it took.
    """
    queue = Queue(Database(database), campaign, 5)
    done = 0
    began = time.monotonic()
    while time.monotonic() < began + seconds and (leased := queue.lease("w", 30.0)) is not None:
        queue.complete(leased, outcome)
        done += 1
    return done, time.monotonic() - began


class Rate(NamedTuple):
    """How many units a second a database takes from workers, and from the driver that enters
    them.
    """

    done: float
    entered: float


def rate(database: str, clients: int, outcome: bytes, units: int) -> Rate:
    """Return what the database takes from so many workers that do nothing but lease units and
    enter outcomes.
    """
    name = f"rate-{os.getpid()}-{clients}-{units}"
    queue = Queue(Database(database), name, 5)
    began = time.perf_counter()
    queue.enrol(name, "", [(f"{name}-{number}", b"") for number in range(units)])
    entered = units / (time.perf_counter() - began)
    with workers.workers(clients, method="spawn") as pool:
        list(
            pool.map(_client, *zip(*[(database, name, outcome, 0.0)] * clients, strict=True))
        )  # each imports first
        measured = list(
            pool.map(_client, *zip(*[(database, name, outcome, SECONDS)] * clients, strict=True))
        )
    return Rate(
        sum(done for done, _ in measured) / max(seconds for _, seconds in measured), entered
    )


def look(database: str, units: int) -> float:
    """Return the least seconds that a database takes for a look of a driver, where so many units
    are done.
    """
    name = f"look-{os.getpid()}-{units}"
    kept = Database(database)
    queue = Queue(kept, name, 5)
    queue.enrol(name, "", [(f"{name}-{number}", b"") for number in range(units + NEW)])
    kept.changed(
        "UPDATE units SET state = 'done', outcome = ? WHERE campaign = ? AND place < ?",
        b"",
        name,
        units,
    )
    for _ in range(NEW // 2):
        queue.lease("w", 30.0)
    took = list[float]()
    for _ in range(LOOKS):
        began = time.perf_counter()
        rest = queue.rest(NEW)
        queue.done(range(units - NEW, units))
        late = queue.late
        queue.beyond(30.0)
        took.append(time.perf_counter() - began)
    kept.close()
    assert len(rest.leased) == len(rest.waiting) == NEW // 2 and not late
    return min(took)


def kind(database: str) -> str:
    """Return what a server is, and whether it waits for its disk."""
    server = Database(database)
    ((fsync,),) = server.rows("SHOW fsync")
    ((waits,),) = server.rows("SHOW synchronous_commit")
    server.close()
    return "PostgreSQL" + (
        "" if "off" not in (fsync, waits) else " that does not wait for its disk"
    )


def added(made: Planned, outcomes: list[bytes]) -> float:
    """Return how many outcomes a driver adds up in a second of CPU time."""
    began = time.process_time()
    totals = Totals(made)
    for _ in range(5):
        for unit, outcome in zip(made.units, outcomes, strict=True):
            totals.add(unit, outcome_of(outcome, entered(unit)[0]))
    return 5 * len(outcomes) / (time.process_time() - began)


def main() -> int:
    """Measure, print the section, and return 1 if one worker and two came to something else."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", default="")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--units", type=int, default=100_000)
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cachewitness-scaling-") as kept:
        folder = Path(kept)
        summaries = {
            count: [timed(folder, f"t{n}-{count}", count) for n in range(args.times)]
            for count in (1, 2)
        }
        digests = {one["digest"] for runs in summaries.values() for one in runs}
        best = {count: min(one["seconds"] for one in runs) for count, runs in summaries.items()}
        print(best, digests, flush=True)
        made = planned(folder, "counted")
        state = str(folder / "state.sqlite")
        counted, outcomes, seconds = statements(folder, state, made)
        outcome = max(outcomes, key=len)
        clients = [count for count in CLIENTS if args.database or count <= 2]
        rates = {
            count: rate(args.database or state, count, outcome, args.units) for count in clients
        }
        looks = {units: look(args.database or state, units) for units in DONE}
        driver = added(made, outcomes)
        database = kind(args.database) if args.database else "SQLite"
    usual = seconds * USUAL / PER_UNIT
    most = max(one.done for one in rates.values())
    text = pages.render(
        "campaign-scaling",
        release=__version__,
        today=date.today().isoformat(),
        load=os.getloadavg()[1],
        database=database,
        best=best,
        units=len(made.units),
        statements={kind: count / len(made.units) for kind, count in counted.items()},
        size=statistics.mean(map(len, outcomes)),
        rates={count: one.done for count, one in rates.items()},
        entered=max(one.entered for one in rates.values()),
        most=most,
        looks=looks,
        new=NEW,
        driver=driver,
        usual=usual,
        per_unit=USUAL,
        workers=WORKERS,
        connections=CONNECTIONS,
        asked=WORKERS / usual,
        shortest=WORKERS / most,
        shortest_driver=WORKERS / driver,
    )
    sections.tell(text, args.write)
    return 0 if len(digests) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
