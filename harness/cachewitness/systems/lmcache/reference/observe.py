"""Turns what happens between vLLM's scheduler and LMCache into events.

Two observers stand beside the one of the device's cache. The store's says what became of the pages
of the first level, by comparing which objects are staged and which can be found with what it saw
before; it is told of changes by LMCache's own listeners and believes nothing else. The front's
completes a hit by what is loaded beyond the device's own, read off what the look-up holds.

A page of the first level is keyed by itself, in the group of its kernel group's tier, as the end of
the block that it holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cachewitness.core.events import (
    Acquire,
    Counts,
    Event,
    Hit,
    Publish,
    Release,
    Unpublish,
    UnpublishReason,
)
from cachewitness.engines.observe import ObservedManager
from cachewitness.engines.observe_tier import NOT_FROM_THERE, TIER
from cachewitness_reference.lmcache.connector import LMCacheMPConnector
from cachewitness_reference.lmcache.keys import ObjectKey
from cachewitness_reference.lmcache.l1 import MemoryObj, PageId
from cachewitness_reference.lmcache.server import PageCopy, Transfer


class ObservedStore:
    """The first level of a server, observed."""

    def __init__(self, connector: LMCacheMPConnector, groups: int) -> None:
        self._l1 = connector.server.l1
        self._infos = connector.infos
        self._groups = groups
        self._found: dict[ObjectKey, MemoryObj] = {}
        self._staged: dict[tuple[ObjectKey, str], tuple[MemoryObj, str]] = {}
        self._ends: dict[int, tuple[int, int]] = {}
        self._changed: dict[ObjectKey, None] = {}
        self._stores = 0
        self._l1.listeners.append(self)

    # --- LMCache's listener -----------------------------------------------------------------------

    def on_keys_reserved_write(self, keys: Sequence[ObjectKey]) -> None:
        """Say nothing: what is staged is compared anyway."""

    def on_keys_accessed(self, keys: Sequence[ObjectKey]) -> None:
        """Say nothing: an order in which keys would go is no event."""

    def on_keys_write_finished(self, keys: Sequence[ObjectKey]) -> None:
        """Look at these keys again."""
        self._changed |= dict.fromkeys(keys)

    on_keys_deleted = on_keys_write_finished

    # --- differences ------------------------------------------------------------------------------

    def placed(self, stores: Iterable[Transfer]) -> None:
        """Take note of what is about to be copied where: of each page the group, and how many
        tokens its prefix has.
        """
        for copy in (copy for store in stores for copy in store.copies):
            info = self._infos[copy.kernel_group]
            self._ends[copy.page] = (
                self._groups + info.engine_group_id,
                (copy.column + 1) * info.tokens_per_block,
            )

    def changes(self, step: int, reason: UnpublishReason) -> list[Event]:
        """Return what ended, for a reason, what is being written, what began, and the counts, if
        anything did.
        """
        takes, drops = self._staging(step)
        ended, begun = self._keys(step, reason)
        events: list[Event] = [*ended, *takes, *begun, *drops]
        if events:
            used, total = self._l1.memory_usage()
            held = sum(len(_named(memory)) for memory, _ in self._staged.values())
            events.append(
                Counts(step=step, pool=TIER, free=total - used, held=held, cached=used - held)
            )
        return events

    def _staging(self, step: int) -> tuple[list[Event], list[Event]]:
        takes: list[Event] = []
        drops: list[Event] = []
        now = self._l1.staging
        for name in [name for name in self._staged if name not in now]:
            memory, holder = self._staged.pop(name)
            drops += [
                Release(step=step, pool=TIER, group=self._ends[p][0], pages=[p], holder=holder)
                for p in _named(memory)
            ]
        for name in [name for name in now if name not in self._staged]:
            self._stores += 1
            memory = now[name]
            holder = f"store:{self._stores}"
            self._staged[name] = (memory, holder)
            takes += [
                Acquire(step=step, pool=TIER, group=self._ends[p][0], pages=[p], holder=holder)
                for p in _named(memory)
            ]
        return takes, drops

    def _keys(self, step: int, reason: UnpublishReason) -> tuple[list[Event], list[Event]]:
        ended: list[Event] = []
        begun: list[Event] = []
        for key in self._changed:
            old = self._found.pop(key, None)
            resident = self._l1.objects.get(key)
            new = resident.memory if resident is not None else None
            if new is not None:
                self._found[key] = new
            if new is old:
                continue
            for stored in _named(old):
                group, length = self._ends[stored]
                ended.append(
                    Unpublish(step=step, group=group, page=stored, length=length, reason=reason)
                )
            for stored in _named(new):
                assert new is not None
                group, length = self._ends[stored]
                begun.append(
                    Publish(step=step, group=group, page=stored, r=new.writer, length=length)
                )
        self._changed.clear()
        return ended, begun


def _named(memory: MemoryObj | None) -> list[PageId]:
    """Return the pages of an object; none for a block of it that was nowhere on the device,
    where a real store has one.
    """
    return [] if memory is None else [page for page in memory.pages if page >= 0]


class ObservedFront(ObservedManager):
    """The observed manager of the device's cache, which knows what is loaded beyond its hits."""

    def __init__(self, manager: Any, connector: LMCacheMPConnector) -> None:
        super().__init__(manager, tiered=True)
        self._connector = connector
        self._sizes = [single.block_size for single in self._managers]
        self._external: dict[str, int] = {}

    def expect(self, r: str, num_external_tokens: int) -> None:
        """Take note of how many tokens a look-up found beyond the device's hit, until the
        request is next given pages.
        """
        self._external[r] = num_external_tokens

    def block(self, block_id: int) -> Any:
        """Return a block of the device."""
        return self._pool.blocks[block_id]

    def hold_for_stores(self, copies: Iterable[PageCopy]) -> list[Any]:
        """Hold the blocks that are to be stored until the step has run, and return them."""
        blocks: list[Any] = []
        takes: list[Event] = []
        for copy in copies:
            holder = self._pins.next_copy()
            group = self._connector.infos[copy.kernel_group].engine_group_id
            blocks.append(self.block(copy.block_id))
            takes.append(self._pins.take(blocks[-1], group, holder, self.step))
        self._pool.touch(blocks)
        self._account(None, takes)
        return blocks

    def _hit(self, r: str, length: int, found: Any) -> None:
        external = self._external.pop(r, 0)
        if not external:
            pages = [[block.block_id for block in column] for column in found.blocks]
            nothing: list[list[int]] = [[] for _ in pages]
            self.events.append(
                Hit(step=self.step, r=r, reported=length, resume=length, pages=pages + nothing)
            )
            return
        tracker = self._connector.trackers[r]
        resume = length + external
        tables = [
            [block.block_id for block in single.req_to_blocks[r]] for single in self._managers
        ]
        pages = [
            table[: -(-resume // size)] for table, size in zip(tables, self._sizes, strict=True)
        ]
        places = self._places(r, pages, tracker.num_vllm_hit_tokens)
        reported = max(length, tracker.num_lmcache_hit_tokens)
        self.events.append(
            Hit(
                step=self.step,
                r=r,
                reported=reported,
                resume=resume,
                pages=pages + places,
                tier="cpu",
            )
        )

    def _places(self, r: str, pages: list[list[int]], on_device: int) -> list[list[int]]:
        """Return by group and column which page of the first level a block is filled from."""
        server = self._connector.server
        places = [[NOT_FROM_THERE] * len(row) for row in pages]
        for key, chunk in server.sessions[r].locked.items():
            placed = server.groups.placed_blocks(key.object_group_id)
            for stored, (kernel_group, column) in zip(
                server.l1.objects[key].memory.pages, placed, strict=True
            ):
                info = self._connector.infos[kernel_group]
                group = info.engine_group_id
                at = chunk * server.groups.blocks_per_chunk(kernel_group) + column
                if (
                    at * info.tokens_per_block >= on_device
                    and pages[group][at] != self._pool.null_block.block_id
                ):
                    places[group][at] = stored
        return places
