"""Keeps the ids of the traces that failed when they were run last, beside the failures that are
kept in a folder.

A trace that is not run this time stays as it was, so that a narrowed run forgets nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import msgspec

from cachewitness._util import files, jsonl, reading
from cachewitness._util.errors import UsageError
from cachewitness._util.indented import indented

NAME = "last-failed.json"
FORMAT = "cachewitness.last-failed"
VERSION = 1


class Document(msgspec.Struct, kw_only=True):
    """The ids, `suite:trace@configuration`, of traces that failed and were not expected to."""

    failed: list[str]
    format: str = FORMAT
    version: int = VERSION


def load(folder: Path) -> frozenset[str]:
    """Return the ids that failed last; none where the folder has none, or what is there cannot be
    read, which is no reason not to run.
    """
    path = folder / NAME
    if not path.is_file():
        return frozenset()
    try:
        found = msgspec.json.decode(reading.whole(path), type=Document)
    except (*jsonl.UNREADABLE, UsageError):
        return frozenset()
    fits = (found.format, found.version) == (FORMAT, VERSION)
    return frozenset(found.failed if fits else ())


def save(
    folder: Path, before: Collection[str], ran: Collection[str], failed: Collection[str]
) -> None:
    """Write which ids failed last: of those that ran, `failed`; of the others, those from before.
    Where there are none, there is no file.

    Raises UsageError if it cannot be written.
    """
    now = sorted({*(one for one in before if one not in ran), *failed})
    path = folder / NAME
    try:
        if not now:
            path.unlink(missing_ok=True)
            with suppress(OSError):  # something else is kept there, or there is no folder
                folder.rmdir()
            return
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from None
    files.write(path, [indented(Document(failed=now))])
