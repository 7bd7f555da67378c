"""Files of others, read whole and within a bound; a file of JSON lines is read by
`cachewitness._util.jsonl`.
"""

from __future__ import annotations

import atexit
import functools
import gzip
import sys
import tempfile
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from cachewitness._util.errors import UsageError

WHOLE_MAX = 64 << 20
"""Bytes; no file that is read whole is larger, whatever it is."""
STANDARD_INPUT, GZIP = "-", b"\x1f\x8b"
STANDARD_INPUT_MAX = 1 << 34
_CHUNK = 1 << 20
"""Bytes; standard input is kept in a file, since it may be read more than once."""
NOT_TOML = (ValueError, RecursionError)
"""What tomllib raises for what is no TOML: of another form, no UTF-8, a number of too many digits,
nested without end."""


def whole(path: Path, most: int = WHOLE_MAX, remedy: str = "") -> bytes:
    """Return what stands in a file, of so many bytes at most; of an endless one (a device, a pipe)
    no more is read.

    `-` is standard input; what is packed by gzip is unpacked, up to the same size. Raises
    UsageError, with `remedy` at its end, if it cannot be read or is larger.
    """
    try:
        with opened(path) as (file, _):
            content = file.read(most + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{path}: cannot be unpacked ({error}){remedy}") from None
    except (OSError, ValueError) as error:  # a name with a zero in it is a ValueError
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path}: cannot be read ({why}){remedy}") from None
    if len(content) > most:
        raise UsageError(f"{path}: larger than {most:,} bytes; no such file of ours is{remedy}")
    return content


@contextmanager
def opened(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes] | None]]:
    """Open a file, or standard input for `-`; if it is packed by gzip, unpacked, and with the
    file that it is packed in.
    """
    with (_standard_input() if str(path) == STANDARD_INPUT else path).open("rb") as file:
        if file.peek(len(GZIP))[: len(GZIP)] == GZIP:
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield cast(IO[bytes], unpacked), file
        else:
            yield file, None


@functools.cache
def _standard_input() -> Path:
    """Return a file with what stood on standard input."""
    if sys.stdin is None:
        raise UsageError("standard input is closed; give a file")
    folder = tempfile.TemporaryDirectory(prefix="cachewitness-")
    atexit.register(folder.cleanup)
    kept = Path(folder.name) / "standard-input"
    left = STANDARD_INPUT_MAX
    with kept.open("wb") as file:
        while left and (some := sys.stdin.buffer.read(min(left, _CHUNK))):
            left -= file.write(some)
    if not left:
        raise UsageError(f"standard input: {STANDARD_INPUT_MAX:,} bytes or more; give a file")
    return kept


def toml(path: Path, most: int = 1 << 20, hint: str = "") -> dict[str, Any]:
    """Return the tables of a TOML file. Raises UsageError if it cannot be read, is larger, or is
    not TOML.
    """
    content = whole(path, most)
    try:
        return tomllib.loads(content.decode("utf-8"))
    except NOT_TOML as error:
        raise UsageError(f"{path}: not TOML: {error}{hint}") from None
