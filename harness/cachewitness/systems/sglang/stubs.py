"""Lets SGLang's cache be imported where its server cannot run: without a GPU, and without its some
hundred dependencies.

Of the package `sglang` only `REAL` is imported. Everything else that those modules import is a
stand-in with any name that is asked for while they are imported. When that is over the stand-ins
are sealed: whoever calls one raises `StandInCalled`. So no decision of the cache rests on a
stand-in's answer.

Small functions that the cache needs and that lie in modules which cannot be imported are taken from
their source (`taken`).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

BARE = ("sglang", "sglang.srt", "sglang.srt.mem_cache", "sglang.srt.managers", "sglang.srt.utils")
"""Packages whose `__init__` is not run, because it imports the server."""
REAL = (
    *BARE,
    "sglang.srt.disaggregation.kv_events",
    "sglang.srt.dllm.mixin.req",
    "sglang.srt.environ",
    "sglang.srt.managers.schedule_batch",
    "sglang.srt.utils.async_probe",
    "sglang.srt.utils.invariants",
    "sglang.srt.utils.poll_timer",
)
CACHE = "sglang.srt.mem_cache."
NOT_OF_CACHE = tuple(
    CACHE + name
    for name in (
        "allocator.hisparse",
        "allocator.unified_hybrid_swa",
        "hybrid_cache",
        "pool_host",
        "storage",
    )
)
"""Parts of the cache's package for other memories and other devices."""
FOREIGN = (
    "triton",
    "PIL",
    "torchvision",
    "sgl_kernel",
    "zmq",
    "transformers",
    "sgl_kernel_npu",
    "torch_npu",
    "pydantic",
)


class StandInCalled(RuntimeError):
    """SGLang's cache called something that stands in for a part of SGLang that is not there."""


class _Sealed:
    over = False


class _AnyName(type):
    """A class that has every attribute, and whose instances do nothing."""

    def __getattr__(cls, name: str) -> Any:
        return _asked_for(cls, name, cls.__qualname__)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__ != __name__:
            return super().__call__(*args, **kwargs)
        if _Sealed.over:
            raise StandInCalled(f"{cls.__qualname__} is called")
        return super().__call__()

    def __or__(cls, other: object) -> Any:
        return cls

    def __ror__(cls, other: object) -> Any:
        return cls


class _StandIn(metaclass=_AnyName):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Decorate a function while modules are imported: it stays as it is."""
        if _Sealed.over:
            raise StandInCalled(f"{type(self).__qualname__} is called")
        return args[0] if args and callable(args[0]) else self

    def __class_getitem__(cls, item: object) -> Any:
        return cls


def _asked_for(owner: Any, name: str, called: str) -> Any:
    """Return an attribute that nothing has defined: a stand-in, which stays there; once all is
    imported, nobody may ask.
    """
    if name.startswith("__"):
        raise AttributeError(name)
    if _Sealed.over:
        raise StandInCalled(f"{called}.{name} is asked for")
    made = _AnyName(name, (_StandIn,), {"__qualname__": f"{called}.{name}"})
    setattr(owner, name, made)
    return made


class _Module(ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        return _asked_for(self, name, self.__name__)


class _Finder:
    """Finds stand-ins for what is not to be imported."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """Say that a module is a stand-in; None: it is real."""
        top = name.partition(".")[0]
        foreign = top in FOREIGN and not _Sealed.over
        if not foreign and (top != "sglang" or _is_real(name)):
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make a stand-in."""
        module = _Module(spec.name)
        module.__path__ = [str(self._root.joinpath(*spec.name.split(".")))]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a stand-in has no code."""


def _is_real(name: str) -> bool:
    if any(name == part or name.startswith(f"{part}.") for part in NOT_OF_CACHE):
        return False
    return name in REAL or name.startswith(CACHE)


def install(root: Path, patched: Mapping[str, Mapping[str, Any]]) -> None:
    """Have everything of the package in `root/sglang` but `REAL` replaced by stand-ins, some of
    whose names are `patched`.
    """
    sys.meta_path.insert(0, _Finder(root))
    for name in BARE:
        module = _Module(name) if name.endswith("utils") else ModuleType(name)
        module.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules[name] = module
    for name, parts in patched.items():
        __import__(name)
        vars(sys.modules[name]).update(parts)


def seal() -> None:
    """From now on nobody may call a stand-in, or ask one for a name that nobody asked for before.

    Packages that are not SGLang's are found again by whoever else imports them in this process.
    """
    _Sealed.over = True
    for name in [name for name, module in sys.modules.items() if isinstance(module, _Module)]:
        if name.partition(".")[0] in FOREIGN:
            del sys.modules[name]


def taken(file: Path, names: Iterable[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return functions of a file that cannot be imported, compiled from its source; `given` are the
    names that they use.

    Raises LookupError, naming it, for a function that is not there.
    """
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    scope = dict(given)
    for name in names:
        if name not in found:
            raise LookupError(f"{file.name} has no function {name}")
        whole = ast.Module([_without_annotations(found[name])], [])
        exec(compile(whole, str(file), "exec"), scope)
    return {name: scope[name] for name in names}


def _without_annotations(function: ast.FunctionDef) -> ast.FunctionDef:
    function.returns = None
    for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs):
        argument.annotation = None
    return function
