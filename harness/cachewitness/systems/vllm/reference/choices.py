"""What vLLM's policy leaves to an engine: which free block is handed out, which cached one is
evicted, which duplicate is hit.

Whether a cached block is evicted at all is not free: blocks without a key come first where the
release lines them up so. In a second tier the place that makes room is free likewise.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from cachewitness.engines.choices import Choices
from cachewitness.engines.observe_pins import POOL
from cachewitness.engines.observe_tier import TIER
from cachewitness_reference.vllm.block_pool import BlockPool
from cachewitness_reference.vllm.key_index import KVCacheBlock, get_group_id
from cachewitness_reference.vllm_extended.tier import PlainTier, TierBlock


def steer(engine: Any, choices: Choices) -> None:
    """Have the free choices of a reference engine made by somebody else."""
    manager = engine.adapter.manager.manager
    pool: BlockPool = manager.block_pool
    _blocks(pool, choices)
    _duplicates(manager, pool, choices)
    tier = getattr(pool, "tier", None)
    if isinstance(tier, PlainTier):
        _places(tier, choices)


def _blocks(pool: BlockPool, choices: Choices) -> None:
    """Put the blocks that are to be taken in front of the free queue before the pool takes them."""
    own = pool.get_new_blocks

    def get_new_blocks(num_blocks: int) -> list[KVCacheBlock]:
        waiting = dict[int, KVCacheBlock](pool.free_block_queue.items())
        for block in [_next(waiting, choices) for _ in range(min(num_blocks, len(waiting)))][::-1]:
            pool.free_block_queue.move_to_end(block.block_id, last=False)
        return own(num_blocks)

    pool.get_new_blocks = get_new_blocks  # type: ignore[method-assign]


def _next(waiting: dict[int, KVCacheBlock], choices: Choices) -> KVCacheBlock:
    """Take the next block out of those that wait, in the order of the queue."""
    head = next(iter(waiting.values()))
    if head.block_hash is None:
        unkeyed = takewhile(lambda block: block.block_hash is None, waiting.values())
        return waiting.pop(choices.free(POOL, [block.block_id for block in unkeyed]))
    victim = choices.victim(
        POOL, [page for page, block in waiting.items() if block.block_hash is not None]
    )
    return waiting.pop(head.block_id if victim is None else victim)


def _duplicates(manager: Any, pool: BlockPool, choices: Choices) -> None:
    """Answer a look-up with the block that is to be hit, of those under the key.

    A block that nobody holds takes a place in the free queue when it is hit, and one that this step
    writes cannot be copied: so the choice decides whether the request gets its slots now.
    """
    index = pool.cached_block_hash_to_block
    look_up = manager.get_computed_blocks
    allocate = manager.allocate_slots
    served = [""]
    chosen = set[str]()

    def get_computed_blocks(request: Any) -> Any:
        served[0] = request.request_id
        chosen.discard(request.request_id)
        return look_up(request)

    def allocate_slots(request: Any, *args: Any, **kwargs: Any) -> Any:
        if request.request_id in chosen and choices.waits(request.request_id):
            return None
        chosen.discard(request.request_id)
        return allocate(request, *args, **kwargs)

    def get_one_block(key: Any, default: None = None) -> KVCacheBlock | None:
        first = index._first.get(key)
        later = index._later.get(key)
        if first is None or not later:
            return first
        blocks: dict[int, KVCacheBlock] = {
            block.block_id: block for block in (first, *later.values())
        }
        chosen.add(served[0])
        return blocks[choices.duplicate(served[0], get_group_id(key), [*blocks])]

    manager.get_computed_blocks = get_computed_blocks
    manager.allocate_slots = allocate_slots
    index.get_one_block = get_one_block  # type: ignore[assignment]


def _places(tier: PlainTier, choices: Choices) -> None:
    """Have the place that a store takes chosen."""
    own = tier._evict
    store = tier.store

    def evict() -> TierBlock | None:
        idle = {place.block_id: key for key, place in tier._cached.items() if place.num_copies == 0}
        victim = choices.victim(TIER, idle.keys())
        if victim is not None:
            tier._cached.move_to_end(idle[victim], last=False)  # type: ignore[index]
        return own()

    def choosing(request_id: str, block: KVCacheBlock) -> TierBlock | None:
        if tier._free and block.block_hash not in tier._cached:
            wanted = choices.free(TIER, [place.block_id for place in reversed(tier._free)])
            tier._free.sort(key=lambda place: place.block_id == wanted)
        return store(request_id, block)

    tier.store = choosing  # type: ignore[method-assign]
    tier._evict = evict  # type: ignore[method-assign]
