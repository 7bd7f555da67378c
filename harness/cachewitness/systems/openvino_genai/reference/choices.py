"""What OpenVINO's policy leaves to an engine: which free block is handed out, which cached one
goes, who keeps a key.

At most one block carries a key. If a block of the same content is held when another is computed,
either may have it. An unused block goes before one of the store, which is no choice.
"""

from __future__ import annotations

from typing import Any

from cachewitness.engines.choices import Choices
from cachewitness_reference.openvino_genai.block_pool import Block, BlockPool
from cachewitness_reference.openvino_genai.orchestrator import KV, LA
from cachewitness_reference.primitives import BlockHash, Position


def steer(engine: Any, choices: Choices) -> None:
    """Have the free choices of a reference engine made by somebody else; groups of a kind share
    a pool, the first speaks.
    """
    managers = engine.adapter.scheduler.cache.managers
    first: dict[Any, int] = {}
    for group in engine.header.groups:
        first.setdefault(LA if group.kind == "recurrent" else KV, group.id)
    for kind, group in first.items():
        _blocks(managers[kind].pool, group, choices)
        _keys(managers[kind].pool, group, choices)


def _blocks(pool: BlockPool, group: int, choices: Choices) -> None:
    """Have the next block chosen; the pool of a group has the group's number."""
    own = pool.allocate

    def allocate(owner: str) -> Block:
        unused = {block.block_id: block for block in pool._unused}
        if unused:
            block = pool.blocks[choices.free(group, [*unused])]
            pool._unused.remove(block)
            pool._unused.appendleft(block)
        return own(owner)

    def oldest() -> Block:
        victim = choices.victim(group, pool._store.keys())
        return own_oldest() if victim is None else pool._store.pop(pool.blocks[victim].block_id)

    own_oldest = pool._oldest
    pool.allocate = allocate  # type: ignore[method-assign]
    pool._oldest = oldest  # type: ignore[method-assign]


def _keys(pool: BlockPool, group: int, choices: Choices) -> None:
    """Have it chosen who carries a key that a held block has already."""
    own = pool.register

    def register(
        block: Block, key: BlockHash, parent: BlockHash | None, length: Position, owner: str
    ) -> None:
        other = pool.cached.get(key)
        if (
            other not in (None, block)
            and other.references
            and choices.renamed(owner, group, length)
        ):
            pool._drop_key(other)
        own(block, key, parent, length, owner)

    pool.register = register  # type: ignore[method-assign]
