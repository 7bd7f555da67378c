"""Files of JSON lines, read with the file, the line and the field in every message."""

from __future__ import annotations

import atexit
import functools
import gzip
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from harness._util.errors import UsageError

STANDARD_INPUT, GZIP = "-", b"\x1f\x8b"
LINE_MAX = 1 << 26
"""Bytes; what unpacks to more than that without the end of a line is not read on."""
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for a line that is not of its format: no JSON or of another shape, no UTF-8, nested without end."""


class _Format(msgspec.Struct, frozen=True):
    """What a header says of itself, whatever else a newer format may have in it."""

    format: str = ""
    version: int | None = None


def read(path: Path) -> list[bytes]:
    """Return the lines of a file, without their ends; see `lines`."""
    return [line.rstrip(b"\r\n") for line in lines(path)]


def lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, one at a time. `-` is standard input; what is packed by gzip is unpacked.

    Raises UsageError if it cannot be read, or if a line is longer than LINE_MAX.
    """
    try:
        with _opened(path) as file:
            number = 0
            while line := file.readline(LINE_MAX + 1):
                number += 1
                if len(line) > LINE_MAX:
                    raise UsageError(f"{path}:{number}: longer than {LINE_MAX:,} bytes; no line of ours is")
                yield line
    except (EOFError, zlib.error) as error:
        raise UsageError(f"{path}: cannot be unpacked ({error})") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from None


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    with (_standard_input() if str(path) == STANDARD_INPUT else path).open("rb") as file:
        if file.peek(len(GZIP))[: len(GZIP)] == GZIP:
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield cast(IO[bytes], unpacked)
        else:
            yield file


@functools.cache
def _standard_input() -> Path:
    """Return a file with what stood on standard input: a history is read more than once."""
    folder = tempfile.TemporaryDirectory(prefix="cachewitness-")
    atexit.register(folder.cleanup)
    kept = Path(folder.name) / "standard-input"
    with kept.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return kept


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
