"""The page on the architecture names the rooms of the code as they are, in the order that the
lint enforces.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def flow() -> tuple[str, ...]:
    """Return FLOW of ci/lint_imports.py, which tests do not import."""
    tree = ast.parse((ROOT / "ci" / "lint_imports.py").read_text(encoding="utf-8"))
    (value,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FLOW"
    ]
    rooms: tuple[str, ...] = ast.literal_eval(value)
    return rooms


def test_rooms_are_listed_in_the_order_of_the_lint() -> None:
    rooms = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert tuple(rooms) == flow()


def test_rooms_are_the_folders_of_harness() -> None:
    folders = {
        path.parent.name for path in (ROOT / "harness" / "cachewitness").glob("*/__init__.py")
    }
    assert folders == set(flow())


def test_contributing_names_the_same_order() -> None:
    text = " ".join((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split())
    assert ", ".join(f"`{room}`" for room in flow()) in text


def test_the_reading_order_names_files_and_their_lengths() -> None:
    """Within a quarter, so that a reader who plans an hour is not misled."""
    rows = re.findall(r"^\| \d+ \| `(\S+)` \| (\d+) \|", PAGE, re.MULTILINE)
    assert len(rows) > 10
    for name, stated in rows:
        path = ROOT / "harness" / "cachewitness" / "core" / name
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert 0.75 * lines <= int(stated) <= 1.25 * lines, (name, lines)
