"""The server: finds, stores and serves chunks for an engine that is registered with it.

An engine's pages are named by block ids, by kernel group and column. What is to be copied is
returned as pairs of a page of the first level and a block; whoever makes the copies says when they
are made. Until then what is stored cannot be found, and what is read is locked.

Sources (0.5.6): `v1/multiprocess/modules/lookup.py` and `lmcache_driven_transfer.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cachewitness_reference.lmcache.eviction import L1EvictionController
from cachewitness_reference.lmcache.fold import fold, unfold
from cachewitness_reference.lmcache.groups import KVLayerGroups
from cachewitness_reference.lmcache.keys import (
    ObjectKey,
    TokenHasher,
    check_model_name,
    lookup_ranks,
    name_with_kernels,
)
from cachewitness_reference.lmcache.l1 import L1Manager, PageId
from cachewitness_reference.lmcache.spec import NULL_BLOCK_ID
from cachewitness_reference.primitives import BlockHash, BlockId

BlockIds = Sequence[Sequence[BlockId]]
"""Block ids by kernel group and column; the null block where there is none."""


class PlacedBlockId(NamedTuple):
    """A block of the engine, its kernel group and its column in the request's table."""

    block_id: BlockId
    kernel_group: int
    column: int


class PageCopy(NamedTuple):
    """A page of the first level and the block of the engine that it is copied from or to, placed
    as above.
    """

    page: PageId
    block_id: BlockId
    kernel_group: int
    column: int


@dataclass
class Transfer:
    """A store or a retrieve: whether it is carried out, what to copy, the keys it is about, and
    a line for the log.
    """

    request_id: str
    ok: bool = True
    copies: list[PageCopy] = field(default_factory=list)
    keys: list[ObjectKey] = field(default_factory=list)
    log: str = ""


@dataclass
class Session:
    """What the server knows of a request. `locked` are the keys that its look-up holds, with
    their chunks.
    """

    salt: str
    adapter: str
    model_name: str
    hashes: list[BlockHash] = field(default_factory=list)
    locked: dict[ObjectKey, int] = field(default_factory=dict)


class LMCacheServer:
    """A first level of so many pages, for one model of engines with `world_size` ranks each; of
    what kernels a request says.
    """

    def __init__(
        self,
        groups: KVLayerGroups,
        num_pages: int,
        *,
        model_name: str = "model",
        world_size: int = 1,
        mla_only: bool = False,
        watermark: float | None = None,
        ratio: float | None = None,
    ) -> None:
        check_model_name(model_name)
        self.groups = groups
        self.model_name = model_name
        self.ranks = lookup_ranks(world_size, mla_only=mla_only)
        self.l1 = L1Manager(num_pages)
        chosen = {
            name: value
            for name, value in (("watermark", watermark), ("ratio", ratio))
            if value is not None
        }
        self.eviction = L1EvictionController(self.l1, **chosen)
        self.hasher = TokenHasher(groups.chunk_size)
        self.sessions: dict[str, Session] = {}

    def start_session(
        self, request_id: str, salt: str = "", adapter: str = "", kernels: str = ""
    ) -> None:
        """Take note of a request and its identity, the kernels of its engine included; a second
        time changes nothing.
        """
        self.sessions.setdefault(
            request_id, Session(salt, adapter, name_with_kernels(self.model_name, kernels))
        )

    # LOOKUP

    def lookup(self, request_id: str, tokens: Sequence[int], num_tokens: int) -> int:
        """Return how many chunks of the first `num_tokens` tokens can be served, and lock what
        that needs.
        """
        session = self._hashed(request_id, tokens)
        assert not session.locked, "a look-up that is open is let go of before another one"
        chunks = range(num_tokens // self.groups.chunk_size)
        rows = [
            [self.l1.contains(self._key(session, index, group, rank)) for index in chunks]
            for group in range(len(self.groups.windows))
            for rank in self.ranks
        ]
        windows = [window for window in self.groups.windows for _ in self.ranks]
        hit = fold(rows, windows)
        for group, window in enumerate(self.groups.windows):
            for rank in self.ranks:
                session.locked |= {
                    self._key(session, chunk, group, rank): chunk for chunk in unfold(hit, window)
                }
        self.l1.reserve_read(session.locked)
        self.l1.touch_keys(list(session.locked))
        return hit

    def free_lookup_locks(self, request_id: str, num_tokens: int | None = None) -> None:
        """Let go of the chunks of a look-up that end within the first `num_tokens` tokens, or of
        all of them.
        """
        locked = self.sessions[request_id].locked
        end = None if num_tokens is None else num_tokens // self.groups.chunk_size
        freed = [key for key, chunk in locked.items() if end is None or chunk < end]
        self.l1.finish_read(freed)
        for key in freed:
            del locked[key]

    # ALLOCATE

    def store(
        self,
        request_id: str,
        tokens: Sequence[int],
        chunks: range,
        block_ids: BlockIds,
        rank: int = 0,
    ) -> Transfer:
        """Take memory for the chunks of a request that are not here yet, and say what to copy;
        `block_ids` begin with them.

        A chunk is left out of an object group where a block that would be kept is null, or if the
        group's chunks do not all fit. With too few block ids in any group nothing is stored at all.
        """
        session = self._hashed(request_id, tokens)
        transfer = Transfer(request_id)
        if self._underflow(chunks, block_ids):
            transfer.ok = False
            transfer.log = self._underflow_log("store", request_id, chunks)
            return transfer
        # LOOKUP: nothing; a key that is here already is passed over as memory is taken.
        # ALLOCATE
        for group in range(len(self.groups.object_groups)):
            placed = {chunk: self._placed(group, chunk, chunks, block_ids) for chunk in chunks}
            whole = [chunk for chunk, blocks in placed.items() if self._has_content(blocks)]
            keys = {self._key(session, chunk, group, self.ranks[rank]): chunk for chunk in whole}
            pages = len(self.groups.placed_blocks(group))
            for key, memory in self.l1.reserve_write(list(keys), pages, request_id).items():
                transfer.keys.append(key)
                blocks = placed[keys[key]]
                transfer.copies += [
                    PageCopy(page, *block) for page, block in zip(memory.pages, blocks, strict=True)
                ]
        # COMMIT: nothing; the objects can be found when their copies have been made
        # (`finish_store`).
        # RELEASE: nothing; the eviction thread makes room (`tick`).
        transfer.log = f"Stored {len(chunks) * self.groups.chunk_size} tokens"
        return transfer

    def retrieve(
        self,
        request_id: str,
        chunks: range,
        block_ids: BlockIds,
        skip_first_n_tokens: int,
        rank: int = 0,
    ) -> Transfer:
        """Say what to copy into blocks for these chunks, `block_ids` beginning with them; nothing
        if a key is missing.

        Of each object group only the chunks of its window count. The first tokens are left as they
        are, and so are null columns.
        """
        session = self.sessions[request_id]
        transfer = Transfer(request_id)
        if self._underflow(chunks, block_ids):
            transfer.ok = False
            transfer.log = self._underflow_log("retrieve", request_id, chunks)
            return transfer
        for group, window in enumerate(self.groups.windows):
            for chunk in range(max(chunks.start, unfold(chunks.stop, window).start), chunks.stop):
                key = self._key(session, chunk, group, self.ranks[rank])
                resident = self.l1.objects.get(key)
                if resident is None:
                    return Transfer(
                        request_id, ok=False, log="Some keys not found during retrieve!"
                    )
                transfer.keys.append(key)
                blocks = self._placed(group, chunk, chunks, block_ids)
                copies = [
                    PageCopy(page, *block)
                    for page, block in zip(resident.memory.pages, blocks, strict=True)
                ]
                transfer.copies += [
                    copy for copy in copies if self._is_written(copy, chunks, skip_first_n_tokens)
                ]
        self.l1.reserve_read(key for key in transfer.keys if key not in session.locked)
        for key in transfer.keys:
            session.locked.pop(key, None)
        transfer.log = f"Retrieved {len(chunks) * self.groups.chunk_size} tokens"
        return transfer

    # COMMIT

    def finish_store(self, transfer: Transfer) -> None:
        """Take note that the copies of a store have been made: its objects can be found."""
        self.l1.finish_write(transfer.keys, transfer.request_id)

    def finish_retrieve(self, transfer: Transfer) -> None:
        """Take note that the copies of a retrieve have been made: its objects may go."""
        self.l1.finish_read(transfer.keys)

    # RELEASE

    def end_session(self, request_id: str) -> None:
        """Let go of a request: what it locked, and all that is here of it was of use."""
        self.free_lookup_locks(request_id)
        session = self.sessions.pop(request_id)
        self.l1.touch_keys(
            [
                self._key(session, chunk, group, rank)
                for group in range(len(self.groups.windows))
                for rank in self.ranks
                for chunk in range(len(session.hashes))
            ]
        )

    def tick(self) -> list[ObjectKey]:
        """Let the eviction thread look once; return what it evicted."""
        return self.eviction.tick()

    def clear(self) -> bool:
        """Forget every object that nobody reads; return whether none is left."""
        self.l1.clear()
        return not self.l1.objects

    def _hashed(self, request_id: str, tokens: Sequence[int]) -> Session:
        session = self.sessions[request_id]
        self.hasher.extend(session.hashes, tokens, session.adapter)
        return session

    def _key(self, session: Session, chunk: int, group: int, rank: int) -> ObjectKey:
        return ObjectKey(session.hashes[chunk], session.model_name, rank, group, session.salt)

    def _underflow(self, chunks: range, block_ids: BlockIds) -> bool:
        needed = [
            len(chunks) * self.groups.blocks_per_chunk(group)
            for group in range(len(self.groups.kernel_groups))
        ]
        return any(len(ids) < count for ids, count in zip(block_ids, needed, strict=True))

    def _underflow_log(self, what: str, request_id: str, chunks: range) -> str:
        needed = [
            self.groups.blocks_per_chunk(group) for group in range(len(self.groups.kernel_groups))
        ]
        return (
            f"{what.upper()} block ID underflow for request_id={request_id}: each group needs"
            f" num_chunks * blocks_per_chunk block IDs for {len(chunks)} chunks (per-group"
            f" blocks_per_chunk={needed}); skipping the {what}."
        )

    def _placed(
        self, group: int, chunk: int, chunks: range, block_ids: BlockIds
    ) -> list[PlacedBlockId]:
        """Return the blocks of one chunk of an object group, which `block_ids` have from the
        first of `chunks` on.
        """
        placed = []
        for kernel_group, column in self.groups.placed_blocks(group):
            per_chunk = self.groups.blocks_per_chunk(kernel_group)
            block_id = block_ids[kernel_group][(chunk - chunks.start) * per_chunk + column]
            placed.append(PlacedBlockId(block_id, kernel_group, chunk * per_chunk + column))
        return placed

    def _has_content(self, blocks: Sequence[PlacedBlockId]) -> bool:
        """Whether every block of an object is there to be stored."""
        return all(block.block_id != NULL_BLOCK_ID for block in blocks)

    def _is_written(self, copy: PageCopy, chunks: range, skip_first_n_tokens: int) -> bool:
        """Whether a retrieve fills a block: not if the engine has it already, nor where it has
        none.
        """
        start = copy.column * self.groups.kernel_groups[copy.kernel_group].tokens_per_block
        skipped = start < chunks.start * self.groups.chunk_size + skip_first_n_tokens
        return copy.block_id != NULL_BLOCK_ID and not skipped
