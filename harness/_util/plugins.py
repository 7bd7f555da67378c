"""What installed packages register under an entry-point group; this package's own registrations come first."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points

_OWN = "cachewitness"


@cache
def registered(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name. A name that this package registers cannot be taken by another one."""
    found = sorted(entry_points(group=group), key=lambda entry: entry.dist is None or entry.dist.name != _OWN)
    first: dict[str, EntryPoint] = {}
    for entry in found:
        first.setdefault(entry.name, entry)
    return first
