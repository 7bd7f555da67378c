"""What every batch slot holds: lengths, and the positions of its states.

A slot is a row of every tensor of the cache. Its length says how many tokens of it are valid, and
one lengths tensor serves all attention layers. A recurrent layer has no length: its state stands
for all tokens before it, and only books can say for how many. These are the books. They change with
the calls that change the tensors, and twice, when lengths are declared (reset) and when they grow
(commit), they are compared: KV and states of an active slot must be of one position. That is the
whole difference between a restored prefix and a corrupted one.

The order of a batch's life: restore or zero each slot, reset, then commit after every prefill and
decode; evict, compact, set the active batch size. Reset itself touches neither KV nor states.

Source: `hybridCacheManager.cpp` (0.7.1), `resetForNewSequences`, `commitSequenceLength`,
`setActiveBatchSize`; ranges and positions are our own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType

from cachewitness_reference.primitives import Position
from cachewitness_reference.tensorrt_edge.compaction import RowMove
from cachewitness_reference.tensorrt_edge.config import Config, check

BatchSlot = NewType("BatchSlot", int)
"""A row of every tensor of the cache, counted from 0."""

START = Position(0)


@dataclass
class Row:
    """One slot. `length` is what the lengths tensor says; `kv` of its tokens are valid; None:
    content of nobody.

    `recurrent` and `conv` are the positions that its two states belong to, None likewise.
    """

    length: Position = START
    kv: Position | None = START
    recurrent: Position | None = START
    conv: Position | None = START


def _vacated() -> Row:
    return Row(START, None, None, None)


class Rows:
    """All slots of a cache and the size of the active batch."""

    def __init__(self, config: Config) -> None:
        self.active = 0
        self.all_empty = True
        self.rows = [Row() for _ in range(config.max_batch_size)]
        self._max_length = config.kv_config.max_sequence_length
        self._attention = config.kv_config.num_attention_layers > 0
        self._mamba = config.mamba_config.num_recurrent_layers > 0

    # LOOKUP

    @property
    def lengths(self) -> list[Position]:
        """The lengths of the active slots."""
        return [row.length for row in self.rows[: self.active]]

    def row(self, name: str, slot: int) -> Row:
        """Return a slot's row. Raises CacheError if there is none."""
        check(
            0 <= slot < len(self.rows),
            f"{name}: batchIdx {slot} out of range [0, {len(self.rows)}).",
        )
        return self.rows[slot]

    # ALLOCATE

    def reset(self, reuse: Sequence[int]) -> None:
        """Make `len(reuse)` slots the active batch, `reuse[i]` tokens of slot i being valid.

        Raises CacheError if they are too many, too long, more than the slot holds, or not where its
        states are.
        """
        fits = len(reuse) <= len(self.rows)
        check(fits, "Batch size of request shall not exceed the max supported batch size.")
        for slot, length in enumerate(reuse):
            self._check_length("resetForNewSequences", slot, length)
            row = self.rows[slot]
            held = row.kv if row.kv is not None else START
            reused = length <= held or not self._attention
            check(
                reused,
                f"resetForNewSequences: slot {slot} reuses {length} tokens; its KV cache holds"
                f" {held}.",
            )
            self._check_states("resetForNewSequences", slot, length)
        for row, length in zip(self.rows, reuse, strict=False):
            row.length = row.kv = Position(length)
        self.active = len(reuse)
        self.all_empty = not any(reuse)

    # COMMIT

    def commit(self, increments: Sequence[int]) -> None:
        """Add to the length of every active slot; its states have moved on by as much.

        Raises CacheError if a length leaves its range, or if the slot's KV and states were not of
        one position before.
        """
        assert len(increments) == self.active
        for slot, new in enumerate(increments):
            check(
                new >= 0,
                f"commitSequenceLength: slot {slot} grows by {new}; the increment must not be"
                " negative.",
            )
            row = self.rows[slot]
            self._check_length("commitSequenceLength", slot, row.length + new)
            whole = row.kv == row.length or not self._attention
            check(
                whole,
                f"commitSequenceLength: slot {slot} has length {row.length}; its KV cache is of"
                f" {_of(row.kv)}.",
            )
            self._check_states("commitSequenceLength", slot, row.length)
        for row, new in zip(self.rows, increments, strict=False):
            row.length = row.kv = row.recurrent = row.conv = Position(row.length + new)
        self.all_empty = False

    # RELEASE

    def set_active(self, size: int) -> None:
        """Set the size of the active batch. Raises CacheError if it is out of range."""
        inside = 0 <= size <= len(self.rows)
        check(inside, "Invalid active batch size: must be in range [0, maxBatchSize]")
        self.active = size

    def move(self, moves: Sequence[RowMove], new_batch: int) -> None:
        """Move rows, as one simultaneous permutation; active slots from `new_batch` on are
        vacated.
        """
        before = list(self.rows)
        for src, dst in moves:
            self.rows[dst] = before[src]
        for slot in range(new_batch, self.active):
            self.rows[slot] = _vacated()
        assert len({id(row) for row in self.rows}) == len(self.rows)

    def _check_length(self, name: str, slot: int, length: int) -> None:
        inside = 0 <= length <= self._max_length
        check(
            inside,
            f"{name}: slot {slot} would have {length} tokens; the range is [0, maxSequenceLength]"
            f" ([0, {self._max_length}]).",
        )

    def _check_states(self, name: str, slot: int, length: int) -> None:
        row = self.rows[slot]
        for what, position in (
            (("recurrent", row.recurrent), ("conv", row.conv)) if self._mamba else ()
        ):
            check(
                position == length,
                f"{name}: slot {slot} has KV length {length}; its {what} states are of"
                f" {_of(position)}.",
            )


def _of(position: Position | None) -> str:
    return "nobody" if position is None else f"position {position}"
