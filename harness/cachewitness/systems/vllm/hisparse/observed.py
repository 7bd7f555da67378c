"""The calls on vLLM's cache manager with HiSparse, and what both pools show of themselves after
each.

Both are compared whole, since a call that serves one request moves others' blocks: a block of a
resident group that is reused is taken from whoever still reads it. They are compared before a
look-up, when a step was scheduled, when it has run and whenever a request goes; calls in between
are told together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from cachewitness.core.events import (
    Acquire,
    Event,
    KvRemoved,
    KvStored,
    Publish,
    Release,
    Unpublish,
    UnpublishReason,
)
from cachewitness.engines.block_table_diff import BlockTableDiff, Further
from cachewitness.engines.cache_state import Tables
from cachewitness.engines.observe import ObservedManager
from cachewitness.engines.observe_pins import POOL
from cachewitness.engines.page_accounts import WholeAccounts
from cachewitness.systems.vllm.hisparse.books import Books, Holding
from cachewitness.systems.vllm.hisparse.places import Places

Moved = TypeVar("Moved", Acquire, Release)


class HoldingsDiff(BlockTableDiff):
    """Compares who holds what, keys and counts."""

    def __init__(self, books: Books, places: Places) -> None:
        pools = [POOL] * (len(places.parts) + 1)
        super().__init__(books, pools, {POOL: places.null()})
        self._books = books
        self._pools_of = pools
        self._whole = WholeAccounts(books, pools)
        self._holdings = books.holdings()
        self._references = books.all_references()

    def settle(
        self,
        holders: Iterable[str] = (),
        *,
        served: str = "",
        reason: UnpublishReason = "evict",
        further: Further | None = None,
    ) -> None:
        """Report how the pools changed in the call that has just returned; see
        `BlockTableDiff.settle`. All are looked at.
        """
        call = (self.step, served, reason)
        before = self._holdings
        now = self._books.holdings()
        self._whole.compare_keys(call, [self._held_before()])
        differing = {holding for holding, _ in before.items() ^ now.items()}
        gone = Counter(
            {
                holding: before[holding] - now[holding]
                for holding in differing
                if before[holding] > now[holding]
            }
        )
        come = Counter(
            {
                holding: now[holding] - before[holding]
                for holding in differing
                if now[holding] > before[holding]
            }
        )
        taken = _moves(Acquire, come, self.step)
        pinned = [move for move in taken if move.holder.startswith("copy:")]
        # A copy pins its pages before the request lets go of them; in another order they would seem
        # free in between.
        moves: list[Event] = [
            *pinned,
            *_moves(Release, gone, self.step),
            *(move for move in taken if move not in pinned),
        ]
        references = self._books.all_references()
        changed = {
            page
            for page, (old, new) in enumerate(zip(self._references, references, strict=True))
            if old != new
        }
        changed |= {page for _, _, page in differing}
        self._holdings = now
        self._references = references
        events = self._whole.around(call, moves, [(POOL, page) for page in changed])
        if events:
            self.events += _keys_of_nobodys_first(events, {page for _, _, page in now})

    def _held_before(self) -> Tables:
        rows: Tables = [[] for _ in self._pools_of]
        for _, group, page in self._holdings:
            rows[group].append(page)
        return rows

    def held_by(self) -> set[str]:
        """Return who holds anything, as of the last comparison."""
        return {holder for holder, _, _ in self._holdings}


class ObservedTiers(ObservedManager):
    """vLLM's cache manager with HiSparse, whose calls become events."""

    def __init__(
        self, manager: Any, group_of: Callable[[Any], int], books: Books, places: Places
    ) -> None:
        super().__init__(manager, group_of, tiered=False, published=True)
        self._places = places
        self.holdings = HoldingsDiff(books, places)
        self.diff = self.holdings

    def settle(self, reason: UnpublishReason = "evict") -> None:
        """Report what changed outside of a call of the manager's."""
        self.holdings.settle(reason=reason)

    def get_computed_blocks(self, request: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Look the request up, once what was keyed until now is reported."""
        self.settle()
        return super().get_computed_blocks(request, *args, **kwargs)

    def take_kv_cache_block_copies(self) -> Any:
        """Return the copies of blocks on the device that the next step has to make: none, where
        no block is hit in part.
        """
        return self.manager.take_kv_cache_block_copies()

    def pop_blocks_for_free(self, request: Any) -> Any:
        """Take a request's blocks away from it; vLLM's scheduler gives them back when the steps
        in flight have ended.
        """
        return self.manager.pop_blocks_for_free(request)

    def released(self, blocks: list[Any], request: Any = None) -> None:
        """Leave it to the next comparison that blocks were given back to the pool past the
        manager.
        """

    def reset_prefix_cache(self, reason: UnpublishReason = "reset") -> bool:
        """Forget every key, if nobody holds a block."""
        self.settle()
        return super().reset_prefix_cache(reason)

    def tell(self, events: Iterable[Any]) -> None:
        """Report what routers are told of keys; those of a block of the host are keys of each
        part.
        """
        places = self._places
        self.settle()
        for event in self._key_events.read(events, self.step):
            if isinstance(event, KvStored | KvRemoved):
                parts = places.parts if event.group == places.source else [places.of_indexer]
                self.events += [
                    msgspec.structs.replace(event, group=part, medium="") for part in parts
                ]
            else:
                self.events.append(event)

    def _hit(self, r: str, length: int, found: Any) -> None:
        places = self._places
        columns = -(-length // self._places.block_size)
        host = [block.block_id for block in found.blocks[places.source]][:columns]
        indexer = [block.block_id for block in found.blocks[places.indexer]][:columns]
        self.diff.hit(
            r,
            length,
            [*([places.on_host(part, block) for block in host] for part in places.parts), indexer],
        )

    def _settle(self, holders: Sequence[str], request: Any, reason: UnpublishReason) -> None:
        """Compare if keys ended for another reason than room; otherwise that is left to the next
        comparison.
        """
        if reason != "evict":
            self.settle(reason)

    def _let_go(self, gone: list[str], reason: UnpublishReason) -> None:
        self._settle(gone, None, reason)
        for r in gone:
            self._looked_up.pop(r, None)


def _keys_of_nobodys_first(events: list[Event], held: Container[int]) -> list[Event]:
    """Return the events with the keys of pages that nobody holds any more in front of what is
    given back.
    """
    first: list[Event] = [event for event in events if isinstance(event, Unpublish)]
    first += [event for event in events if isinstance(event, Publish) and event.page not in held]
    return [*first, *(event for event in events if event not in first)]


def _moves(kind: type[Moved], holdings: Counter[Holding], step: int) -> list[Moved]:
    """Return the events of pages that were taken or given back, a holder's and a group's in one."""
    pages: dict[tuple[str, int], list[int]] = {}
    for holder, group, page in sorted(holdings.elements()):
        pages.setdefault((holder, group), []).append(page)
    return [
        kind(step=step, pool=POOL, group=group, pages=these, holder=holder)
        for (holder, group), these in pages.items()
    ]
