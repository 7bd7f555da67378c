"""What packages register under an entry-point group: this package's own registrations come first,
then those of its faults' distribution.

In a checkout both are read from the projects' files, so nothing has to be installed and nothing
that was installed earlier is out of date.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

_CHECKOUT = Path(__file__).resolve().parents[3]
_OWN = {"cachewitness": "pyproject.toml", "cachewitness-faults": "ci/faults/pyproject.toml"}
"""The distributions of this repository, and where in a checkout they are described."""


def registered(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name. A name that this package registers cannot be
    taken by another one.
    """
    first: dict[str, EntryPoint] = {}
    for entry in every(group):
        first.setdefault(entry.name, entry)
    return first


@cache
def every(group: str) -> list[EntryPoint]:
    """Return all entry points of a group; several distributions may register one name."""
    installed = entry_points(group=group)
    own: list[EntryPoint] = []
    for distribution, file in _OWN.items():
        described = _described(_CHECKOUT / file, distribution, group)
        own += (
            [entry for entry in installed if _distribution(entry) == distribution]
            if described is None
            else described
        )
    return [*own, *(entry for entry in installed if _distribution(entry) not in _OWN)]


def _distribution(entry: EntryPoint) -> str:
    return "" if entry.dist is None else entry.dist.name


def _described(file: Path, distribution: str, group: str) -> list[EntryPoint] | None:
    """Return the entry points of a project's file; None if it is another distribution's, or not
    there.
    """
    project = _project(file)
    if project.get("name") != distribution:
        return None
    found: Iterable[tuple[str, str]] = project["entry-points"].get(group, {}).items()
    return [EntryPoint(name, value, group) for name, value in sorted(found)]


@cache
def _project(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    project: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    return project
