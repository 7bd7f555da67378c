"""Names copies as holders of pages of the device, beside whoever else holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cachewitness.core.events import Acquire, Event, Release

POOL = 0
"""vLLM's groups alias one pool."""


class Pins:
    """The pages that copies hold, and for which group each does. A page may be held by several;
    the first comes first.
    """

    def __init__(self) -> None:
        self._held: dict[int, list[tuple[str, int]]] = {}
        self._count = 0

    def next_copy(self) -> str:
        """Return what the next copy is called as a holder."""
        self._count += 1
        return f"copy:{self._count}"

    def take(self, page: int, group: int, copy: str, step: int) -> Event:
        """Note that a copy holds a page, and return the event."""
        self._held.setdefault(page, []).append((copy, group))
        return Acquire(step=step, pool=POOL, group=group, pages=[page], holder=copy)

    def drop(self, pages: Iterable[int], step: int) -> list[Event]:
        """Note that pages were given back, each by one of the copies that held it, if any did;
        return the events.
        """
        drops: list[Event] = []
        for page in pages:
            held = self._held.get(page)
            if held:
                copy, group = held.pop(0)
                drops.append(Release(step=step, pool=POOL, group=group, pages=[page], holder=copy))
        return drops


class ObservedPool:
    """The manager's block pool; a scheduler frees the ends of copies through it, past the
    manager.
    """

    def __init__(self, pool: Any, released: Callable[[list[Any]], None]) -> None:
        self._pool = pool
        self._released = released

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        """Give blocks back to the pool."""
        blocks = list(ordered_blocks)
        self._pool.free_blocks(blocks)
        self._released(blocks)
