"""The first level: objects in memory, who writes them and who reads them.

An object is *staged* while it is written: it takes memory and cannot be found. When its copy has
been made it is *resident*, unless somebody else's is already, in which case the later copy is
dropped: the first writer wins, and a key's content never changes. A resident object may be locked
by readers; as long as it is, it stays. Memory is counted in pages of the engine, which are of one
size, and an object takes as many as it has blocks, wherever they lie.

Source: `v1/distributed/l1_manager.py`, `storage_manager.py` (0.5.6).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

from cachewitness_reference.lmcache.keys import ObjectKey

PageId = NewType("PageId", int)
"""A page of the first level's memory, counted from 0."""


@dataclass(frozen=True)
class MemoryObj:
    """The pages of one object, in the order of its blocks, and whose chunk it was when it was
    written.
    """

    pages: tuple[PageId, ...]
    writer: str


@dataclass
class Resident:
    """An object that can be found, and how many readers hold it."""

    memory: MemoryObj
    read_locks: int = 0


class L1ManagerListener(Protocol):
    """Who is told what becomes of keys."""

    def on_keys_reserved_write(self, keys: Sequence[ObjectKey]) -> None:
        """Keys are being written."""

    def on_keys_write_finished(self, keys: Sequence[ObjectKey]) -> None:
        """Keys have been written."""

    def on_keys_accessed(self, keys: Sequence[ObjectKey]) -> None:
        """Keys were of use."""

    def on_keys_deleted(self, keys: Sequence[ObjectKey]) -> None:
        """Keys, or what was staged for them, are gone."""


class L1Manager:
    """So many pages, and the objects in them."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = [PageId(page) for page in range(num_pages)][::-1]
        self.objects: dict[ObjectKey, Resident] = {}
        self.staging: dict[tuple[ObjectKey, str], MemoryObj] = {}
        self.listeners: list[L1ManagerListener] = []

    def memory_usage(self) -> tuple[int, int]:
        """Return how many pages are used, and how many there are."""
        return self.num_pages - len(self._free), self.num_pages

    # LOOKUP

    def contains(self, key: ObjectKey) -> bool:
        """Whether an object can be found."""
        return key in self.objects

    def reserve_read(self, keys: Iterable[ObjectKey]) -> None:
        """Lock resident objects once more each."""
        for key in keys:
            self.objects[key].read_locks += 1

    def finish_read(self, keys: Iterable[ObjectKey]) -> None:
        """Let go of objects that were read, or will not be."""
        for key in keys:
            resident = self.objects[key]
            assert resident.read_locks > 0, "a lock is given back that nobody holds"
            resident.read_locks -= 1

    def touch_keys(self, keys: Sequence[ObjectKey]) -> None:
        """Say that keys were of use."""
        for listener in self.listeners:
            listener.on_keys_accessed(keys)

    # ALLOCATE

    def reserve_write(
        self, keys: Sequence[ObjectKey], pages_per_object: int, writer: str
    ) -> dict[ObjectKey, MemoryObj]:
        """Stage an object for each key that is neither resident nor staged by this writer; none
        if they do not all fit.
        """
        wanted = [
            key for key in keys if key not in self.objects and (key, writer) not in self.staging
        ]
        if len(wanted) * pages_per_object > len(self._free):
            return {}
        reserved = {
            key: MemoryObj(tuple(self._free.pop() for _ in range(pages_per_object)), writer)
            for key in wanted
        }
        self.staging |= {(key, writer): memory for key, memory in reserved.items()}
        if reserved:
            for listener in self.listeners:
                listener.on_keys_reserved_write(wanted)
        return reserved

    # COMMIT

    def finish_write(self, keys: Sequence[ObjectKey], writer: str) -> None:
        """Make staged objects resident. Of two writers of one key the first to get here wins."""
        written = []
        for key in keys:
            memory = self.staging.pop((key, writer))
            if key in self.objects:
                self._free.extend(reversed(memory.pages))
            else:
                self.objects[key] = Resident(memory)
                written.append(key)
        for listener in self.listeners:
            listener.on_keys_write_finished(written)

    # RELEASE

    def is_evictable(self, key: ObjectKey) -> bool:
        """Whether a resident object is held by no reader."""
        resident = self.objects.get(key)
        return resident is not None and resident.read_locks == 0

    def delete(self, keys: Iterable[ObjectKey]) -> list[ObjectKey]:
        """Forget objects, except those that are being read; return which."""
        gone = [key for key in keys if self.is_evictable(key)]
        for key in gone:
            self._free.extend(reversed(self.objects.pop(key).memory.pages))
        for listener in self.listeners:
            listener.on_keys_deleted(gone)
        assert self.memory_usage()[0] >= len(self.objects), "an object takes at least a page"
        return gone

    def clear(self) -> None:
        """Forget every object that nobody reads."""
        self.delete(list(self.objects))
