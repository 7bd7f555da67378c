"""What Furiosa's policy leaves to an engine: which free block is handed out, and of each pool which
idle block goes.

Of the global pool the leaf of any branch may go. Where the block that has been idle longest is no
leaf, because a branch ends in the block that another one begins in, it goes with all that lies
below, which is no choice. A sliding block may go anywhere, and leaves a hole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from cachewitness.engines.choices import Choices
from cachewitness_reference.furiosa.block_pool import BlockPool
from cachewitness_reference.furiosa.radix_tree import Entry
from cachewitness_reference.primitives import BlockId


def steer(engine: Any, choices: Choices) -> None:
    """Have the free choices of a reference engine made by somebody else."""
    manager = engine.adapter.manager
    _blocks(manager.global_pool, 0, choices, lambda: _leaves(manager.global_pool))
    _blocks(manager.sliding_pool, 1, choices, lambda: manager.sliding_pool._idle.keys())


def _blocks(
    pool: BlockPool, number: int, choices: Choices, evictable: Callable[[], Collection[int]]
) -> None:
    """Have the next block chosen: a free one, or one of those that may go if none is."""
    own = pool.take

    def take() -> BlockId:
        if pool._free:
            block = pool._blocks[choices.free(number, [block.block_id for block in pool._free])]
            pool._free.remove(block)
            pool._free.appendleft(block)
        elif (
            next(iter(pool._idle)) in (pages := evictable())
            and (victim := choices.victim(number, pages)) is not None
        ):
            pool._idle.move_to_end(BlockId(victim), last=False)
        return own()

    pool.take = take  # type: ignore[method-assign]


def _leaves(pool: BlockPool) -> list[int]:
    """Return the idle blocks below which nothing lies in another block."""
    return [
        page
        for page in pool._idle
        if not any(_reaches_beyond(entry, page) for entry in pool.entries(page))
    ]


def _reaches_beyond(entry: Any, page: BlockId) -> bool:
    assert isinstance(entry, Entry)
    return any(child.global_block != page for child in entry.children.values())
