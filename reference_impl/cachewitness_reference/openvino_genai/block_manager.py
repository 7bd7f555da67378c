"""Block tables of one cache type: which block holds which tokens, or which state, of a sequence.

Column c of a KV table holds the keys and values of tokens [c * size, (c + 1) * size). Column c of a
linear-attention table holds the latest state after more than c * size and at most (c + 1) * size
tokens, where `size` is the checkpoint interval: the state inside an interval is overwritten in
place, and the one at its end stays. So both kinds follow one rule: to process tokens [start, stop)
a sequence writes the columns from start // size to (stop - 1) // size, and each of them then holds
a prefix of min((c + 1) * size, stop) tokens, which is what it is keyed as. Without prefix caching
there is a single column of states, as wide as any sequence: one block per sequence, whatever its
length.

A column that is written while others hold its block is copied first, unless what is written is what
it holds already. OpenVINO copies in the generate phase alone; a prompt that resumes inside a shared
block writes into it there. Here it is copied too.

OpenVINO keys a block when it is allocated, under the content that it *will* have; a prompt that
takes several steps can so be hit before it is computed. Here a block is keyed as what the scheduled
step writes.

Source: `block_manager.hpp`, `BlockManager`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cachewitness_reference.openvino_genai.block_pool import Block, BlockPool
from cachewitness_reference.openvino_genai.sequence import Sequence
from cachewitness_reference.openvino_genai.spec import SIZE_MAX
from cachewitness_reference.primitives import BlockId, Position

Table = list[Block | None]
"""Blocks by column; None left of the oldest checkpoint that was restored."""


class BlockCopy(NamedTuple):
    """A copy to make before the step runs."""

    source: BlockId
    target: BlockId


class BlockManager:
    """The pool of one cache type and the tables over it. `block_size` in tokens; `fixed`: one
    block per sequence.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, caching: bool, fixed: bool = False
    ) -> None:
        self.pool = BlockPool(num_blocks, caching)
        self.block_size = SIZE_MAX if fixed else block_size
        self.caching = caching
        self.fixed = fixed
        self.tables: dict[str, Table] = {}
        self._pinned: list[Block] = []

    # LOOKUP

    def longest_run(self, sequence: Sequence, length: int) -> int:
        """Return how many blocks of the first `length` tokens are cached without a gap from the
        start, full ones alone.
        """
        run = 0
        limit = length // self.block_size
        while run < limit and self.pool.find(sequence.boundary_hash(run + 1)) is not None:
            run += 1
        return run

    def holds(self, sequence: Sequence, length: Position) -> bool:
        """Whether some block can be restored as what ends exactly there."""
        return self.pool.find(sequence.hash_of(length)) is not None

    def cached_lengths(self, sequence: Sequence, length: int, boundary: int) -> Iterable[Position]:
        """Yield the prefixes of up to `length` tokens that some block is keyed as, longest first,
        down to a KV boundary.

        `boundary` counts KV blocks; what ends on it is not yielded, what ends behind it is.
        """
        size = sequence.kv_block_size
        for blocks in range(length // size, boundary - 1, -1):
            for tail in self.pool.tails(sequence.boundary_hash(blocks)):
                if tail <= length and self.holds(sequence, tail):
                    yield tail
            if blocks > boundary and self.holds(sequence, Position(blocks * size)):
                yield Position(blocks * size)

    # ALLOCATE

    def missing_blocks(self, sequences: Iterable[Sequence], start: int, stop: int) -> int:
        """Return how many blocks tokens [start, stop) of these sequences take beside those that
        they hold, copies included.
        """
        missing = 0
        writers = dict[BlockId, int]()
        for sequence in sequences:
            table = self.tables.get(sequence.sequence_id, [])
            missing += max(0, self._columns(stop) - len(table))
            block = self._shared_target(table, start, stop)
            if block is not None:
                writers[block.block_id] = writers.get(block.block_id, 0) + 1
        for block_id, count in writers.items():
            block = self.pool.blocks[block_id]
            others = block.references - block.pins - count
            missing += count if others else count - 1
        return missing

    def available_slots(self, sequence: Sequence, start: int) -> int:
        """Return how many tokens from `start` on could be processed now; there is no limit to
        what fits a fixed state.
        """
        table = self.tables.get(sequence.sequence_id, [])
        free = self.pool.num_free_blocks
        if self._shared_target(table, start, start + 1) is not None:
            free -= 1
        if free < 0 or (self.fixed and not table and not free):
            return 0
        return SIZE_MAX if self.fixed else (len(table) + free) * self.block_size - start

    def allocate(self, sequence: Sequence, start: int, stop: int) -> list[BlockCopy]:
        """Give a sequence what it needs to process tokens [start, stop); return the copies to
        make before.
        """
        table = self.tables.setdefault(sequence.sequence_id, [])
        copies = []
        old = self._shared_target(table, start, stop)
        if old is not None:
            new = self.pool.allocate(sequence.sequence_id)
            self.pool.pin(old)
            self.pool.release(old)
            self._pinned.append(old)
            table[start // self.block_size] = new
            copies.append(BlockCopy(old.block_id, new.block_id))
        while len(table) < self._columns(stop):
            table.append(self.pool.allocate(sequence.sequence_id))
        return copies

    def restore(self, sequence: Sequence, lengths: Iterable[Position]) -> None:
        """Hold the blocks that are keyed as these prefixes, each in the column where it ends;
        columns before are left empty.
        """
        table: Table = []
        for length in lengths:
            block = self.pool.find(sequence.hash_of(length))
            assert block is not None, "a block of the restore plan is gone"
            self.pool.share(block)
            table += [None] * (self._columns(length) - 1 - len(table))
            table.append(block)
        assert sequence.sequence_id not in self.tables
        self.tables[sequence.sequence_id] = table

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let the child hold every block of the parent."""
        table = self.tables[parent.sequence_id]
        assert child.sequence_id not in self.tables
        for block in table:
            if block is not None:
                self.pool.share(block)
        self.tables[child.sequence_id] = list(table)

    # COMMIT

    def register(self, sequence: Sequence, start: int, stop: int) -> None:
        """Key the columns that the scheduled tokens [start, stop) are written into, each as the
        prefix that it then ends.
        """
        if not self.caching:
            return
        table = self.tables[sequence.sequence_id]
        for column in range(start // self.block_size, self._columns(stop)):
            length = Position(min((column + 1) * self.block_size, stop))
            block = table[column]
            assert block is not None, "a column that is written is missing"
            if block.content_length < length or block.key is None:
                key = sequence.hash_of(length)
                parent = sequence.parent_of(length)
                self.pool.register(block, key, parent, length, sequence.sequence_id)

    def step_done(self) -> None:
        """Let go of the sources of this step's copies."""
        pinned, self._pinned = self._pinned, []
        for block in pinned:
            self.pool.unpin(block)

    # RELEASE

    def free_sequence(self, sequence: Sequence) -> None:
        """Let go of every block of a sequence."""
        for block in self.tables.pop(sequence.sequence_id, []):
            if block is not None:
                self.pool.release(block)

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Let go of the columns behind the first `length` tokens."""
        table = self.tables[sequence.sequence_id]
        while len(table) > self._columns(length):
            block = table.pop()
            if block is not None:
                self.pool.release(block)

    def _columns(self, length: int) -> int:
        return -(-length // self.block_size)

    def _shared_target(self, table: Table, start: int, stop: int) -> Block | None:
        """Return the block that others hold too and that tokens [start, stop) would change."""
        column = start // self.block_size
        block = table[column] if column < len(table) else None
        if block is None or not block.shared:
            return None
        upto = min((column + 1) * self.block_size, stop)
        return block if block.content_length < upto else None
