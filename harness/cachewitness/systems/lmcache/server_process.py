"""LMCache's server in this process: what its clients ask for is answered at once, and what it has
copied is told.

What a copy moved is read off the bytes. Before a store each of its blocks gets a mark of its own,
and the marks that are found whole in the objects that LMCache wrote say which blocks are in them.
Before a retrieve the blocks that it is to fill are marked anew, and the marks that they have after
it say from which objects they were filled, whichever were asked for.

LMCache finishes a copy (a store's objects can be found, a retrieve's locks are gone) when its
stream gets there. Here that is left to the caller: `finish`.

Sources: LMCache 0.5.6, `v1/multiprocess/modules/lookup.py`, `modules/lmcache_driven_transfer.py`,
`native_completion.py`, `v1/distributed/l1_manager.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from cachewitness.core.engine_failure import EngineFailure
from cachewitness.systems.lmcache.marks import MarkedBlocks
from cachewitness.systems.lmcache.modules import DEADLINE, Sizes, close, evict, part, start


class Copied(NamedTuple):
    """A block that was copied to or from a page of LMCache's memory; the page is its number."""

    group: int
    block: int
    page: int


class Transfer(NamedTuple):
    """A store or a retrieve that LMCache has made: what it said of it, what it copied, and what
    it has yet to finish.
    """

    ok: bool
    copied: Sequence[Copied]
    unfinished: Sequence[tuple[str, bytes]]


class Place(NamedTuple):
    """What is in a page: the block of a group that ends a prefix of so many tokens of a request."""

    group: int
    length: int
    r: str
    mark: int


class Stored(NamedTuple):
    """An object: LMCache's memory of it, and its pages."""

    memory: Any
    pages: dict[int, Place]


class Server:
    """The modules of a server, with one engine."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._modules = start(sizes)
        manager = self._modules.context.storage_manager
        self._level = manager._l1_manager
        self._infos: Sequence[Any] = ()
        self._instance = 0
        self._free = [*range(sizes.pages)][::-1]
        self._stored: dict[tuple[Any, int], Stored] = {}
        """By LMCache's key and the memory that has it: a key may be written by several at once, and
        one of them stays."""
        self._page_of: dict[int, int] = {}
        """By mark: the page that it was stored in last."""
        self._sessions: set[str] = set()
        self.blocks: MarkedBlocks
        """The device's, once an engine is registered."""

    # --- an engine --------------------------------------------------------------------------------

    def register(self, instance: int, *arguments: Any) -> None:
        """Register an engine's caches, as its worker tells of them (`register_kv_cache`)."""
        self._instance = instance
        self._infos = arguments[-1]
        self._modules.transfers.register_kv_cache(instance, *arguments)

    def close(self) -> None:
        """Forget the engine, its requests, and every object."""
        for r in sorted(self._sessions):
            self._modules.lookups.end_session(r)
        self._modules.transfers.unregister_kv_cache(self._instance)
        close(self._modules)

    def restart(self) -> None:
        """Begin anew, as a process that was started again: with no engine, no request and no
        object.
        """
        self.close()
        self._modules = start(self.sizes)
        self._level = self._modules.context.storage_manager._l1_manager
        self._sessions.clear()
        self.look()

    # --- look-ups ---------------------------------------------------------------------------------

    def lookup(self, key: Any, readers: int) -> None:
        """Look a prefix up; what that finds stays locked."""
        self._sessions.add(key.request_id)
        self._modules.lookups.lookup(key, readers)

    def found(self, r: str) -> int:
        """Return how many chunks a look-up has found. Raises EngineFailure if it does not end."""
        chunks = self._modules.lookups.wait_prefetch_status(r, DEADLINE)
        if chunks is None:
            raise EngineFailure(
                "hung", f"had LMCache's look-up of {r} not end within {DEADLINE:g} s"
            )
        return int(chunks)

    def free_lookup_locks(self, key: Any, readers: int) -> None:
        """Let go of what a look-up locked of the key's tokens."""
        self._modules.lookups.free_lookup_locks(key, readers)

    def end_session(self, r: str) -> None:
        """Let go of a request."""
        self._modules.lookups.end_session(r)

    def clear(self, *, force: bool) -> None:
        """Forget every object, or with no `force` those that nobody reads or writes."""
        self._modules.context.storage_manager.clear(force=force)

    def evict(self) -> None:
        """Let the eviction thread look once."""
        evict(self._modules, self.sizes)

    # --- copies -----------------------------------------------------------------------------------

    def store(
        self, key: Any, instance: int, block_ids: Sequence[Sequence[int]], event: bytes
    ) -> Transfer:
        """Have LMCache store the key's tokens from these blocks, by group of LMCache's."""
        self.look()
        self._sessions.add(key.request_id)
        marks: dict[int, tuple[int, int]] = {}
        for group, ids in self._by_group(block_ids):
            marks |= {mark: (group, block) for mark, block in self.blocks.mark(group, ids).items()}
        known = {id(state.memory_obj) for _, state in self._staged()}
        places = self._places(key, block_ids)
        _, ok = self._modules.transfers.store(key, instance, block_ids, event)
        copied: list[Copied] = []
        for name, state in self._staged():
            if id(state.memory_obj) in known:
                continue
            pages = self._named(
                key,
                places.get(name, {}),
                self.blocks.within(state.memory_obj.raw_tensor, marks),
                marks,
            )
            self._stored[name, id(state.memory_obj)] = Stored(state.memory_obj, pages)
            copied += [Copied(*marks[place.mark], page) for page, place in pages.items()]
        return Transfer(bool(ok), copied, self._unfinished())

    def retrieve(
        self, key: Any, instance: int, block_ids: Sequence[Sequence[int]], event: bytes, skip: int
    ) -> Transfer:
        """Have LMCache fill these blocks, by group of LMCache's, with the key's tokens but the
        first `skip`.
        """
        for group, ids in self._by_group(block_ids):
            self.blocks.mark(group, ids)
        before = self.blocks.copies()
        _, ok = self._modules.transfers.retrieve(key, instance, block_ids, event, skip)
        filled = [
            (group, block, self._page_of.get(self.blocks.held(group, block)))
            for group, block in self.blocks.changed(before)
        ]
        copied = [
            Copied(group, block, page)
            for group, block, page in filled
            if page is not None and block
        ]
        return Transfer(bool(ok), copied, self._unfinished())

    def finish(self, transfer: Transfer) -> None:
        """Let LMCache do what it does when a copy is over."""
        registry = self._modules.transfers._device_host_func_dispatcher._registry
        for kind, payload in transfer.unfinished:
            registry[kind].handler(registry[kind].decoder.decode(payload))

    def _unfinished(self) -> list[tuple[str, bytes]]:
        return [
            *part("v1.multiprocess.native_completion", "_device_ops").drain_recorded_completions()
        ]

    def _by_group(self, block_ids: Sequence[Sequence[int]]) -> Iterator[tuple[int, Sequence[int]]]:
        for info, ids in zip(self._infos, block_ids, strict=True):
            yield info.engine_group_id, ids

    def _staged(self) -> list[tuple[Any, Any]]:
        return [
            (name, state)
            for name, by_writer in self._level._staging.items()
            for state in by_writer.values()
        ]

    def _places(
        self, key: Any, block_ids: Sequence[Sequence[int]]
    ) -> dict[Any, dict[tuple[int, int], int]]:
        """Return for each object that a key names the length of the prefix that a block of a
        group ends.
        """
        size = self.sizes.chunk
        places = dict[Any, dict[tuple[int, int], int]]()
        manager = self._modules.transfers._cache_contexts[
            self._instance
        ].cache_context.kv_layer_groups_manager
        names = self._modules.context.resolve_obj_keys(key, [*range(manager.num_object_groups)])
        for index, first in enumerate(range(key.start, key.start + len(names[0]) * size, size)):
            ends: dict[tuple[int, int], int] = {}
            for info, ids in zip(self._infos, block_ids, strict=True):
                each = size // info.tokens_per_block
                for column, block in enumerate(ids[index * each : (index + 1) * each]):
                    ends[info.engine_group_id, block] = first + (column + 1) * info.tokens_per_block
            places |= {named[index]: ends for named in names}
        return places

    def _named(
        self,
        key: Any,
        ends: dict[tuple[int, int], int],
        found: Sequence[int],
        marks: dict[int, tuple[int, int]],
    ) -> dict[int, Place]:
        """Give each block that is in an object a page. One that should not be there ends the
        object's last prefix.
        """
        pages = {}
        for mark in found:
            page = self._free.pop()
            length = ends.get(marks[mark]) or max(ends.values(), default=self.sizes.chunk)
            pages[page] = Place(marks[mark][0], length, key.request_id, mark)
            self._page_of[mark] = page
        return pages

    # --- what it has ------------------------------------------------------------------------------

    def resident(self) -> Iterator[tuple[Any, dict[int, Place], bool]]:
        """Yield the objects that can be found, with their pages, and whether somebody reads
        them.
        """
        for (name, _), stored in self._stored.items():
            state = self._level._objects.get(name)
            if state is not None and state.memory_obj is stored.memory:
                yield name, stored.pages, bool(state.read_lock.is_locked())

    def staged(self) -> Iterator[int]:
        """Yield the pages of objects that are still written."""
        for name, state in self._staged():
            yield from self._stored[name, id(state.memory_obj)].pages

    def look(self) -> None:
        """Take note of what LMCache has let go: its pages are free."""
        there = {id(state.memory_obj) for _, state in self._staged()}
        there |= {id(state.memory_obj) for state in self._level._objects.values()}
        for name in [name for name in self._stored if name[1] not in there]:
            for page, place in self._stored.pop(name).pages.items():
                self._free.append(page)
                self._page_of.pop(place.mark, None)
