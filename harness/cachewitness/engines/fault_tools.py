"""What mutants share: reaching into a manager of vLLM's shape, choosing another text whose cache is
kept, and replacing one method of one object.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from cachewitness.engines.driver import Driver

BOTH = ("reference", "vllm")
REFERENCE = ("reference",)
Place = TypeVar("Place", bound=tuple[str, Sequence[int]])
"""Whose a text is whose cache is kept, and its tokens."""


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


def key_nothing_before(engine: Driver, kind: str, end: Callable[[Any, Any], int]) -> None:
    """Have the groups of a kind give keys only to who has computed as many tokens as `end` says, of
    a group's manager and a request.
    """

    def plant(manager: Any) -> None:
        def cache_blocks(original: Any, request: Any, num_tokens: int, replay: Any) -> Any:
            reached = num_tokens >= end(manager, request)
            return original(request, num_tokens, replay) if reached else []

        wrap(manager, "cache_blocks", cache_blocks)

    for manager in groups(engine, kind):
        plant(manager)


def last_boundary(manager: Any, request: Any) -> int:
    """Return the last multiple of a group's blocks in front of a prompt's end."""
    before_the_last = int(request.num_prompt_tokens) - 1
    return before_the_last - before_the_last % int(manager.block_size)


def left_while_waiting(scheduler: Any, finish: str) -> set[str]:
    """Return the ids, from now on, of requests that a scheduler ends while they wait; `finish` is
    its method that ends requests by their ids.
    """
    gone: set[str] = set()

    def finished(original: Any, request_ids: Any, *status: Any) -> None:
        names = list(request_ids)
        gone.update({request.request_id for request in scheduler.waiting}.intersection(names))
        original(names, *status)

    wrap(scheduler, finish, finished)
    return gone


def longest_shorter(kept: Iterable[Place], own: Place) -> Place | None:
    """Return the longest beginning of a text that is kept, less than all of it; None if there is
    none.
    """
    whose, tokens = own
    shorter = (
        place
        for place in kept
        if place[0] == whose and len(place[1]) < len(tokens) and place[1] == tokens[: len(place[1])]
    )
    return max(shorter, key=lambda place: len(place[1]), default=None)


def last_of_another(kept: Iterable[Place], own: Place) -> Place | None:
    """Return the last text that is kept and begins otherwise, None if there is none."""
    tokens = own[1]
    half = len(tokens) // 2
    others = [place for place in kept if place[1][:half] != tokens[: len(place[1])][:half]]
    return others[-1] if others else None


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
