"""Finds lmdeploy and imports the scheduler and the paging of its PyTorch engine, without its server
and without a GPU.

Five packages are entered without their `__init__`, which would import the whole of lmdeploy. Of
what the rest imports, a class of transformers, three classes of lmdeploy's tokenizer and the record
of a forward's outputs are stand-ins: they are named in annotations and never called.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from types import ModuleType

from cachewitness.engines.pinned_package import PinnedPackage, enter_bare, stand_in
from cachewitness.engines.source_patch import Patches

KNOWN = "0.18.0"
"""The release that this adapter was written for."""
PACKAGE = PinnedPackage(
    title="lmdeploy",
    name="lmdeploy",
    driven="its scheduler",
    parts="pytorch",
    folder="pytorch/paging",
    version_file="version.py",
    release=KNOWN,
    made_by="ci/stage_lmdeploy.sh",
    needed=("torch", "numpy", "pydantic", "psutil"),
)
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


@functools.cache
def load(path: str = "") -> PinnedPackage:
    """Import lmdeploy's scheduler, from the folder `path` if one is given, and return its package.

    Raises EngineMissing and UsageError as `PinnedPackage.find` does, and EngineMissing if it cannot
    be imported.
    """
    root = PACKAGE.find(path)
    others = {name: sys.modules.get(name) for name in STAND_INS}
    enter_bare(root, BARE)
    for name, classes in STAND_INS.items():
        stand_in(name, classes)
    vars(sys.modules["lmdeploy.pytorch.engine.model_agent"])["BatchedOutputs"] = object
    try:
        for name in REAL:
            importlib.import_module(f"lmdeploy.pytorch.{name}")
    except (ImportError, AttributeError, TypeError) as error:
        raise PACKAGE.missing(root, error) from None
    finally:
        _put_back("transformers", others["transformers"])
    logging.getLogger("lmdeploy").setLevel(logging.ERROR)
    return PACKAGE


def _put_back(name: str, module: ModuleType | None) -> None:
    """Let others in this process find the package itself."""
    if module is None:
        del sys.modules[name]
    else:
        sys.modules[name] = module
