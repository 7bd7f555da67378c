"""Replaces methods of an installed engine's classes for a while, or a piece of their source.

A fault that is planted into classes reaches whatever the engine builds itself: managers that a
coordinator makes, look-ups that are class methods, functions that hash. So the same fault can be
shown to this harness and to the engine's own unit tests. One engine at a time has faults; the next
one that is opened, or closing this one, takes them out again.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import partial, wraps
from types import CodeType
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.engines.source_rewrite import compiled, original_source, places, replaced

Around = Callable[..., Any]


class Patches:
    """Methods and functions of a package that are replaced, and what they were."""

    def __init__(self, package: str = "vllm") -> None:
        self._package = package
        self._undo: list[Callable[[], None]] = []
        self._sources: dict[Any, str] = {}
        """The source of functions of which pieces are replaced."""

    def method(self, module: str, owner: str, name: str, around: Around) -> None:
        """Replace a method by `around(original, self_or_class, *args, **kwargs)`; `original` is
        bound already.

        Raises UsageError if this release has no such class or method.
        """
        cls = self._part(module, owner)
        try:
            raw = inspect.getattr_static(cls, name)
        except AttributeError:
            raise UsageError(
                f"--engine: {cls.__name__} of this {self._package} has no {name}; the fault does"
                " not fit it"
            ) from None
        function = raw.__func__ if isinstance(raw, classmethod | staticmethod) else raw

        @wraps(function)
        def replaced(self: Any, *args: Any, **kwargs: Any) -> Any:
            return around(partial(function, self), self, *args, **kwargs)

        own = name in vars(cls)
        setattr(cls, name, classmethod(replaced) if isinstance(raw, classmethod) else replaced)
        self._undo.append(partial(setattr, cls, name, raw) if own else partial(delattr, cls, name))

    def function(self, module: str, name: str, around: Around) -> None:
        """Replace what a module calls `name` by `around(original, *args, **kwargs)`; raises like
        `method`.
        """
        original = self._part(module, name)

        @wraps(original)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        holder = importlib.import_module(f"{self._package}.{module}")
        setattr(holder, name, replaced)
        self._undo.append(partial(setattr, holder, name, original))

    def text(self, module: str, owner: str, name: str, old: str, new: str) -> None:
        """Replace a piece of a function's source, which occurs in it once: a fix is taken back at
        its place.

        `owner` is the function's class, or empty if it has none. Where `old` has blanks the source
        may have blanks, line ends and comments, or none of them. Lines of `new` after the first are
        indented like the piece that they replace. Whoever holds the function has the changed one,
        whatever name it was imported by. A second piece of the same function is looked for in what
        the first left. Raises like `method`.
        """
        function = self._function(module, owner, name)
        source = self._sources.get(function) or original_source(function)
        found = places(source, old)
        if len(found) != 1:
            where = f"{owner}.{name}" if owner else name
            raise UsageError(
                f"--engine: {where} of this {self._package} has {len(found)} times {old!r}; the"
                " fault does not fit it"
            )
        self._undo.append(partial(self._restore, function, function.__code__))
        self._sources[function] = changed = replaced(source, found[0], new)
        function.__code__ = compiled(function.__code__, changed)

    def _function(self, module: str, owner: str, name: str) -> Any:
        found = (
            inspect.getattr_static(self._part(module, owner), name, None)
            if owner
            else self._part(module, name)
        )
        found = found.__func__ if isinstance(found, classmethod | staticmethod) else found
        found = inspect.unwrap(found) if callable(found) else found
        if not inspect.isfunction(found):
            raise UsageError(
                f"--engine: {owner or module} of this {self._package} has no {name}; the fault does"
                " not fit it"
            )
        return found

    def _restore(self, function: Any, code: CodeType) -> None:
        function.__code__ = code
        self._sources.pop(function, None)

    def undo(self) -> None:
        """Put everything back, the last one first."""
        while self._undo:
            self._undo.pop()()

    def _part(self, module: str, name: str) -> Any:
        try:
            return getattr(importlib.import_module(f"{self._package}.{module}"), name)
        except (ImportError, AttributeError):
            raise UsageError(
                f"--engine: {self._package}.{module} has no {name}; the fault does not fit it"
            ) from None


ACTIVE = Patches()
"""What is planted into the engine that is open."""

Fault = Callable[[Patches], None]


def planted(
    fault: Fault, *, built: bool = False, patches: Patches = ACTIVE
) -> Callable[[Any], None]:
    """Return what plants a fault for as long as an engine is open. `built`: it is in what builds
    the engine.
    """

    @wraps(fault)
    def plant(engine: Any) -> None:
        patches.undo()
        fault(patches)
        if built:
            engine.rebuild()
        close = engine.close

        def closed() -> None:
            patches.undo()
            close()

        engine.close = closed

    plant.fault = fault  # type: ignore[attr-defined]
    return plant


def arguments(
    original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return a call's arguments by name, those by default too."""
    call = inspect.signature(original).bind(*args, **kwargs)
    call.apply_defaults()
    return dict(call.arguments)
