"""Turns what becomes of a second tier's keys into events, by comparing them with what they were before.

The tier says which places changed (`drain_dirty`), and is believed in nothing else.
The tier is a pool of its own. The groups in it follow those of the device, in the same order: copies of the pages of group g
are keyed in group `groups + g`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.history import Counts, Event, Publish, Unpublish, UnpublishReason

TIER = 1
"""The pool of the second tier."""

NOT_FROM_THERE = -1
"""What a hit says of a column that was not fetched from the tier."""


class ObservedTier:
    """The places of a tier, and the keys that were seen in them. Without a tier it is falsy."""

    def __init__(self, tier: Any, group_of: Callable[[Any], int], groups: int) -> None:
        self._tier, self._group_of, self._groups = tier, group_of, groups
        self._places = [] if tier is None else tier.blocks
        self._keys: dict[int, tuple[Any, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._places)

    def place(self, block: Any) -> int:
        """Return which place of the tier a block of a hit is."""
        slot: int = block.block_id
        return slot if slot < len(self._places) and self._places[slot] is block else NOT_FROM_THERE

    def changes(self, step: int, reason: UnpublishReason) -> list[Event]:
        """Return what ended, for a reason, what began, and the counts, if anything did since the last call."""
        ended: list[Event] = []
        begun: list[Event] = []
        for slot in self._tier.drain_dirty() if self._tier is not None else ():
            place, old = self._places[slot], self._keys.get(slot)
            new = None if place.block_hash is None else (place.block_hash, place.block_hash_num_tokens)
            if new == old:
                continue
            if new is None:
                del self._keys[slot]
            else:
                self._keys[slot] = new
            if old is not None:
                group = self._groups + self._group_of(old[0])
                ended.append(Unpublish(step=step, group=group, slot=slot, length=old[1], reason=reason))
            if new is not None:
                group = self._groups + self._group_of(new[0])
                begun.append(Publish(step=step, group=group, slot=slot, r=place.request_id, length=new[1]))
        if not ended and not begun:
            return []
        cached = len(self._keys)
        return [*ended, *begun, Counts(step=step, pool=TIER, free=len(self._places) - cached, held=0, cached=cached)]
