"""Replaces methods of vLLM's own classes for a while.

A fault that is planted into classes reaches whatever vLLM builds itself: managers that a coordinator makes, look-ups that are
class methods, functions that hash. So the same fault can be shown to this harness and to vLLM's own unit tests. One engine at a
time has faults; the next one that is opened, or closing this one, takes them out again.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from harness._util.errors import UsageError

Around = Callable[..., Any]

SINGLE = "single_type_kv_cache_manager"
COORDINATOR = "kv_cache_coordinator"
MANAGER = "kv_cache_manager"
POOL = "block_pool"
UTILS = "kv_cache_utils"
SCHEDULER = "sched.scheduler"


class Patches:
    """Methods and functions of `vllm.v1.core` that are replaced, and what they were."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def method(self, module: str, owner: str, name: str, around: Around) -> None:
        """Replace a method by `around(original, self_or_class, *args, **kwargs)`; `original` is bound already.

        Raises UsageError if this vLLM has no such class or method.
        """
        cls = self._part(module, owner)
        try:
            raw = inspect.getattr_static(cls, name)
        except AttributeError:
            raise UsageError(f"--engine: {cls.__name__} of this vLLM has no {name}; the fault does not fit it") from None
        function = raw.__func__ if isinstance(raw, classmethod | staticmethod) else raw

        @wraps(function)
        def replaced(self: Any, *args: Any, **kwargs: Any) -> Any:
            return around(partial(function, self), self, *args, **kwargs)

        own = name in vars(cls)
        setattr(cls, name, classmethod(replaced) if isinstance(raw, classmethod) else replaced)
        self._undo.append(partial(setattr, cls, name, raw) if own else partial(delattr, cls, name))

    def function(self, module: str, name: str, around: Around) -> None:
        """Replace what a module calls `name` by `around(original, *args, **kwargs)`; raises like `method`."""
        original = self._part(module, name)

        @wraps(original)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        holder = importlib.import_module(f"vllm.v1.core.{module}")
        setattr(holder, name, replaced)
        self._undo.append(partial(setattr, holder, name, original))

    def text(self, module: str, owner: str, name: str, old: str, new: str) -> None:
        """Replace a piece of a method's source, which occurs in it once: a fix is taken back at its place.

        Where `old` has blanks the source may have any blanks, also none, and line ends. Raises like `method`.
        """
        cls = self._part(module, owner)
        function = inspect.getattr_static(cls, name, None)
        source = textwrap.dedent(inspect.getsource(function)) if inspect.isfunction(function) else ""
        pattern = r"\s*".join(map(re.escape, old.split()))
        changed, count = re.subn(pattern, lambda _: new, source)
        if count != 1 or not inspect.isfunction(function):
            raise UsageError(f"--engine: {owner}.{name} of this vLLM has {count} times {old!r}; the fault does not fit it")
        made: dict[str, Any] = {}
        exec(compile(changed, function.__code__.co_filename, "exec"), function.__globals__, made)
        setattr(cls, name, made[name])
        self._undo.append(partial(setattr, cls, name, function))

    def undo(self) -> None:
        """Put everything back, the last one first."""
        while self._undo:
            self._undo.pop()()

    def _part(self, module: str, name: str) -> Any:
        try:
            return getattr(importlib.import_module(f"vllm.v1.core.{module}"), name)
        except (ImportError, AttributeError):
            raise UsageError(f"--engine: vllm.v1.core.{module} has no {name}; the fault does not fit this vLLM") from None


ACTIVE = Patches()
"""What is planted into the engine that is open."""

Fault = Callable[[Patches], None]


def planted(fault: Fault) -> Callable[[Any], None]:
    """Return what plants a fault for as long as an engine is open."""

    @wraps(fault)
    def plant(engine: Any) -> None:
        ACTIVE.undo()
        fault(ACTIVE)
        close = engine.close

        def closed() -> None:
            ACTIVE.undo()
            close()

        engine.close = closed

    plant.fault = fault  # type: ignore[attr-defined]
    return plant


def arguments(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by name, those by default too."""
    call = inspect.signature(original).bind(*args, **kwargs)
    call.apply_defaults()
    return dict(call.arguments)
