"""Finds the data that is installed with the harness: `fixtures`, and the samples of `docs`.

In a checkout they are folders outside any import package (other projects use the names), so a wheel carries what the commands
need of them inside this package, in `harness/_data`; only a wheel has that folder. Callers get the same tree either way.
"""

from __future__ import annotations

from pathlib import Path

from harness._util.errors import UsageError

_PACKAGE = Path(__file__).resolve().parent.parent


def fixtures() -> Path:
    """Return the folder of fixtures: vectors, traces, layouts, checkpoints. Raises UsageError if there is none."""
    return _found("fixtures", "fixtures")


def samples() -> Path:
    """Return the folder of samples that `cachewitness new` copies. Raises UsageError if there is none."""
    return _found("samples", "docs/samples")


def _found(name: str, in_checkout: str) -> Path:
    packaged, checkout = _PACKAGE / "_data" / name, _PACKAGE.parent / in_checkout
    for folder in (packaged, checkout):
        if folder.is_dir():
            return folder
    raise UsageError(f"{packaged}: missing, and so is {checkout}; the installation is incomplete, install cachewitness again")
