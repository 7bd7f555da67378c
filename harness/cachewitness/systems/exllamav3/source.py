"""Finds exllamav3 and imports its generator with everything that keeps pages and states, without
its extension and without a GPU.

Six packages are entered without their `__init__`, which would import the models. What reaches the
device is a stand-in: the extension (`stand_ins.py`), tensors in pinned memory, and names that are
imported for layers, tensor parallelism, samplers and filters.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from types import SimpleNamespace
from typing import Any

from cachewitness.engines.pinned_package import PinnedPackage, enter_bare, hollow, stand_in
from cachewitness.engines.source_patch import Patches

KNOWN = "1.6.5"
"""The release that this adapter was written for."""
PACKAGE = PinnedPackage(
    title="exllamav3",
    name="exllamav3",
    driven="its generator",
    parts="generator",
    folder="generator",
    version_file="version.py",
    release=KNOWN,
    made_by="ci/stage_exllamav3.sh",
    needed=("torch", "numpy", "pydantic"),
)
BARE = (
    "exllamav3",
    "exllamav3.cache",
    "exllamav3.generator",
    "exllamav3.model",
    "exllamav3.modules",
    "exllamav3.modules.attention_fn",
    "exllamav3.tokenizer",
)
"""Packages whose `__init__` is not run."""
STAND_INS = {
    "exllamav3.ext": ("exllamav3_ext",),
    "exllamav3.generator.disk_cache": ("DiskPageCache",),
    "exllamav3.generator.filter": ("Filter",),
    "exllamav3.generator.sampler": ("Sampler", "DefaultSampler"),
    "exllamav3.model.config": ("Config",),
    "exllamav3.model.model": ("Model",),
    "exllamav3.model.model_tp_alloc": ("TPAllocation",),
    "exllamav3.model.model_tp_shared": ("TPTensorWrapper",),
    "exllamav3.modules.attention_fn.bc_attn": ("MAX_BSZ", "MAX_QLEN"),
    "exllamav3.modules.gated_delta_net_fn": ("causal_conv1d_update", "gated_delta_rule_fn"),
    "exllamav3.modules.gated_rmsnorm": ("GatedRMSNorm",),
    "exllamav3.modules.multilinear": ("SlicedMultiLinear",),
    "exllamav3.tokenizer.tokenizer": ("Tokenizer",),
}
"""Modules that are stand-ins, and the names that are imported from them."""
IN_PACKAGES = {
    "exllamav3.modules": ("Module", "Linear"),
    "exllamav3.tokenizer": ("MMEmbedding",),
}
"""Names that are stand-ins in packages whose `__init__` is not run."""
REAL = (
    "cache.cache",
    "cache.recurrent",
    "cache.recurrent_util",
    "generator.pagetable",
    "generator.cpu_cache",
    "generator.job",
    "generator.generator",
    "modules.block_sparse_mlp_cpu",
    "modules.gated_delta_net",
)
"""What is imported of exllamav3; whatever these import is real as well."""
PAGED = ("cache.recurrent", "generator.cpu_cache", "generator.generator", "generator.job")
"""Modules that have a copy of the page size, with `generator.pagetable` and `constants`."""
PATCHES = Patches("exllamav3")
"""What is planted into the engine that is open."""


class Exllamav3:
    """The modules of exllamav3 that are real, by what is taken from them."""

    release = KNOWN

    def part(self, module: str, name: str) -> Any:
        """Return something defined in a module of exllamav3."""
        return _real(module)[name]

    def module(self, name: str) -> dict[str, Any]:
        """Return what is in a module of exllamav3, to be changed."""
        return _real(name)

    def set_page_size(self, tokens: int) -> None:
        """Have every module count in pages of so many tokens (its own: 256)."""
        for name in ("constants", "generator.pagetable", *PAGED):
            _real(name)["PAGE_SIZE"] = tokens


@functools.cache
def load(path: str = "") -> Exllamav3:
    """Import exllamav3's generator, from the folder `path` if one is given.

    Raises EngineMissing and UsageError as `PinnedPackage.find` does, and EngineMissing if it cannot
    be imported.
    """
    root = PACKAGE.find(path)
    enter_bare(root, BARE)
    for name, names in STAND_INS.items():
        stand_in(name, names)
    for name, names in IN_PACKAGES.items():
        vars(sys.modules[name]).update(hollow(names))
    try:
        _import()
    except (ImportError, AttributeError, TypeError) as error:
        raise PACKAGE.missing(root, error) from None
    logging.getLogger("exllamav3").setLevel(logging.ERROR)
    return Exllamav3()


def _import() -> None:
    """Import what is real. The packages whose `__init__` is not run get what others ask them
    for.
    """
    cache = vars(sys.modules["exllamav3.cache"])
    cache["Cache"] = _real("cache.cache")["Cache"]
    cache["RecurrentCache"] = _real("cache.recurrent")["RecurrentCache"]
    for name in REAL:
        _real(name)
    for name in ("generator.generator", "generator.job"):
        module = _real(name)
        module["torch"] = _Unpinned(module["torch"])


def _real(name: str) -> dict[str, Any]:
    """Import a module of exllamav3, and return what is in it."""
    return vars(importlib.import_module(f"exllamav3.{name}"))


class _Unpinned:
    """torch on a CPU: memory that is asked for is not pinned, and there is nothing to wait for."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.cuda = SimpleNamespace(synchronize=lambda device=None: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)

    def empty(self, *args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        return self._torch.empty(*args, **kwargs)

    def zeros(self, *args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        return self._torch.zeros(*args, **kwargs)
