"""Files of JSON lines, read with the file, the line and the field in every message."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness._util.lines import shortened
from cachewitness._util.reading import opened

LINE_MAX = 1 << 26
"""Bytes; what unpacks to more than that without the end of a line is not read on."""
WHOLE_MAX = 1 << 28
LINES_MAX = 1 << 21
"""Bytes and lines of a file that is kept whole; a history is read line by line, and may be longer.
"""
UNPACKED_MAX = 1 << 24
RATIO_MAX = 500
"""A packed file that unpacks to more bytes than that may grow by so much at most. Histories grow by
10 to 120."""
BLOCK = 1 << 14
"""Bytes that are read at a time."""
MESSAGE_MAX = 1000
"""Characters that are told of what is wrong with a line."""
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for a line that is not of its format: no JSON or of another shape, no UTF-8,
nested without end."""


class _Format(msgspec.Struct, frozen=True):
    """What a header says of itself, whatever else a newer format may have in it."""

    format: str = ""
    version: int | None = None


def read(path: Path) -> list[bytes]:
    """Return the lines of a file, without their ends; see `lines`. Raises UsageError if there
    are too many to keep.
    """
    found: list[bytes] = []
    size = 0
    for line in lines(path):
        size += len(line)
        if size > WHOLE_MAX or len(found) == LINES_MAX:
            raise UsageError(
                f"{path}: more than {WHOLE_MAX:,} bytes or {LINES_MAX:,} lines; no such file of"
                " ours has"
            )
        found.append(line.rstrip(b"\r\n"))
    return found


def lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, one at a time, with their ends; see `blocks`."""
    for _, block in blocks(path):
        yield from io.BytesIO(block)


def blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the whole lines of a file, some kilobytes of them at a time, with the number of the
    first of them.

    `-` is standard input; what is packed by gzip is unpacked. Raises UsageError if it cannot be
    read, if a line is longer than LINE_MAX, or if it unpacks out of all proportion.
    """
    try:
        with opened(path) as (file, packed):
            yield from _blocks(path, file, packed)
    except (EOFError, zlib.error) as error:
        raise UsageError(f"{path}: cannot be unpacked ({error})") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from None
    except ValueError as error:  # a name with a zero in it
        raise UsageError(f"{path}: cannot be read ({error})") from None


def _blocks(path: Path, file: IO[bytes], packed: IO[bytes] | None) -> Iterator[tuple[int, bytes]]:
    number, size, length = 1, 0, 0
    begun: list[bytes] = []
    while some := file.read(BLOCK):
        size += len(some)
        if length + (some.find(b"\n") + 1 or len(some)) > LINE_MAX:
            raise UsageError(f"{path}:{number}: longer than {LINE_MAX:,} bytes; no line of ours is")
        if packed is not None and size > max(UNPACKED_MAX, RATIO_MAX * packed.tell()):
            raise UsageError(
                f"{path}:{number}: unpacks to more than {RATIO_MAX} times its size; no file of ours"
                " does"
            )
        end = some.rfind(b"\n") + 1
        begun.append(some[:end] if end else some)
        if not end:
            length += len(some)
            continue
        block = b"".join(begun)
        yield number, block
        number += block.count(b"\n")
        begun = [some[end:]]
        length = len(some) - end
    if length:
        yield number, b"".join(begun)


def rows(path: Path, kind: Any) -> Iterator[tuple[int, Any]]:
    """Yield the lines of a file without a header, decoded, each with its number; blank ones are
    skipped.

    Raises UsageError if it cannot be read or a line does not fit.
    """
    for number, text in enumerate(read(path), start=1):
        if text.strip():
            yield number, decode(text, kind, str(path), number)


def header(lines: list[bytes], kind: Any, where: str, what: str) -> Any:
    """Decode the first line of `what` (a trace, a history), whose `kind` knows the format and
    version that are read here.

    Raises UsageError if it is missing, does not fit, or is of another format or version.
    """
    if not lines:
        raise UsageError(f"{where}: empty; {what} starts with a header line")
    defaults = {field.name: field.default for field in msgspec.structs.fields(kind)}
    ours = _Format(defaults["format"], defaults["version"])
    named = decode(lines[0], _Format, where, 1)
    theirs = _Format(
        named.format or ours.format, ours.version if named.version is None else named.version
    )
    if theirs != ours:
        older = theirs.format == ours.format and (theirs.version or 0) < (ours.version or 0)
        raise UsageError(
            f"{where}:1: format {shortened(theirs.format, 60)!r} version {theirs.version}; this"
            f" release reads {ours.format!r} version {ours.version} - at `$.format`, `$.version`"
            + ("; write it anew, or replay it with the release that wrote it" if older else "")
        )
    return decode(lines[0], kind, where, 1)


def decode(text: bytes, kind: Any, where: str, number: int) -> Any:
    """Decode one line; `where` and `number` name it in the message of the UsageError that is
    raised if it does not fit.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except UNREADABLE as error:
        raise UsageError(f"{where}:{number}: {shortened(str(error), MESSAGE_MAX)}") from None
