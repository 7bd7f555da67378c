"""A pool of blocks of one kind of attention: free, in use, or idle.

A block is *in use* while a request holds it, or while an entry that names it is active (`pins`: a
running sequence goes through that entry). It is *idle* if nobody uses it and an entry names it:
then it is cache, and the first to go is the one that has been idle longest. Otherwise it is free.

Idle blocks are kept in the order in which they became so. A sequence is released from its end, and
whoever uses an entry uses all that lies before it; so what lies further down a branch comes earlier
in the order, and taking the first idle block takes the leaf of the branch that was used least
recently. Every operation costs O(1), whatever the size of the pool.

Source of the rule: spec rules `shared-memory`, `leaf-lru`; choices `eviction-by-pool`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

from cachewitness_reference.primitives import BlockId


class Named(Protocol):
    """What names a block: an entry of the tree."""

    start: int


class Block:
    """One block: how many requests hold it, how many active entries name it, and which entries
    name it at all.
    """

    __slots__ = ("block_id", "entries", "holds", "pins")

    def __init__(self, block_id: BlockId) -> None:
        self.block_id = block_id
        self.holds = 0
        self.pins = 0
        self.entries: dict[Named, None] = {}


class BlockPool:
    """`num_blocks` blocks. `evict(block_id)` has to take every entry off an idle block that the
    pool wants back.
    """

    def __init__(self, num_blocks: int, evict: Callable[[BlockId], None]) -> None:
        assert num_blocks > 0
        self._blocks = [Block(BlockId(index)) for index in range(num_blocks)]
        self._free = deque(self._blocks)
        self._idle: OrderedDict[BlockId, Block] = OrderedDict()
        self._evict = evict
        self.num_held = 0
        """Blocks that at least one request holds."""

    # LOOKUP

    @property
    def num_blocks(self) -> int:
        """The size of the pool."""
        return len(self._blocks)

    @property
    def num_free(self) -> int:
        """Blocks that nobody uses and nothing names."""
        return len(self._free)

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out: free or idle."""
        return len(self._free) + len(self._idle)

    def holds(self, block_id: BlockId) -> int:
        """Return how many requests (and copies) hold a block."""
        return self._blocks[block_id].holds

    def is_idle(self, block_id: BlockId) -> bool:
        """Whether only entries that are not active keep a block."""
        return block_id in self._idle

    def is_named(self, block_id: BlockId) -> bool:
        """Whether an entry names a block."""
        return bool(self._blocks[block_id].entries)

    def entries(self, block_id: BlockId) -> list[Named]:
        """Return the entries that name a block, the one furthest down first."""
        return sorted(self._blocks[block_id].entries, key=lambda entry: -entry.start)

    # ALLOCATE

    def take(self) -> BlockId:
        """Hand out a block, held once; evict the block that has been idle longest if none is
        free.
        """
        assert self.num_available, "ask num_available first"
        if not self._free:
            self._evict(next(iter(self._idle)))
        block = self._free.popleft()
        assert not (block.holds or block.pins or block.entries)
        block.holds = 1
        self.num_held += 1
        return block.block_id

    def hold(self, block_id: BlockId) -> None:
        """Hold a block that something keeps already."""
        block = self._blocks[block_id]
        assert block.holds or block.entries, "nothing is known of a free block"
        self._idle.pop(block_id, None)
        self.num_held += block.holds == 0
        block.holds += 1

    # COMMIT

    def pin(self, block_id: BlockId) -> None:
        """Keep a block for an entry that names it and has become active."""
        self._idle.pop(block_id, None)
        self._blocks[block_id].pins += 1

    def name(self, block_id: BlockId, entry: Named) -> None:
        """Let an entry name a block from now on."""
        block = self._blocks[block_id]
        assert block.holds or block.entries, "nothing is known of a free block"
        assert entry not in block.entries
        block.entries[entry] = None

    # RELEASE

    def release(self, block_id: BlockId) -> None:
        """Give a hold back."""
        block = self._blocks[block_id]
        assert block.holds, f"block {block_id} is not held"
        block.holds -= 1
        self.num_held -= block.holds == 0
        self._settle(block)

    def unpin(self, block_id: BlockId) -> None:
        """Take back the pin of an entry that is active no more."""
        block = self._blocks[block_id]
        assert block.pins, f"block {block_id} is not pinned"
        block.pins -= 1
        self._settle(block)

    def unname(self, block_id: BlockId, entry: Named) -> None:
        """Let an entry name it no more."""
        block = self._blocks[block_id]
        del block.entries[entry]
        self._settle(block)

    def _settle(self, block: Block) -> None:
        """Put a block that nobody uses where it belongs: idle if an entry names it, else free."""
        if block.holds or block.pins:
            return
        if block.entries:
            self._idle.setdefault(block.block_id, block)
        else:
            self._idle.pop(block.block_id, None)
            self._free.append(block)
