"""Files are written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from harness._util.errors import UsageError


def write(path: Path, content: Iterable[bytes]) -> None:
    """Write a file, all of it or nothing.

    Raises UsageError if it cannot be written.
    """
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.writelines(content)
        part.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from None
