"""Time and memory of `cachewitness check` on long stored histories, and its time on several at
once.

    python benchmarks/check_history.py [--events N ...] [--several] [--write docs/results/speed.md]

A history is the workload `three-groups` (`benchmarks/workload.py`), carried out by the reference
and its worker and written down line by line. Each is judged by a process of its own; memory is the
largest that the process had.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1] / source)
    for source in ("", "harness", "reference_impl")
]

import msgspec

from benchmarks import sections, workload
from cachewitness._util import pages
from cachewitness.core.worker import Worker
from cachewitness.engines.registry import parse

EVENTS = (100_000, 400_000, 1_000_000)
SEVERAL, TIMES = 4, 3
"""So many histories are judged one after another and two at a time, and each of both is timed so
often."""


def write(path: Path, events: int) -> int:
    """Write a history of so many events, to the end of an operation, and return how many it has."""
    engine = parse("reference").open(workload.header())
    encode = msgspec.json.Encoder().encode
    worker = Worker(engine.describe())
    seq = 0
    with path.open("wb") as file:
        file.write(encode(engine.describe()) + b"\n")
        for op in workload.operations(events):
            for event in worker.extend(engine.apply(op)):
                event.seq = seq
                seq += 1
                file.write(encode(event) + b"\n")
            if seq >= events:
                return seq
    raise AssertionError("the workload has fewer events than operations")


def judge(*words: str | Path) -> tuple[int, float, float, float]:
    """Return (exit code, seconds by the clock, CPU seconds, peak memory in MiB) of `cachewitness
    check` with these words.
    """
    began = time.perf_counter()
    child = os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "cachewitness.cli", "check", "--quiet", *map(str, words)],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, usage = os.wait4(child, 0)
    seconds = time.perf_counter() - began
    return (
        os.waitstatus_to_exitcode(status),
        seconds,
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss / 1024,
    )


def several(folder: Path) -> tuple[int, str]:
    """Return the worst exit code of runs over several histories, and the section that compares
    them.
    """
    paths = [folder / f"{number}.history.jsonl" for number in range(SEVERAL)]
    events = sum(write(path, EVENTS[0]) for path in paths)
    worst = 0
    best = {1: float("inf"), 2: float("inf")}
    for _ in range(TIMES):
        for jobs, before in best.items():
            code, clock, _, _ = judge("--jobs", str(jobs), *paths)
            worst, best[jobs] = max(worst, code), min(before, clock)
    values = {
        "count": SEVERAL,
        "events": events,
        "times": TIMES,
        "one": best[1],
        "two": best[2],
        "today": date.today(),
    }
    return worst, pages.render("speed-several", python=platform.python_version(), **values)


def main() -> int:
    """Measure and print the section; 1 if a history was not found clean."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, nargs="+", default=EVENTS)
    parser.add_argument(
        "--several", action="store_true", help="measure several histories at once, and nothing else"
    )
    parser.add_argument("--write", metavar="FILE", type=Path, help="put the section into this page")
    given = parser.parse_args()
    worst = 0
    rows = list[list[str]]()
    with tempfile.TemporaryDirectory() as folder:
        if given.several:
            worst, text = several(Path(folder))
            sections.tell(text, given.write)
            return int(worst != 0)
        for number, events in enumerate(given.events):
            path = Path(folder) / f"{number}.history.jsonl"
            written = write(path, events)
            code, clock, cpu, memory = judge(path)
            worst = max(worst, code)
            rows.append(
                [
                    f"{written:,}",
                    f"{path.stat().st_size / 2**20:.0f}",
                    f"{cpu:.1f}",
                    f"{clock:.1f}",
                    f"{memory:.0f}",
                ]
            )
            path.unlink()
    text = pages.render("speed-histories", python=platform.python_version(), rows=rows)
    sections.tell(text, given.write)
    return int(worst != 0)


if __name__ == "__main__":
    raise SystemExit(main())
