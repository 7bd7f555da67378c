"""How much memory a long session takes under all checkers: each request brings a text that nobody
had before.

    python -m benchmarks.session_memory [--operations N ...] [--write docs/results/speed.md]

The workload `three-groups` (`benchmarks/workload.py`) on the reference. Memory is what the process
holds at that time.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from benchmarks import sections, workload
from benchmarks.throughput import clean, session
from cachewitness._util import pages

OPERATIONS = (62_500, 125_000, 250_000, 500_000, 1_000_000)
PORTION = 1_000
PAGE_MIB = 4096 / 2**20


def held() -> float:
    """Return how many MiB this process holds (Linux)."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE_MIB


def measure(marks: Sequence[int]) -> Iterator[float]:
    """Yield the MiB held after so many operations, each time. Raises SystemExit if the run is
    not clean.
    """
    one = session()
    operations = workload.operations(marks[-1])
    done = 0
    for mark in marks:
        while done < mark:
            part = list(islice(operations, min(PORTION, mark - done)))
            one.run(part)
            done += len(part)
        yield held()
    clean(one.close())


def main(argv: Sequence[str]) -> int:
    """Measure and print the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--operations",
        type=int,
        nargs="+",
        default=OPERATIONS,
        metavar="N",
        help="when to look, ascending",
    )
    parser.add_argument("--write", metavar="FILE", type=Path, help="put the section into this page")
    given = parser.parse_args(argv)
    before = held()
    row = [f"{mib:.0f}" for mib in measure(given.operations)]
    head = [f"{operations:,}" for operations in given.operations]
    text = pages.render(
        "speed-memory",
        head=["0", *head],
        row=[f"{before:.0f}", *row],
        python=platform.python_version(),
    )
    sections.tell(text, given.write)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
