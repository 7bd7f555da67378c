"""Where the data is that travels with the harness: `fixtures` and `suites`.

In a checkout both are top-level folders. They are no import packages (other projects use these names), so a wheel
carries them inside this package, under `harness/_data`; only a wheel has that folder. Whoever needs data asks here and
gets the same tree either way.
"""

from __future__ import annotations

from pathlib import Path

from harness._util.errors import UsageError

_PACKAGE = Path(__file__).resolve().parent.parent


def fixtures() -> Path:
    """Return the folder of fixtures: vectors, traces, histories, layouts."""
    return _folder("fixtures")


def suites() -> Path:
    """Return the folder of suites: the pytest modules that `cachewitness` runs."""
    return _folder("suites")


def _folder(name: str) -> Path:
    packaged, checkout = _PACKAGE / "_data" / name, _PACKAGE.parent / name
    for folder in (packaged, checkout):
        if folder.is_dir():
            return folder
    raise UsageError(f"{packaged}: missing, and so is {checkout}; the installation is incomplete, install cachewitness again")
