"""Finds the data that is installed with the harness: `fixtures`.

In a checkout it is a top-level folder. It is no import package (other projects use the name), so a wheel carries what the
commands need of it inside this package, as `harness/_data/fixtures`; only a wheel has that folder. Callers get the same tree
either way.
"""

from __future__ import annotations

from pathlib import Path

from harness._util.errors import UsageError

_PACKAGE = Path(__file__).resolve().parent.parent


def fixtures() -> Path:
    """Return the folder of fixtures: vectors, traces, layouts, checkpoints. Raises UsageError if there is none."""
    packaged, checkout = _PACKAGE / "_data" / "fixtures", _PACKAGE.parent / "fixtures"
    for folder in (packaged, checkout):
        if folder.is_dir():
            return folder
    raise UsageError(f"{packaged}: missing, and so is {checkout}; the installation is incomplete, install cachewitness again")
