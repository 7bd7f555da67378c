"""Finds the package of an engine of which one release is driven: the installed one, or a wheel
unpacked into a folder. What of it cannot be imported here gets modules in its place.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from cachewitness._util.errors import EngineMissing, UsageError


@dataclass(frozen=True)
class PinnedPackage:
    """A package that an adapter was written for in one release. The engine is called as the package
    is.
    """

    title: str
    """What its makers call it."""
    name: str
    driven: str
    """What of it is driven, as in "its cache"."""
    parts: str
    """The package of what is driven, within it, such as `srt`."""
    folder: str
    """A folder of it without which nothing is driven, such as `srt`."""
    version_file: str
    """The file of the package that says its release."""
    release: str
    made_by: str
    """Makes an environment with that release and what it needs."""
    needed: tuple[str, ...]
    """Packages that must be there."""

    def find(self, path: str = "") -> Path:
        """Return the folder that holds the package: `path`, or where it is installed.

        Raises EngineMissing if something must be installed first, UsageError for a folder without
        the package, for another release, and in a process that has imported the package.
        """
        root = self._root(path)
        version = self._version(root)
        if version != self.release:
            raise UsageError(
                f"{self.title} {version}: {self.driven} is driven in release {self.release} alone;"
                f" install {self.name}=={self.release}"
            )
        if self.name in sys.modules:
            raise UsageError(
                f"--engine {self.name}: this process has imported {self.title} already; use one"
                " process for each"
            )
        for package in self.needed:
            if importlib.util.find_spec(package) is None:
                raise EngineMissing(
                    f"{self.name} needs the package {package}; {self.made_by} installs what it"
                    " needs",
                    self.made_by,
                )
        return root

    def missing(self, root: Path, error: Exception) -> EngineMissing:
        """Return what to say of an import that failed."""
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return EngineMissing(
            f"{self.title} {self.release} cannot be imported from {root}: {reason}", self.made_by
        )

    def part(self, module: str, name: str) -> Any:
        """Return something defined in a module of `parts`. Raises UsageError naming it if there is
        no such thing.
        """
        path = f"{self.name}.{self.parts}.{module}"
        try:
            return getattr(importlib.import_module(path), name)
        except (ImportError, AttributeError):
            raise UsageError(
                f"{self.title} {self.release}: {path} has no {name}; this adapter knows"
                f" {self.release}"
            ) from None

    def _root(self, path: str) -> Path:
        if path:
            root = Path(path).expanduser().resolve()
            if not (root / self.name / self.folder).is_dir():
                raise UsageError(
                    f"--engine {self.name}:source={path}: no {self.name}/{self.folder} there; name"
                    f" the folder that holds `{self.name}`"
                )
            return root
        spec = None if self.name in sys.modules else importlib.util.find_spec(self.name)
        if spec is None or spec.origin is None:
            raise EngineMissing(
                f"{self.name} is not installed; {self.made_by} makes an environment with"
                f" {self.release}, or name an unpacked wheel: --engine {self.name}:source=PATH",
                self.made_by,
            )
        return Path(spec.origin).resolve().parent.parent

    def _version(self, root: Path) -> str:
        """Return the release that a tree says it is; `unknown` if it does not say."""
        file = root / self.name / self.version_file
        text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
        found = re.search(r"""^__version__ = (?:version = )?(['"])([^'"]+)\1""", text, re.MULTILINE)
        return found[2] if found else "unknown"


def enter_bare(root: Path, packages: Iterable[str]) -> None:
    """Let modules of packages under a folder be imported without the packages' `__init__`.

    A package comes before those inside it.
    """
    for name in packages:
        _put(name).__path__ = [str(root.joinpath(*name.split(".")))]


def stand_in(module: str, names: Iterable[str]) -> None:
    """Put a module in the place of another one. Each of its names is a class that holds nothing."""
    vars(_put(module)).update(hollow(names))


def hollow(names: Iterable[str]) -> dict[str, type]:
    """Return classes that hold nothing, by name."""
    return {name: type(name, (), {}) for name in names}


def _put(name: str) -> ModuleType:
    """Make a module without code, and let its package have it."""
    module = sys.modules[name] = ModuleType(name)
    package, _, last = name.rpartition(".")
    if package:
        setattr(sys.modules[package], last, module)
    return module
