"""Print what tests run of each room, from the JSON report of coverage.py.

Usage: python ci/coverage_by_room.py coverage.json
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

COUNTS = ("num_statements", "covered_lines", "num_branches", "covered_branches")


def main(argv: list[str]) -> int:
    """Print the table of the report named and return the exit code."""
    (report,) = argv
    rooms = by_room(json.loads(Path(report).read_text(encoding="utf-8")))
    whole = sum(rooms.values(), Counter[str]())
    print(f"{'room':<32}{'lines':>8}{'run':>9}{'branches':>10}{'run':>9}")
    for room, counts in [*sorted(rooms.items()), ("all", whole)]:
        lines, run, branches, taken = (counts[name] for name in COUNTS)
        print(
            f"{room:<32}{lines:>8}{_share(run, lines):>9}{branches:>10}{_share(taken, branches):>9}"
        )
    return 0


def by_room(report: dict[str, Any]) -> dict[str, Counter[str]]:
    """Return the counts of each folder below the packages; files without statements make no
    room.
    """
    rooms: dict[str, Counter[str]] = {}
    for name, file in report["files"].items():
        counts = Counter({key: file["summary"][key] for key in COUNTS})
        if counts["num_statements"]:
            room = "/".join(PurePosixPath(name).parts[1:-1][:2])
            rooms[room] = rooms.get(room, Counter()) + counts
    return rooms


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
