"""The blocks of one pool: who holds them, what they can be restored as, and which of them is
overwritten first.

A block is held (its reference count is above 0), idle in the overwritable store (nobody holds it, a
key names it) or unused. Allocation prefers unused blocks; then it overwrites the oldest block of
the store. A block's age counts from when it was last restored or overwritten, not from when it was
freed, and a block that was neither is as old as the pool: so blocks of a long request may go before
those of a short one that ended earlier.

A key is the digest of a prefix, of any length: a full block, or a tail inside one. Tails are listed
under the digest of the last block boundary before them, which is how a look-up finds them without
knowing their length. At most one block carries a key. OpenVINO gives it to the newest block; here a
held block keeps it, and an idle one gives way to a new block of the same content, since the new one
will live longer (our choice: no block is ever left unnamed because a twin took its name and
vanished).

`pins` are references of copies under way: the source of a copy must not be handed out before the
step has run.

Source: `block_manager.hpp`, `OverwritableBlocksHashStore`, `BlockAllocator`.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque

from cachewitness_reference.primitives import BlockHash, BlockId, Position


class Block:
    """One physical block. `content_length`: the tokens of the prefix that its key names; 0
    without a key.
    """

    __slots__ = (
        "block_id",
        "content_length",
        "key",
        "owner",
        "parent",
        "pins",
        "references",
        "timestamp",
    )

    def __init__(self, block_id: BlockId, timestamp: int) -> None:
        self.block_id = block_id
        self.timestamp = timestamp
        self.references = self.pins = 0
        self.key: BlockHash | None = None
        self.parent: BlockHash | None = None
        self.content_length = Position(0)
        self.owner = ""

    @property
    def shared(self) -> bool:
        """Whether several sequences hold it, so that it is copied before it is written."""
        return self.references - self.pins > 1


class BlockPool:
    """The blocks of one cache type. `caching`: keys are kept."""

    def __init__(self, num_blocks: int, caching: bool) -> None:
        self.caching = caching
        self.blocks: list[Block] = []
        self.cached: dict[BlockHash, Block] = {}
        self.key_changes = 0
        self._clock = 0
        self._unused: deque[Block] = deque()
        self._store: dict[BlockId, Block] = {}
        self._by_age: list[tuple[int, BlockId]] = []
        self._tails: dict[BlockHash, Counter[Position]] = {}
        self.grow(num_blocks)

    # LOOKUP

    def find(self, key: BlockHash) -> Block | None:
        """Return the block that can be restored as this prefix, or None."""
        return self.cached.get(key)

    def tails(self, parent: BlockHash) -> list[Position]:
        """Return the lengths of tails beyond this block boundary, longest first."""
        return sorted(self._tails.get(parent, ()), reverse=True)

    @property
    def num_blocks(self) -> int:
        """All blocks of the pool."""
        return len(self.blocks)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be allocated: unused ones and those in the store."""
        return len(self._unused) + len(self._store)

    @property
    def num_overwritable(self) -> int:
        """Blocks in the store."""
        return len(self._store)

    # ALLOCATE

    def grow(self, num_blocks: int) -> None:
        """Add so many unused blocks."""
        first = len(self.blocks)
        for block_id in range(first, first + num_blocks):
            block = Block(BlockId(block_id), self._tick())
            self.blocks.append(block)
            self._unused.append(block)

    def allocate(self, owner: str) -> Block:
        """Hand out an unused block, or the oldest of the store, whose key ends."""
        assert self.num_free_blocks > 0, "a block is asked of a pool that has none free"
        if self._unused:
            block = self._unused.popleft()
        else:
            block = self._oldest()
            self._drop_key(block)
            block.timestamp = self._tick()
        assert block.references == 0 and block.key is None
        block.references = 1
        block.owner = owner
        return block

    def share(self, block: Block) -> None:
        """Hold a block that can be restored, or one that a fork or a copy needs too."""
        if block.references == 0:
            del self._store[block.block_id]
            block.timestamp = self._tick()
        block.references += 1

    def pin(self, block: Block) -> None:
        """Hold the source of a copy until the step has run."""
        self.share(block)
        block.pins += 1

    # COMMIT

    def register(
        self, block: Block, key: BlockHash, parent: BlockHash | None, length: Position, owner: str
    ) -> None:
        """Name a held block as this prefix; its former key ends. `parent`: the last block
        boundary, None if it ends on one.
        """
        assert self.caching and block.references > 0
        if block.key == key:
            return
        self._drop_key(block)
        other = self.cached.get(key)
        if other is not None:
            if other.references > 0:
                return
            self._to_unused(other)
        block.key = key
        block.parent = parent
        block.content_length = length
        block.owner = owner
        self.cached[key] = block
        if parent is not None:
            self._tails.setdefault(parent, Counter())[length] += 1
        self.key_changes += 1

    # RELEASE

    def release(self, block: Block) -> None:
        """Let go of a block; the last holder leaves it in the store if a key names it."""
        assert block.references > block.pins, (
            f"block {block.block_id} is freed although nobody holds it"
        )
        block.references -= 1
        if block.references:
            return
        if block.key is None:
            self._unused.append(block)
        else:
            self._store[block.block_id] = block
            heapq.heappush(self._by_age, (block.timestamp, block.block_id))

    def unpin(self, block: Block) -> None:
        """Let go of the source of a copy that has been made."""
        assert block.pins > 0
        block.pins -= 1
        self.release(block)

    def clear_keys(self) -> None:
        """Forget every key; what is held stays held."""
        for block in list(self.cached.values()):
            if block.references:
                self._drop_key(block)
            else:
                self._to_unused(block)

    def _oldest(self) -> Block:
        while True:
            timestamp, block_id = heapq.heappop(self._by_age)
            block = self._store.get(block_id)
            if block is not None and block.timestamp == timestamp:
                del self._store[block_id]
                return block

    def _to_unused(self, block: Block) -> None:
        del self._store[block.block_id]
        self._drop_key(block)
        self._unused.append(block)

    def _drop_key(self, block: Block) -> None:
        if block.key is None:
            return
        del self.cached[block.key]
        if block.parent is not None:
            tails = self._tails[block.parent]
            tails[block.content_length] -= 1
            if not tails[block.content_length]:
                del tails[block.content_length]
            if not tails:
                del self._tails[block.parent]
        block.key = block.parent = None
        block.content_length = Position(0)
        self.key_changes += 1

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
