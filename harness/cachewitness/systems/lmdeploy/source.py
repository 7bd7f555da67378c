"""Finds lmdeploy and imports the scheduler and the paging of its PyTorch engine, without its server
and without a GPU.

Five packages are entered without their `__init__`, which would import the whole of lmdeploy. Of
what the rest imports, a class of transformers, three classes of lmdeploy's tokenizer and the record
of a forward's outputs are stand-ins: they are named in annotations and never called.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from cachewitness import EngineMissing, UsageError
from cachewitness.engines.source_patch import Patches

KNOWN = "0.18.0"
"""The release that this adapter was written for."""
MADE_BY = "ci/stage_lmdeploy.sh"
"""Makes an environment with that release and what its scheduler imports."""
NEEDED = ("torch", "numpy", "pydantic", "psutil")
BARE = (
    "lmdeploy",
    "lmdeploy.pytorch",
    "lmdeploy.pytorch.engine",
    "lmdeploy.pytorch.engine.model_agent",
    "lmdeploy.vl",
)
"""Packages whose `__init__` is not run."""
STAND_INS = {
    "transformers": ("PretrainedConfig",),
    "lmdeploy.tokenizer": ("Tokenizer", "HuggingFaceTokenizer", "DetokenizeState"),
}
"""Modules that are stand-ins, and the names that are imported from them."""
REAL = ("paging", "engine.inputs_maker", "strategies.ar.sequence", "strategies.ar.engine")
"""What is imported of `lmdeploy.pytorch`; whatever these import is real as well."""
PATCHES = Patches("lmdeploy.pytorch")
"""What is planted into the engine that is open."""


@dataclass(frozen=True)
class Source:
    """One lmdeploy whose scheduler was imported."""

    version: str

    def part(self, module: str, name: str) -> Any:
        """Return something defined in `lmdeploy.pytorch.<module>`. Raises UsageError naming it if
        this lmdeploy has no such thing.
        """
        try:
            return getattr(importlib.import_module(f"lmdeploy.pytorch.{module}"), name)
        except (ImportError, AttributeError):
            raise UsageError(
                f"lmdeploy {self.version}: lmdeploy.pytorch.{module} has no {name}; this adapter"
                f" knows {KNOWN}"
            ) from None


@functools.cache
def load(path: str = "") -> Source:
    """Import lmdeploy's scheduler, from the folder `path` if one is given, and return it.

    Raises EngineMissing if something must be installed first, UsageError for a folder without
    lmdeploy, for a release that the adapter was not written for, and for a process that has
    imported another lmdeploy.
    """
    root = _root(path)
    version = _version(root)
    if version != KNOWN:
        raise UsageError(
            f"lmdeploy {version}: its scheduler is driven in release {KNOWN} alone; install"
            f" lmdeploy=={KNOWN}"
        )
    if "lmdeploy" in sys.modules:
        raise UsageError(
            "--engine lmdeploy: this process has imported lmdeploy already; use one process for"
            " each"
        )
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            raise EngineMissing(
                f"lmdeploy needs the package {name}; {MADE_BY} installs what it needs", MADE_BY
            )
    return _imported(root, version)


def _imported(root: Path, version: str) -> Source:
    others = {name: sys.modules.get(name) for name in STAND_INS}
    for name in BARE:
        _put(name).__path__ = [str(root.joinpath(*name.split(".")))]
    for name, classes in STAND_INS.items():
        vars(_put(name)).update({one: type(one, (), {}) for one in classes})
    vars(sys.modules["lmdeploy.pytorch.engine.model_agent"])["BatchedOutputs"] = object
    try:
        for name in REAL:
            importlib.import_module(f"lmdeploy.pytorch.{name}")
    except (ImportError, AttributeError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise EngineMissing(
            f"lmdeploy {version} cannot be imported from {root}: {reason}", MADE_BY
        ) from None
    finally:
        _put_back("transformers", others["transformers"])
    logging.getLogger("lmdeploy").setLevel(logging.ERROR)
    return Source(version)


def _put(name: str) -> ModuleType:
    """Make a module without code, and let its package have it."""
    module = sys.modules[name] = ModuleType(name)
    package, _, last = name.rpartition(".")
    if package:
        setattr(sys.modules[package], last, module)
    return module


def _put_back(name: str, module: ModuleType | None) -> None:
    """Let others in this process find the package itself."""
    if module is None:
        del sys.modules[name]
    else:
        sys.modules[name] = module


def _root(path: str) -> Path:
    if path:
        root = Path(path).expanduser().resolve()
        if not (root / "lmdeploy" / "pytorch" / "paging").is_dir():
            raise UsageError(
                f"--engine lmdeploy:source={path}: no lmdeploy/pytorch/paging there; name the"
                " folder that holds `lmdeploy`"
            )
        return root
    spec = None if "lmdeploy" in sys.modules else importlib.util.find_spec("lmdeploy")
    if spec is None or spec.origin is None:
        raise EngineMissing(
            f"lmdeploy is not installed; {MADE_BY} makes an environment with {KNOWN}, or name an"
            " unpacked wheel: --engine lmdeploy:source=PATH",
            MADE_BY,
        )
    return Path(spec.origin).resolve().parent.parent


def _version(root: Path) -> str:
    """Return the release that a tree says it is; `unknown` if it does not say."""
    file = root / "lmdeploy" / "version.py"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    found = re.search(r"__version__ = '([^']+)'", text)
    return found[1] if found else "unknown"
