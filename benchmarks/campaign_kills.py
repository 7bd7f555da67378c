"""Campaigns whose workers and drivers are killed by signal 9 at random points, beside one that
nobody disturbs.

    python -m benchmarks.campaign_kills [--database URL] [--ray] [--kills 20] [--seed 0] [--write docs/results/campaign.md]

Without options the state is a file of SQLite and workers are processes; with --ray they are tasks
of a cluster of two nodes on this machine, of which one is killed, too. A campaign is killed several
times and begun again each time its driver was; when it is done, the next one begins, until
there were so many kills. Exits 1 if one of them comes to something else than the undisturbed one,
in any sum, finding or digest. Linux only, since processes are found in /proc.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1] / source)
    for source in ("", "harness", "reference_impl")
]

from benchmarks import sections
from benchmarks.ray_cluster import Cluster, cluster
from cachewitness import __version__
from cachewitness._util import pages
from cachewitness._util.errors import UsageError
from cachewitness.sessions.campaign.database import Database
from cachewitness.sessions.campaign.executors import TASK

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": f"{ROOT}/harness:{ROOT}/reference_impl",
    "RAY_USAGE_STATS_ENABLED": "0",
}
FILE = """name = "{name}"
seeds = [0]
streams = ["main"]
[[engines]]
engine = "reference"
[[engines]]
engine = "reference:mutant=lookup-one-unit-short"
layouts = ["full"]
[budget]
traces = 60
per_unit = 3
shrink = 1
attempts = 50
"""
SUMS = ("digest", "exit_code", "units", "done", "traces", "operations", "subjects", "classes")
"""Fields of the summary that must be the same; `reasons` follow from them."""
SECONDS_MAX = 900


@dataclass
class Setting:
    """Where campaigns are kept and who works for them."""

    folder: Path
    database: str
    cluster: Cluster | None
    workers: int

    def started(self, name: str) -> subprocess.Popen[str]:
        """Begin a campaign, or go on with it."""
        file = self.folder / f"{name}.toml"
        file.write_text(FILE.format(name=name), encoding="utf-8")
        command = [
            sys.executable,
            "-P",
            "-m",
            "cachewitness.cli",
            "campaign",
            file.name,
            "--json",
            "--workers",
            str(self.workers),
        ]
        command += ["--database", self.database, "--traces", str(self.folder / name)]
        command += ["--ray", self.cluster.address] if self.cluster else []
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def wait_for_work(self, process: subprocess.Popen[str]) -> None:
        """Wait until a worker of this driver has entered something; for no longer than the
        driver lives.
        """
        database = Database(self.database)
        before = None
        while process.poll() is None:
            time.sleep(0.05)
            try:
                ((done,),) = database.rows("SELECT count(*) FROM results")
            except UsageError:  # the tables are not there yet
                done = 0
            if before is not None and done > before:
                break
            before = done if before is None else before
        database.close()

    def workers_of(self, driver: int) -> list[int]:
        """Return the processes that work for a driver."""
        if self.cluster:
            return self.cluster.processes(TASK)
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                found += [int(entry.name)] if int(parent) == driver else []
        return found

    def kinds(self) -> list[str]:
        """Return what can be killed."""
        return ["workers", "drivers", *(["machines"] if self.cluster else [])]


@dataclass
class Tried:
    """What came of all campaigns that were killed."""

    killed: Counter[str] = field(default_factory=Counter)
    campaigns: int = 0
    seconds: float = 0.0
    units: int = 0
    undone: int = 0
    different: list[str] = field(default_factory=list)


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the summary of a campaign that comes to its end."""
    output, _ = process.communicate(timeout=SECONDS_MAX)
    summary: dict[str, Any] = json.loads(output)
    return summary


def killed(
    setting: Setting, name: str, chance: random.Random, kills: int, length: float, tried: Tried
) -> dict[str, Any]:
    """Carry out a campaign that is killed at most so many times, and return its summary."""
    process = setting.started(name)
    while kills > 0:
        setting.wait_for_work(process)
        until = time.monotonic() + chance.uniform(0.0, length / 10)
        while time.monotonic() < until and process.poll() is None:
            time.sleep(0.02)
        victims = setting.workers_of(process.pid)
        if process.poll() is not None:
            break
        if not victims:
            continue
        kills -= 1
        kind = min(setting.kinds(), key=lambda one: tried.killed[one])
        tried.killed[kind] += 1
        if kind == "workers":
            os.kill(chance.choice(victims), signal.SIGKILL)
        elif setting.cluster and kind == "machines":
            setting.cluster.kill_node()
            setting.cluster.add()
        else:
            process.kill()
            process.communicate()
            process = setting.started(name)
    return finished(process)


def main() -> int:
    """Kill, compare, print what came of it, and return 1 if anything differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", default="")
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--each", type=int, default=4, help="kills of one campaign at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="cachewitness-kills-") as kept,
        cluster(2, ENVIRONMENT) if args.ray else nullcontext() as nodes,
    ):
        folder = Path(kept)
        setting = Setting(
            folder, args.database or str(folder / "state.sqlite"), nodes, args.workers
        )
        stamp = f"{os.getpid()}"
        began = time.monotonic()
        whole = finished(setting.started(f"whole-{stamp}"))
        length = time.monotonic() - began
        chance = random.Random(args.seed)
        tried = Tried()
        print(
            f"undisturbed: {length:.0f} s, {whole['units']} units, digest {whole['digest']}",
            flush=True,
        )
        while (left := args.kills - tried.killed.total()) > 0:
            name = f"killed-{tried.campaigns}-{stamp}"
            began = time.monotonic()
            summary = killed(setting, name, chance, min(left, args.each), length, tried)
            tried.campaigns += 1
            tried.seconds += time.monotonic() - began
            _compare(name, summary, whole, tried)
            print(
                f"{name}: {dict(tried.killed)} killed so far, digest {summary['digest']}",
                flush=True,
            )
    text = pages.render(
        "campaign-kills",
        title=(
            f"Killed at random points: {'PostgreSQL' if args.database else 'SQLite'},"
            f" {'Ray, two nodes' if args.ray else 'processes'}"
        ),
        release=__version__,
        today=date.today().isoformat(),
        length=length,
        whole=whole,
        tried=tried,
        workers=args.workers,
        seed=args.seed,
    )
    sections.tell(text, args.write)
    return 1 if tried.different else 0


def _compare(name: str, summary: dict[str, Any], whole: dict[str, Any], tried: Tried) -> None:
    same = [summary[key] == whole[key] for key in SUMS]
    same.append(
        [one["signature"] for one in summary["findings"]]
        == [one["signature"] for one in whole["findings"]]
    )
    tried.different += [] if all(same) else [name]
    tried.units += summary["units"]
    tried.undone += summary["units"] - summary["done"]


if __name__ == "__main__":
    sys.exit(main())
