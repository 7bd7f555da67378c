"""What a campaign costs beside its work: one worker and two, and what its driver does for a unit.

    python -m benchmarks.campaign_scaling [--database URL] [--times 3] \
        [--write docs/results/campaign.md]

The same campaign is carried out by one worker and by two, in turn; the best time of each counts.
Then one process enters outcomes as large as those of the campaign, and adds them up, as the driver
does. The page works out what 1,000 workers would do from these figures.
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
from datetime import date
from pathlib import Path
from typing import Any

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1] / source)
    for source in ("", "harness", "reference_impl")
]


from benchmarks import sections
from cachewitness import __version__
from cachewitness._util import pages
from cachewitness.cli.campaign import planned_of
from cachewitness.sessions.campaign import file as files
from cachewitness.sessions.campaign.database import Database
from cachewitness.sessions.campaign.plan import Planned
from cachewitness.sessions.campaign.results import Results
from cachewitness.sessions.campaign.totals import Totals
from cachewitness.sessions.campaign.unit import outcome_of
from cachewitness.sessions.campaign.worker import Task, carry_out

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
WORKERS = 1_000
ROUNDS = 20
"""So often the outcomes are entered where that is timed."""


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


def carried_out(folder: Path, made: Planned) -> tuple[list[bytes], float]:
    """Carry the campaign out in this process; return the outcomes, and seconds per unit."""
    began = time.perf_counter()
    outcomes = [
        carry_out(Task(key=key, spec=spec, traces=str(folder), deadline=600.0)).outcome
        for key, spec in made.entries
    ]
    return outcomes, (time.perf_counter() - began) / len(outcomes)


def entered_in_a_second(database: str, made: Planned, outcomes: list[bytes], times: int) -> float:
    """Return how many outcomes one process enters in a second, each by itself."""
    keys = [key for key, _ in made.entries]
    read = [outcome_of(outcome, key) for key, outcome in zip(keys, outcomes, strict=True)]
    kept = Database(database)
    began = time.perf_counter()
    for number in range(times):
        results = Results(kept, made.id, f"{os.getpid()}-{number}")
        for key, outcome in zip(keys, read, strict=True):
            results.enter(key, outcome)
    took = time.perf_counter() - began
    kept.close()
    return times * len(keys) / took


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
        for unit, (key, _), outcome in zip(made.units, made.entries, outcomes, strict=True):
            totals.add(unit, outcome_of(outcome, key))
    return 5 * len(outcomes) / (time.process_time() - began)


def main() -> int:
    """Measure, print the section, and return 1 if one worker and two came to something else."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", default="")
    parser.add_argument("--times", type=int, default=3)
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
        outcomes, seconds = carried_out(folder, made)
        state = args.database or str(folder / "state.sqlite")
        rate = entered_in_a_second(state, made, outcomes, ROUNDS)
        driver = added(made, outcomes)
        database = kind(args.database) if args.database else "SQLite"
    usual = seconds * USUAL / PER_UNIT
    text = pages.render(
        "campaign-scaling",
        release=__version__,
        today=date.today().isoformat(),
        load=os.getloadavg()[1],
        database=database,
        best=best,
        units=len(made.units),
        size=statistics.mean(map(len, outcomes)),
        rate=rate,
        driver=driver,
        usual=usual,
        per_unit=USUAL,
        workers=WORKERS,
        asked=WORKERS / usual,
        shortest=WORKERS * (1 / rate + 1 / driver),
    )
    sections.tell(text, args.write)
    return 0 if len(digests) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
