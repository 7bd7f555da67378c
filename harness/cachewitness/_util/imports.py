"""Imports what a user names: a module that is installed, or lies in the folder of work."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType


def imported(module: str) -> ModuleType:
    """Return a module; the folder of work comes behind everything that is installed.

    Raises whatever the module raises, and ImportError for one that ends its process.
    """
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        return importlib.import_module(module)
    except SystemExit as error:
        raise ImportError(f"{module} ends the process that imports it ({error})") from None
