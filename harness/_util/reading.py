"""Files of others, read whole and within a bound; a file of JSON lines is read by `harness._util.jsonl`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from harness._util.errors import UsageError

WHOLE_MAX = 64 << 20
"""Bytes; no file that is read whole is larger, whatever it is."""
NOT_TOML = (ValueError, RecursionError)
"""What tomllib raises for what is no TOML: of another form, no UTF-8, a number of too many digits, nested without end."""


def whole(path: Path, most: int = WHOLE_MAX, remedy: str = "") -> bytes:
    """Return what stands in a file, of so many bytes at most; of an endless one (a device, a pipe) no more is read.

    Raises UsageError, with `remedy` at its end, if it cannot be read or is larger.
    """
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except (OSError, ValueError) as error:  # a name with a zero in it is a ValueError
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path}: cannot be read ({why}){remedy}") from None
    if len(content) > most:
        raise UsageError(f"{path}: larger than {most:,} bytes; no such file of ours is{remedy}")
    return content


def toml(path: Path, most: int = 1 << 20, hint: str = "") -> dict[str, Any]:
    """Return the tables of a TOML file. Raises UsageError if it cannot be read, is larger, or is not TOML."""
    content = whole(path, most)
    try:
        return tomllib.loads(content.decode("utf-8"))
    except NOT_TOML as error:
        raise UsageError(f"{path}: not TOML: {error}{hint}") from None
