"""What packages register under an entry-point group; this package's own registrations come first.

A checkout that was never installed has no entry points of its own, so they are read from its
`pyproject.toml`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

_OWN = "cachewitness"
_PROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"


@cache
def registered(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name. A name that this package registers cannot be
    taken by another one.
    """
    installed = entry_points(group=group)
    own = [entry for entry in installed if entry.dist is not None and entry.dist.name == _OWN]
    first: dict[str, EntryPoint] = {}
    for entry in [*(own or _of_checkout(group)), *installed]:
        first.setdefault(entry.name, entry)
    return first


def _of_checkout(group: str) -> Iterable[EntryPoint]:
    if not _PROJECT.is_file():
        return []
    project = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]
    return [
        EntryPoint(name, value, group)
        for name, value in sorted(project["entry-points"].get(group, {}).items())
    ]
