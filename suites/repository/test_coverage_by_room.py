"""The table of coverage adds up files to rooms, and rooms to all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _file(lines: int, run: int, branches: int = 0, taken: int = 0) -> dict[str, dict[str, int]]:
    counts = {
        "num_statements": lines,
        "covered_lines": run,
        "num_branches": branches,
        "covered_branches": taken,
    }
    return {"summary": counts | {"excluded_lines": 7}}


def test_files_are_added_up_by_room(tmp_path: Path) -> None:
    """A room is the second folder, however deep a file lies; a room without branches has no
    share of them.
    """
    files = {
        "harness/cachewitness/__init__.py": _file(1, 1),
        "harness/cachewitness/sessions/run/a.py": _file(10, 5, 4, 1),
        "harness/cachewitness/sessions/run/deeper/b.py": _file(30, 25, 6, 4),
        "harness/cachewitness/sessions/run/__init__.py": _file(0, 0),
        "reference_impl/cachewitness_reference/vllm/c.py": _file(20, 20, 10, 0),
    }
    report = tmp_path / "coverage.json"
    report.write_text(json.dumps({"files": files}))
    command = [sys.executable, str(ROOT / "ci" / "coverage_by_room.py"), str(report)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [line.split() for line in output.splitlines()] == [
        ["room", "lines", "run", "branches", "run"],
        ["cachewitness", "1", "100.0%", "0", "-"],
        ["cachewitness/sessions", "40", "75.0%", "10", "50.0%"],
        ["cachewitness_reference/vllm", "20", "100.0%", "10", "0.0%"],
        ["all", "61", "83.6%", "20", "25.0%"],
    ]
