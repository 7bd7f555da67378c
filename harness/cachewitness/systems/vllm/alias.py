"""Finds vLLM under another name: a fork whose modules lie in a package of its own.

Every module `vllm.x` is then the fork's own `NAME.x`, the same object, so that nothing is there
twice.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType

from cachewitness._util.errors import UsageError

VLLM = "vllm"


class _Alias(MetaPathFinder, Loader):
    """Finds modules of vLLM in another package."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module is found; None for one that is not vLLM's."""
        top, _, _ = fullname.partition(".")
        return spec_from_loader(fullname, self) if top == VLLM else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the fork's module. Raises ModuleNotFoundError, with vLLM's name, if it has
        none.
        """
        name = self.package + spec.name.removeprefix(VLLM)
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            raise ModuleNotFoundError(f"No module named {name!r}", name=spec.name) from None

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the fork's module has been run."""


def alias(package: str) -> None:
    """Have vLLM's modules be those of another package, in this process from now on.

    Raises UsageError if vLLM, or another fork, has been imported.
    """
    found = [finder.package for finder in sys.meta_path if isinstance(finder, _Alias)]
    if found == [package]:
        return
    if found or VLLM in sys.modules:
        raise UsageError(
            f"--engine vllm:package={package}: {(found or [VLLM])[0]} is already imported; use one"
            " process for each"
        )
    sys.meta_path.insert(0, _Alias(package))
