"""With which Python an engine's process is started: `engines.toml` gives engines whose pins
conflict their own environments.

    [openvino-genai]
    python = "~/venvs/genai/bin/python"     # or relative to this file, or a name on PATH

The file is the one that the user names, else the one that CACHEWITNESS_ENGINES names, else the one
in the current folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from cachewitness._util import reading
from cachewitness._util.errors import UsageError
from cachewitness._util.names import nearest

FILE, VARIABLE = "engines.toml", "CACHEWITNESS_ENGINES"


def file_of(given: str = "") -> Path | None:
    """Return the file that applies; None if there is none. Raises UsageError if one is named and
    is not there.
    """
    named = given or os.environ.get(VARIABLE, "")
    path = Path(named or FILE).expanduser()
    if path.is_file():
        return path
    if named:
        raise UsageError(f"{'--engines' if given else VARIABLE}: {named} is not a file")
    return None


def interpreters(file: Path, engines: Collection[str]) -> dict[str, str]:
    """Return by engine the path of its interpreter; `engines` are the names that there are.

    Raises UsageError, naming file and field, for a file that does not fit or an interpreter that
    cannot be started.
    """
    return {
        name: _interpreter(file, name, table, engines) for name, table in reading.toml(file).items()
    }


def _interpreter(file: Path, name: str, table: Any, engines: Collection[str]) -> str:
    if name not in engines:
        raise UsageError(f"{file}: [{name}]: no engine is called {name!r}{nearest(name, engines)}")
    if (
        not isinstance(table, dict)
        or set(table) != {"python"}
        or not isinstance(table["python"], str)
    ):
        raise UsageError(f'{file}: [{name}] has one field, python = "PATH", and no other')
    text = table["python"]
    try:
        found = shutil.which(text) if os.sep not in text else None
        path = Path(found) if found else file.absolute().parent / Path(text).expanduser()
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    except (
        OSError,
        ValueError,
        RuntimeError,
    ):  # a name that is too long, has a zero in it, or is of nobody's home
        path = Path(text)
    raise UsageError(f"{file}: [{name}] python: {path} is no program that can be started")
