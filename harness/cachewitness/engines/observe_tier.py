"""Turns what becomes of a second tier's keys into events, by comparing them with what they were
before.

The tier says which places changed (`drain_dirty`), and is believed in nothing else. The tier is a
pool of its own. The groups in it follow those of the device, in the same order: copies of the pages
of group g are keyed in group `groups + g`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from cachewitness.core.events import (
    Acquire,
    Counts,
    Event,
    Publish,
    Release,
    Unpublish,
    UnpublishReason,
)

TIER = 1
"""The pool of the second tier."""

NOT_FROM_THERE = -1
"""What a hit says of a column that was not fetched from the tier."""


class ObservedTier:
    """The places of a tier, and the keys that were seen in them. Without a tier it is falsy."""

    def __init__(self, tier: Any, group_of: Callable[[Any], int], groups: int) -> None:
        self._tier = tier
        self._group_of = group_of
        self._groups = groups
        self._places = [] if tier is None else tier.blocks
        self._keys: dict[int, tuple[Any, int]] = {}
        self._holders: dict[int, str] = {}
        """Of transfers under way, by number: who they are as holders."""
        self._held: Counter[int] = Counter()

    def __bool__(self) -> bool:
        return bool(self._places)

    def place(self, block: Any) -> int:
        """Return which place of the tier a block of a hit is."""
        page: int = block.block_id
        return page if page < len(self._places) and self._places[page] is block else NOT_FROM_THERE

    def hold(self, transfer: Any, holder: str, step: int) -> Event:
        """Note that a transfer holds its place, and return the event."""
        page = transfer.place.block_id
        group = self._groups + self._group_of(transfer.key)
        self._holders[transfer.number] = holder
        self._held[page] += 1
        return Acquire(step=step, pool=TIER, group=group, pages=[page], holder=holder)

    def let_go(self, transfer: Any, step: int) -> Event:
        """Note that a transfer is over, and return the event."""
        page = transfer.place.block_id
        group = self._groups + self._group_of(transfer.key)
        self._held -= Counter((page,))
        return Release(
            step=step,
            pool=TIER,
            group=group,
            pages=[page],
            holder=self._holders.pop(transfer.number),
        )

    def changes(
        self, step: int, reason: UnpublishReason, moves: Sequence[Event] = ()
    ) -> list[Event]:
        """Return what ended, for a reason, what began, and the counts, if anything did since the
        last call.

        Places that were held or let go meanwhile (`moves`) come behind the keys.
        """
        ended: list[Event] = []
        begun: list[Event] = []
        for page in self._tier.drain_dirty() if self._tier is not None else ():
            place = self._places[page]
            old = self._keys.get(page)
            new = (
                None
                if place.block_hash is None
                else (place.block_hash, place.block_hash_num_tokens)
            )
            if new == old:
                continue
            if new is None:
                del self._keys[page]
            else:
                self._keys[page] = new
            if old is not None:
                group = self._groups + self._group_of(old[0])
                ended.append(
                    Unpublish(step=step, group=group, page=page, length=old[1], reason=reason)
                )
            if new is not None:
                group = self._groups + self._group_of(new[0])
                begun.append(
                    Publish(step=step, group=group, page=page, r=place.request_id, length=new[1])
                )
        if not ended and not begun and not moves:
            return []
        held = len(self._held)
        cached = len(self._keys) - sum(page in self._keys for page in self._held)
        free = len(self._places) - held - cached
        return [
            *ended,
            *begun,
            *moves,
            Counts(step=step, pool=TIER, free=free, held=held, cached=cached),
        ]
