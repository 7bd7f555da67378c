"""Names copies as holders of pages of the device, beside whoever else holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cachewitness.core.events import Acquire, Event, Release

POOL = 0
"""The pool that vLLM's groups alias; where they do not (`several_pools`), that of the first."""


class Pins:
    """The blocks that copies hold, and for which group each does. A block may be held by several;
    the first comes first. `pools` is the pool of each group.
    """

    def __init__(self, pools: Sequence[int]) -> None:
        self._pools = pools
        self._held: dict[int, list[tuple[str, int]]] = {}
        """By the block's identity: blocks of several pools have one number."""
        self._count = 0

    def next_copy(self) -> str:
        """Return what the next copy is called as a holder."""
        self._count += 1
        return f"copy:{self._count}"

    def take(self, block: Any, group: int, copy: str, step: int) -> Event:
        """Note that a copy holds a block, and return the event."""
        self._held.setdefault(id(block), []).append((copy, group))
        pages = [block.block_id]
        return Acquire(step=step, pool=self._pools[group], group=group, pages=pages, holder=copy)

    def drop(self, blocks: Iterable[Any], step: int) -> list[Event]:
        """Note that blocks were given back, each by one of the copies that held it, if any did;
        return the events.
        """
        drops: list[Event] = []
        for block in blocks:
            if held := self._held.get(id(block)):
                copy, group = held.pop(0)
                pool = self._pools[group]
                drops.append(
                    Release(step=step, pool=pool, group=group, pages=[block.block_id], holder=copy)
                )
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
