"""A plain second tier: memory beside the device's, where pages wait under their keys.

What a group keys on the device is stored here when the step that writes it has run (write-through),
if it is not here already. A look-up asks the device first and this tier where the device has
nothing, key by key, so a hit may end where neither could end it alone; the groups settle on one
length as they always do. Whatever was found here gets a fresh block on the device, is copied into
it before the step that reads it, and can be hit there from then on. When the tier is full, the key
that was stored or found longest ago goes.

A key stands for its content alone, so a tier outlives a reset of the device's cache, and ends with
the weights.

**Who calls it.** The pool asks `get` in every look-up (`tiered_pool`). The coordinator has `fetch`
called for each block of a hit that is only here; the scheduler takes the copies that follow from it
(`take_loads`), has what was keyed stored (`store`), and says when the step of the loads has run
(`release`). Another tier has these methods and its own idea of what to keep.

This is no rule of vLLM's, whose tiers are connectors; it is the least that a second tier can be.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from cachewitness_reference.primitives import BlockId
from cachewitness_reference.vllm.key_index import BlockHashWithGroupId, KVCacheBlock

TierCopy = tuple["TierBlock", KVCacheBlock]
"""A place in the tier and a block on the device."""


class TierBlock(KVCacheBlock):
    """A place in the tier. `num_copies` counts those from and to it that have not ended;
    `request_id` is who stored it.

    Its reference count stays 0: to the device it is a block that nobody holds, and that takes a
    free one when it is hit.
    """

    __slots__ = ("num_copies", "request_id")

    def __init__(self, block_id: BlockId) -> None:
        super().__init__(block_id)
        self.num_copies = 0
        self.request_id = ""


class PlainTier:
    """So many places, from key to copy, least recently used first."""

    delay = 0
    """How many steps a copy takes; 0: it is part of the step that asks for it."""

    def __init__(self, num_pages: int) -> None:
        self.blocks = [TierBlock(BlockId(place)) for place in range(num_pages)]
        self._free = self.blocks[::-1]
        self._cached: OrderedDict[BlockHashWithGroupId, TierBlock] = OrderedDict()
        self._loads: list[TierCopy] = []
        self._dirty: set[BlockId] = set()
        self.get = self._cached.get

    def fetch(self, source: TierBlock, target: KVCacheBlock) -> None:
        """Have what a place holds copied into a block of the device before the next step; it
        stays until that has run.
        """
        assert source.block_hash is not None
        self._cached.move_to_end(source.block_hash)
        source.num_copies += 1
        self._loads.append((source, target))

    def take_loads(self) -> list[TierCopy]:
        """Return the copies that the next step has to make before it runs."""
        loads, self._loads = self._loads, []
        return loads

    def release(self, sources: Iterable[TierBlock]) -> None:
        """Say that loads have run, or will not."""
        for source in sources:
            source.num_copies -= 1

    def store(self, request_id: str, block: KVCacheBlock) -> TierBlock | None:
        """Give a keyed block a place, whose key ends; None if its key is here already or every
        place is being loaded.
        """
        key = block.block_hash
        assert key is not None
        if key in self._cached:
            self._cached.move_to_end(key)
            return None
        place = self._free.pop() if self._free else self._evict()
        if place is not None:
            place.request_id = request_id
            self._keep(place, block)
        return place

    def reset(self) -> None:
        """Forget every key."""
        for place in self._cached.values():
            self._set_key(place, None, None)
        self._free = self.blocks[::-1]
        self._cached.clear()

    def drain_dirty(self) -> list[BlockId]:
        """Return the places whose key changed since the last call, in order."""
        dirty = sorted(self._dirty)
        self._dirty.clear()
        return dirty

    def _keep(self, place: TierBlock, block: KVCacheBlock) -> None:
        """Give a place to what a block is keyed as."""
        assert block.block_hash is not None
        self._set_key(place, block.block_hash, block.block_hash_num_tokens)
        self._cached[block.block_hash] = place

    def _set_key(
        self, place: TierBlock, key: BlockHashWithGroupId | None, num_tokens: int | None
    ) -> None:
        place.block_hash = key
        place.block_hash_num_tokens = num_tokens
        self._dirty.add(place.block_id)

    def _evict(self) -> TierBlock | None:
        key = next((key for key, place in self._cached.items() if place.num_copies == 0), None)
        return None if key is None else self._cached.pop(key)
