"""What mutants share: reaching into a manager of vLLM's shape, and replacing one method of one
object.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from cachewitness.engines.driver import Driver

BOTH = ("reference", "vllm")
REFERENCE = ("reference",)


def adapter(engine: Driver) -> Any:
    """Return what stands between the driver and the policy; its type is the policy's."""
    return engine.adapter


def core(engine: Driver) -> Any:
    """Return the cache manager itself, behind observer and timer."""
    manager = adapter(engine).manager.manager
    return getattr(manager, "timed", manager)


def groups(engine: Driver, kind: str) -> list[Any]:
    """Return the single-type managers of a kind: `Mamba`, `SlidingWindow` or `FullAttention`."""
    managers = core(engine).coordinator.single_type_managers
    return [
        manager
        for manager in managers
        if f"{kind}Manager" in {base.__name__ for base in type(manager).__mro__}
    ]


def wrap(target: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace `target.name` by `around(original, *args, **kwargs)`."""
    original = getattr(target, name)

    def replaced(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(target, name, replaced)


def bound(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by name."""
    call = inspect.signature(original).bind(*args, **kwargs)
    call.apply_defaults()
    return dict(call.arguments)
