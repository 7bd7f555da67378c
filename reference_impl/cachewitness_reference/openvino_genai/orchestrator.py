"""Both caches as one: what a prompt can resume from, what a chunk needs, what is released.

A position is worth resuming only if both caches hold it. The KV cache says how long a run of full
blocks it has; the largest checkpoint of the linear-attention cache within reach of that run, whose
own end the KV cache holds too, is where the prompt resumes; then both are held up to there. Without
a checkpoint nothing is restored, however much KV there is.

Two differences to OpenVINO, both of them needed for exact results:

* It resumes at R - 1 if R is the whole prompt, so that one token is left to compute, for both
  caches. Attention may write token R - 1 again; a recurrent state after R tokens would take it in
  twice. Here a hybrid resumes at the largest checkpoint *before* the last token, and R - 1 is for
  models without linear attention.
* It takes the shortest of several KV tails behind the run, and then no checkpoint but one at that
  very length or below. Here all are tried, longest first.

The blocks of earlier checkpoints are held too, as far as they reach back without a gap: there a
preempted request can go on.

Source: `cache_orchestrator.hpp` (`restore_cached_blocks`), `block_manager.hpp` (restore plans).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from cachewitness_reference.openvino_genai.block_manager import BlockCopy, BlockManager
from cachewitness_reference.openvino_genai.sequence import Sequence, SequenceGroup
from cachewitness_reference.openvino_genai.sizing import Capacity
from cachewitness_reference.primitives import BlockId, Position


class CacheType(Enum):
    """The two kinds of cache."""

    KV_CACHE = "kv"
    LINEAR_ATTENTION_CACHE = "la"


KV = CacheType.KV_CACHE
LA = CacheType.LINEAR_ATTENTION_CACHE


@dataclass(frozen=True)
class Restored:
    """What a look-up found: `cached` tokens are there, processing goes on at `processed`.

    `blocks`: the block ids of each cache by column, None where the table is empty.
    """

    cached: Position
    processed: Position
    blocks: dict[CacheType, list[BlockId | None]] = field(default_factory=dict)


NOTHING = Restored(Position(0), Position(0))


class CacheOrchestrator:
    """The caches of a model. `kv_block_size` in tokens; `hybrid`: there is linear attention
    beside the KV cache.
    """

    def __init__(
        self, capacity: Capacity, kv_block_size: int, *, hybrid: bool, caching: bool
    ) -> None:
        self.kv = BlockManager(capacity.kv_blocks, kv_block_size, caching=caching)
        self.la: BlockManager | None = None
        if hybrid:
            self.la = BlockManager(
                capacity.la_blocks, capacity.interval or 1, caching=caching, fixed=not caching
            )
        self.caching = caching
        self.managers = {KV: self.kv} if self.la is None else {KV: self.kv, LA: self.la}

    # LOOKUP

    def restore(self, group: SequenceGroup) -> Restored:
        """Hold what is cached of a request that holds nothing, and say where it goes on."""
        if not self.caching or len(group.sequences) > 1:
            return NOTHING
        sequence = group.sequences[0]
        cached = self._longest(sequence, group.length)
        if cached == 0:
            return NOTHING
        size = self.kv.block_size
        self.kv.restore(sequence, [*map(Position, range(size, cached, size)), cached])
        if self.la is not None:
            self.la.restore(sequence, [*reversed([*self._earlier(sequence, cached)]), cached])
        blocks = {kind: self.table(kind, sequence.sequence_id) for kind in self.managers}
        return Restored(cached, Position(min(cached, group.length - 1)), blocks)

    def table(self, kind: CacheType, sequence_id: str) -> list[BlockId | None]:
        """Return the block ids that a sequence holds, by column."""
        return [
            None if block is None else block.block_id
            for block in self.managers[kind].tables.get(sequence_id, [])
        ]

    def available_slots(self, sequence: Sequence, start: int) -> int:
        """Return how many tokens from `start` on both caches have room for."""
        return min(manager.available_slots(sequence, start) for manager in self.managers.values())

    def fits(self, group: SequenceGroup, tokens: int) -> bool:
        """Whether both caches have room for so many further tokens of every sequence of a
        request.
        """
        start = group.num_processed
        stop = group.num_processed + tokens
        return all(
            m.missing_blocks(group.sequences, start, stop) <= m.pool.num_free_blocks
            for m in self.managers.values()
        )

    def holds_blocks(self, group: SequenceGroup) -> bool:
        """Whether a request holds any block."""
        return any(sequence.sequence_id in self.kv.tables for sequence in group.sequences)

    def _longest(self, sequence: Sequence, length: int) -> Position:
        """Return the most tokens of a prompt that can be restored."""
        size = self.kv.block_size
        run = self.kv.longest_run(sequence, length)
        reach = min(length, (run + 1) * size - 1)
        if self.la is None:
            return next(iter(self.kv.cached_lengths(sequence, reach, run)), Position(run * size))
        for checkpoint in self.la.cached_lengths(sequence, min(reach, length - 1), 0):
            if checkpoint % size == 0 or self.kv.holds(sequence, checkpoint):
                return checkpoint
        return Position(0)

    def _earlier(self, sequence: Sequence, checkpoint: Position) -> Iterator[Position]:
        """Yield the checkpoints at interval ends before this one, newest first, as long as each
        is cached.
        """
        assert self.la is not None
        interval = self.la.block_size
        for length in range((checkpoint - 1) // interval * interval, 0, -interval):
            if not self.la.holds(sequence, Position(length)):
                return
            yield Position(length)

    # ALLOCATE

    def allocate(
        self, sequence: Sequence, start: int, stop: int
    ) -> list[tuple[CacheType, BlockCopy]]:
        """Give a sequence the blocks for tokens [start, stop) and key them; return the copies to
        make before the step.
        """
        copies = []
        # LOOKUP: nothing; a request is looked up once, before it runs.
        for kind, manager in self.managers.items():
            # ALLOCATE
            copies += [(kind, copy) for copy in manager.allocate(sequence, start, stop)]
            # COMMIT
            manager.register(sequence, start, stop)
        # RELEASE: nothing; states between checkpoints are written over in place.
        return copies

    def fork_sequence(self, parent: Sequence, child: Sequence) -> None:
        """Let a forked sequence hold every block of its parent, in both caches."""
        for manager in self.managers.values():
            manager.fork(parent, child)

    # COMMIT

    def step_done(self) -> None:
        """Take note that a step has run: its copies have been made."""
        for manager in self.managers.values():
            manager.step_done()

    # RELEASE

    def free(self, group: SequenceGroup) -> None:
        """Let go of everything that a request holds."""
        for manager in self.managers.values():
            for sequence in group.sequences:
                manager.free_sequence(sequence)

    def roll_back(self, group: SequenceGroup, enough: Callable[[], bool]) -> Position:
        """Release blocks of a request from its end until there is enough; return where it can go
        on, 0 if all is gone.

        It goes on at a KV boundary; a hybrid at one where it holds the state. OpenVINO takes tokens
        off by KV blocks and leaves the state where it was, too far ahead.
        """
        position = group.num_processed
        while position > 0 and not enough():
            position = self._previous(group, position)
            for manager in self.managers.values():
                for sequence in group.sequences:
                    manager.truncate(sequence, position)
        if position == 0:
            self.free(group)
        return position

    def can_roll_back(self) -> bool:
        """Whether a request can give up a part of what it holds: not if its only state is its
        latest.
        """
        return self.la is None or not self.la.fixed

    def clear_prefix_cache(self) -> None:
        """Forget every key in both caches (our choice; OpenVINO has no such call while prefix
        caching is on).
        """
        # LOOKUP, ALLOCATE, COMMIT: nothing; every key ends.
        # RELEASE
        for manager in self.managers.values():
            manager.pool.clear_keys()

    def _previous(self, group: SequenceGroup, position: Position) -> Position:
        """Return the last position before this one where a request could go on with what it
        holds; 0 if there is none.
        """
        step = self.kv.block_size if self.la is None else self.la.block_size
        tables = (
            []
            if self.la is None
            else [self.la.tables[sequence.sequence_id] for sequence in group.sequences]
        )
        for earlier in range((position - 1) // step * step, 0, -step):
            if all(table[earlier // step - 1] is not None for table in tables):
                return Position(earlier)
        return Position(0)
