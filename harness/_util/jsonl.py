"""Files of JSON lines, read with the file, the line and the field in every message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from harness._util.errors import UsageError

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for a line that is not of its format: no JSON or of another shape, no UTF-8, nested without end."""


class _Format(msgspec.Struct, frozen=True):
    """What a header says of itself, whatever else a newer format may have in it."""

    format: str = ""
    version: int | None = None


def read(path: Path) -> list[bytes]:
    """Return the lines of a file.

    Raises UsageError if it cannot be read.
    """
    try:
        return path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None


def lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, one at a time.

    Raises UsageError if it cannot be read.
    """
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None


def rows(path: Path, kind: Any) -> Iterator[tuple[int, Any]]:
    """Yield the lines of a file without a header, decoded, each with its number; blank ones are skipped.

    Raises UsageError if it cannot be read or a line does not fit.
    """
    for number, text in enumerate(read(path), start=1):
        if text.strip():
            yield number, decode(text, kind, str(path), number)


def header(lines: list[bytes], kind: Any, where: str, what: str) -> Any:
    """Decode the first line of `what` (a trace, a history), whose `kind` knows the format and version that are read here.

    Raises UsageError if it is missing, does not fit, or is of another format or version.
    """
    if not lines:
        raise UsageError(f"{where}: empty; {what} starts with a header line")
    defaults = {field.name: field.default for field in msgspec.structs.fields(kind)}
    ours = _Format(defaults["format"], defaults["version"])
    said = decode(lines[0], _Format, where, 1)
    theirs = _Format(said.format or ours.format, ours.version if said.version is None else said.version)
    if theirs != ours:
        older = theirs.format == ours.format and (theirs.version or 0) < (ours.version or 0)
        raise UsageError(
            f"{where}:1: format {theirs.format!r} version {theirs.version}; "
            f"this release reads {ours.format!r} version {ours.version} - at `$.format`, `$.version`"
            + ("; write it anew, or replay it with the release that wrote it" if older else "")
        )
    return decode(lines[0], kind, where, 1)


def decode(text: bytes, kind: Any, where: str, number: int) -> Any:
    """Decode one line; `where` and `number` name it in the message of the UsageError that is raised if it does not fit."""
    try:
        return msgspec.json.decode(text, type=kind)
    except UNREADABLE as error:
        raise UsageError(f"{where}:{number}: {error}") from None
