"""The reference's server with the installed LMCache in its place: what is found, stored, brought
and evicted is its doing.

The harness names the pages of LMCache's memory, because the history needs names: so many for each
object, as long as the object is there. What a retrieve has brought is read off the device's bytes:
a block that holds, in every layer, what lies in some page of the memory was copied from that page,
whichever it was asked for. A block whose bytes are no whole page, or of no page that is there, was
filled by nobody, and keeps in the history what it held before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cachewitness.core.engine_failure import EngineFailure
from cachewitness.systems.lmcache.pages import Pages
from cachewitness.systems.lmcache.store import Store
from cachewitness_reference.lmcache.groups import KVLayerGroups
from cachewitness_reference.lmcache.l1 import MemoryObj, PageId, Resident
from cachewitness_reference.lmcache.server import (
    BlockIds,
    PageCopy,
    PlacedBlockId,
    Session,
    Transfer,
)
from cachewitness_reference.lmcache.spec import NULL_BLOCK_ID
from cachewitness_reference.primitives import BlockId

MEDIA = 1 << 31
"""Ids from here on stand for images: LMCache's are 31 bits wide, and here apart from every token's.
"""


NOWHERE = PageId(-1)
"""The page of a block of a window that was null when its object was stored: nobody reads it any
more."""


class Brought(NamedTuple):
    """What is to arrive in a block: the page, the block's column, and by worker the number of
    what was stored there.
    """

    page: PageId
    column: int
    numbers: tuple[int, ...]


class StoreRequest(NamedTuple):
    """A store that was asked for: the key, the blocks by group, and by object the blocks of it."""

    key: Any
    blocks: list[list[BlockId]]
    objects: Mapping[Any, Sequence[PlacedBlockId]]


class Setting(NamedTuple):
    """What a trace asks of this engine beyond the policy's options.

    `keeps`: whether anything is stored. `workers`: how many there are. `latent`: what full
    attention keeps is one vector of a token (MLA). `lost`: one in so many stores of a worker is not
    made; 0: none. `replicated`: every worker has the same.
    """

    keeps: bool = True
    workers: int = 1
    latent: bool = False
    lost: int = 0
    replicated: bool = False


class Level:
    """The first level as the observer sees it: the objects that LMCache has, with the pages that
    they were given here.
    """

    def __init__(self, store: Store, pages: int) -> None:
        self._store = store
        self._total = pages
        self._free = [PageId(page) for page in range(pages)][::-1]
        self.objects: dict[Any, Resident] = {}
        self.staging: dict[tuple[Any, str], MemoryObj] = {}
        self.listeners: list[Any] = []
        self.content: dict[Any, list[int]] = {}
        """By LMCache's key: the numbers of what was stored in it, by block."""

    def memory_usage(self) -> tuple[int, int]:
        """Return how many pages are in use, and how many there are."""
        return self._total - len(self._free), self._total

    def stage(self, wanted: Mapping[Any, Sequence[bool]], writer: str) -> dict[Any, MemoryObj]:
        """Name pages for objects that are to be stored together; `wanted` says which of their
        blocks get one.

        Left out is what is there, or what somebody stores already; if not all of the others fit,
        none is stored.
        """
        staged = {key for key, _ in self.staging}
        new = {
            key: named
            for key, named in wanted.items()
            if key not in self.objects and key not in staged
        }
        if sum(map(len, new.values())) > len(self._free):
            return {}
        made = {
            key: MemoryObj(tuple(self._free.pop() if n else NOWHERE for n in named), writer)
            for key, named in new.items()
        }
        self.staging |= {(key, writer): memory for key, memory in made.items()}
        return made

    def _let_go(self, memory: MemoryObj) -> None:
        self._free.extend(page for page in reversed(memory.pages) if page != NOWHERE)

    def settle(self, writer: str, keys: Sequence[Any]) -> None:
        """Take note of which of the keys that a request has staged LMCache has stored."""
        for key in keys:
            memory = self.staging.pop((key, writer))
            if self._store.holds(key) and key not in self.objects:
                self.objects[key] = Resident(memory)
            else:
                self._let_go(memory)
        self._report(keys)

    def look(self) -> None:
        """Take note of what LMCache has let go. Raises EngineFailure if it has what nobody has
        stored.
        """
        whole = {*self._store.whole()}
        gone = [key for key in self.objects if key not in whole]
        for key in gone:
            self._let_go(self.objects.pop(key).memory)
        for key in [key for key in self.content if key not in self._store.objects]:
            del self.content[key]
        if more := [key for key in whole if key not in self.objects]:
            raise EngineFailure(
                "engine-crashed",
                f"has {len(more)} objects that nobody has stored, the first of them {more[0]}",
            )
        self._report(gone)

    def _report(self, keys: Sequence[Any]) -> None:
        for listener in self.listeners:
            listener.on_keys_write_finished(keys)


class RealServer:
    """What the reference's connector asks its server for, answered by LMCache."""

    def __init__(
        self,
        groups: KVLayerGroups,
        num_pages: int,
        device: Pages,
        setting: Setting,
        *,
        watermark: float,
        ratio: float,
    ) -> None:
        self.groups = groups
        self.device = device
        self._setting = setting
        self._stores = 0
        apart = len(groups.object_groups) > 1
        self.store_of = Store(
            device.groups,
            groups.chunk_size,
            num_pages,
            replicated=setting.replicated,
            separate=apart,
            watermark=watermark,
            ratio=ratio,
        )
        self.l1 = Level(self.store_of, num_pages)
        self.sessions: dict[str, Session] = {}
        self._names: set[str] = set()
        """Every request that LMCache was told of: a store that ends behind its request begins a
        session anew."""
        self._tokens: dict[str, list[int]] = {}
        self._locked: dict[str, range] = {}
        """By request: the chunks that its look-up holds."""
        self._asked: dict[int, StoreRequest] = {}
        """By store that was asked for; its request may have ended when it is made."""
        self._unsettled: list[Transfer] = []
        """The stores of the step that has run."""

    @property
    def pads(self) -> bool:
        """Whether objects have room for blocks that are not there: those in front of a window or
        of a chunk's last state.
        """
        windows = any(
            info.sw_size_tokens > 0 and not info.recurrent_state
            for info in self.groups.kernel_groups
        )
        groups = range(len(self.groups.kernel_groups))
        return windows or any(
            self.groups.kept_blocks(group) < self.groups.blocks_per_chunk(group) for group in groups
        )

    def start_session(
        self, request_id: str, salt: str = "", adapter: str = "", kernels: str = ""
    ) -> None:
        """Take note of a request; LMCache is told neither its adapter nor its kernels."""
        self.sessions.setdefault(request_id, Session(salt, "", ""))
        self._names.add(request_id)

    def _key(self, r: str, chunks: range, *, worker: int | None = 0) -> Any:
        size = self.groups.chunk_size
        tokens = [token if token < MEDIA else MEDIA | token % MEDIA for token in self._tokens[r]]
        return self.store_of.key(
            r, tokens, chunks.start * size, chunks.stop * size, self.sessions[r].salt, worker=worker
        )

    def _objects(self, r: str, chunks: range) -> list[list[Any]]:
        """Return LMCache's keys of a request's chunks, by object group."""
        return [
            [*keys]
            for keys in self.store_of.context.resolve_obj_keys(
                self._key(r, chunks), [*range(len(self.groups.windows))]
            )
        ]

    # LOOKUP

    def lookup(self, request_id: str, tokens: Sequence[int], num_tokens: int) -> int:
        """Return how many chunks of the first `num_tokens` tokens LMCache serves, and what it
        has locked for that.
        """
        self._tokens[request_id] = [*tokens]
        whole = range(num_tokens // self.groups.chunk_size)
        key = self._key(request_id, whole, worker=None)
        hit = self.store_of.lookup(key) if whole else 0
        self._locked[request_id] = range(hit)
        chunk_of = (
            {
                name: chunk
                for keys in self._objects(request_id, range(hit))
                for chunk, name in enumerate(keys)
            }
            if hit
            else {}
        )
        locked = self.store_of.locked(key, hit, self.groups.windows) if hit else []
        found = [name for name in locked if name in chunk_of and self.store_of.holds(name)]
        self.sessions[request_id].locked = {name: chunk_of[name] for name in found}
        self.l1.look()
        return hit

    def free_lookup_locks(self, request_id: str, num_tokens: int | None = None) -> None:
        """Let go of the chunks of a look-up that end within the first `num_tokens` tokens, or of
        all of them.
        """
        held = self._locked.get(request_id, range(0))
        locked = self.sessions[request_id].locked
        stop = (
            held.stop
            if num_tokens is None
            else min(max(num_tokens // self.groups.chunk_size, held.start), held.stop)
        )
        if stop > held.start:
            self.store_of.free(self._key(request_id, range(held.start, stop), worker=None))
        self._locked[request_id] = range(stop, held.stop)
        for key in [key for key, chunk in locked.items() if chunk < stop]:
            del locked[key]

    # ALLOCATE

    def store(
        self, request_id: str, tokens: Sequence[int], chunks: range, block_ids: BlockIds
    ) -> Transfer:
        """Say what LMCache will be asked to store when the step has run."""
        self._tokens[request_id] = [*tokens]
        transfer = Transfer(request_id, ok=self._setting.keeps)
        if not transfer.ok:
            return transfer
        whole: dict[Any, list[PlacedBlockId]] = {}
        for group, keys in enumerate(self._objects(request_id, chunks)):
            stored = {
                key: chunk
                for chunk, key in zip(chunks, keys, strict=True)
                if self._is_stored(group, chunk, chunks, block_ids)
            }
            placed = {
                key: self._placed(group, chunk, chunks, block_ids) for key, chunk in stored.items()
            }
            wanted = {
                key: [self._is_claimed(block) for block in blocks] for key, blocks in placed.items()
            }
            whole |= placed
            for key, memory in self.l1.stage(wanted, request_id).items():
                transfer.keys.append(key)
                pairs = zip(memory.pages, placed[key], strict=True)
                transfer.copies += [
                    PageCopy(page, *block) for page, block in pairs if page != NOWHERE
                ]
        self._asked[id(transfer)] = StoreRequest(
            self._key(request_id, chunks), [[*row] for row in block_ids], whole
        )
        return transfer

    def _is_claimed(self, block: PlacedBlockId) -> bool:
        """Whether an object that is found says that it has a block: of a window it may lack what
        nobody reads any more.
        """
        info = self.groups.kernel_groups[block.kernel_group]
        return block.block_id != NULL_BLOCK_ID or info.recurrent_state or info.sw_size_tokens < 0

    def _is_stored(self, group: int, chunk: int, chunks: range, block_ids: BlockIds) -> bool:
        """Whether LMCache stores a chunk of an object group: it does unless all of its blocks
        are null, kept ones or not.
        """
        for kernel_group in self.groups.object_groups[group].kernel_group_indices:
            count = self.groups.blocks_per_chunk(kernel_group)
            first = (chunk - chunks.start) * count
            if any(
                block != NULL_BLOCK_ID for block in block_ids[kernel_group][first : first + count]
            ):
                return True
        return False

    def retrieve(
        self, request_id: str, chunks: range, block_ids: BlockIds, skip_first_n_tokens: int
    ) -> Transfer:
        """Have LMCache fill blocks, and return from which pages it has. Raises EngineFailure if
        it loses its own hit.
        """
        expected = self._expected(request_id, chunks, block_ids, skip_first_n_tokens)
        for group, block in expected:
            self.device.write(group, block)
        before = self.device.copies()
        for worker in self.store_of.workers:
            if not self.store_of.retrieve(
                self._key(request_id, chunks, worker=worker), worker, block_ids, skip_first_n_tokens
            ):
                whose = f" by worker {worker}" if worker else ""
                raise EngineFailure(
                    "engine-crashed",
                    f"had LMCache serve {chunks.stop} chunks of {request_id}, and then not find"
                    f" them{whose}",
                )
        self._locked[request_id] = range(0)
        self.sessions[request_id].locked.clear()
        copies = [
            self._came(group, block, expected)
            for group, block in self.device.changed(before)
            if block
        ]
        return Transfer(request_id, copies=[copy for copy in copies if copy is not None])

    def _expected(
        self, r: str, chunks: range, block_ids: BlockIds, skip: int
    ) -> dict[tuple[int, int], Brought]:
        """Return by group and block what a retrieve is to bring; the first tokens stay as they
        are.
        """
        expected: dict[tuple[int, int], Brought] = {}
        first = chunks.start * self.groups.chunk_size + skip
        for key, chunk in self.sessions[r].locked.items():
            if chunk in chunks and key in self.l1.objects:
                placed = self._placed(key.object_group_id, chunk, chunks, block_ids)
                for at, (page, (block, group, column)) in enumerate(
                    zip(self.l1.objects[key].memory.pages, placed, strict=True)
                ):
                    if (
                        block
                        and column * self.groups.kernel_groups[group].tokens_per_block >= first
                    ):
                        expected[group, block] = Brought(page, column, self._numbers(key, at))
        return expected

    def _numbers(self, key: Any, at: int) -> tuple[int, ...]:
        """Return for each worker the number of what was stored in a block of an object."""
        stored = [
            self.l1.content[self.store_of.named(key, share)][at] for share in self.store_of.shares
        ]
        return tuple(stored[worker % len(stored)] for worker in self.store_of.workers)

    def _came(
        self, group: int, block: int, expected: dict[tuple[int, int], Brought]
    ) -> PageCopy | None:
        """Return from which page a block was filled, on every worker; None if from none that is
        there.
        """
        on_device = tuple(
            self.device.held(group, block, worker) for worker in self.store_of.workers
        )
        page, column, numbers = expected.get((group, block), Brought(NOWHERE, 0, ()))
        if not all(on_device) or numbers != on_device:
            others = [
                other
                for other, content in self._contents()
                if content == on_device and all(on_device)
            ]
            page = others[0] if others else NOWHERE
        return PageCopy(page, BlockId(block), group, column) if page != NOWHERE else None

    def _contents(self) -> Iterator[tuple[PageId, tuple[int, ...]]]:
        """Yield each page of the first level that has a name, with what is in it."""
        for key, resident in self.l1.objects.items():
            for at, page in enumerate(resident.memory.pages):
                yield page, self._numbers(key, at)

    # COMMIT

    def finish_store(self, transfer: Transfer) -> None:
        """Have LMCache store what a step has written, and take note of what it has."""
        if not transfer.ok:
            return
        asked = self._asked.pop(id(transfer))
        for share in self.store_of.shares:
            self._stores += 1
            if not self._setting.lost or self._stores % self._setting.lost:
                self._store(asked, share)
        self._unsettled.append(transfer)

    def _store(self, asked: StoreRequest, share: int) -> None:
        """Have a worker store what a step has written, and note what is in the objects that were
        not there before.
        """
        there = {*self.store_of.objects}
        held = {
            self.store_of.named(name, share): [
                (
                    self.device.held(block.kernel_group, block.block_id, share)
                    if block.block_id != NULL_BLOCK_ID
                    else 0
                )
                for block in blocks
            ]
            for name, blocks in asked.objects.items()
        }
        self.store_of.store(self.store_of.of_share(asked.key, share), share, asked.blocks)
        self.l1.content |= {
            name: numbers
            for name, numbers in held.items()
            if name in self.store_of.objects and name not in there
        }

    def finish_retrieve(self, transfer: Transfer) -> None:
        """Do nothing: LMCache has let go of what it has brought."""

    # RELEASE

    def end_session(self, request_id: str) -> None:
        """Let go of a request."""
        self.free_lookup_locks(request_id)
        self.store_of.lookups.end_session(request_id)
        for known in (self.sessions, self._tokens, self._locked):
            known.pop(request_id, None)

    def close(self) -> None:
        """Let LMCache forget everything."""
        self.store_of.close(sorted(self._names))

    def tick(self) -> None:
        """Take note of what a step's stores have come to, and let the eviction thread look once."""
        settled, self._unsettled = self._unsettled, []
        for transfer in settled:
            self.l1.settle(transfer.request_id, transfer.keys)
        self.l1.look()
        self.store_of.evict()
        self.l1.look()

    def clear(self) -> bool:
        """Forget every object that nobody reads; return whether none is left."""
        self.store_of.manager.clear()
        self.l1.look()
        return not self.l1.objects

    def _placed(
        self, group: int, chunk: int, chunks: range, block_ids: BlockIds
    ) -> list[PlacedBlockId]:
        """Return the blocks of one chunk of an object group, which `block_ids` have from the
        first of `chunks` on.
        """
        placed = []
        for kernel_group, column in self.groups.placed_blocks(group):
            per_chunk = self.groups.blocks_per_chunk(kernel_group)
            block = block_ids[kernel_group][(chunk - chunks.start) * per_chunk + column]
            placed.append(PlacedBlockId(block, kernel_group, chunk * per_chunk + column))
        return placed
