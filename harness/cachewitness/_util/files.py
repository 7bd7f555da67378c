"""Files are written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cachewitness._util.errors import UsageError


def write(path: Path, content: Iterable[bytes]) -> None:
    """Write a file, all of it or nothing; what is there and is no file, such as a pipe, is written
    as it is.

    Raises UsageError if it cannot be written.
    """
    odd = path.exists() and not path.is_file()
    part = path if odd else path.with_name(path.name + ".part")
    try:
        if not odd:
            part.unlink(missing_ok=True)  # and not what it may be a link to
        with part.open("wb" if odd else "xb") as file:
            file.writelines(content)
        if not odd:
            part.replace(path)
    except OSError as error:
        if not odd:
            with suppress(OSError):
                part.unlink(missing_ok=True)
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from None
