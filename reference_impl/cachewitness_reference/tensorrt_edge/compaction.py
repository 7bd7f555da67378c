"""Compaction: where every row goes after batch eviction.

The contract: `batch_mapping[i]` is the new row of slot i, or -1 if it was evicted; there are
`old_batch` slots before and `new_batch` after. So the survivors stand one to one on rows 0 to
new_batch - 1. Any such mapping is allowed, whatever the order of survivors, and it is one
simultaneous permutation: no row may be overwritten before it was read. A mapping that is none (two
slots on one row, a row from new_batch on, a row that nobody gets, another count of slots) is
refused before anything moves.

What is moved is the same for all kinds of memory: the KV of a slot as far as it is filled, its
length, and its recurrent and conv states whole. A sequence of which they moved apart would go on
from somebody else's past.

The releases do it in place (`in_place`): three loops over ascending old rows, with bounds and an
early return of their own each. That is right only if survivors keep their order; everything else
comes out torn. It is here so that a harness can show it.

Sources: the document, `compactBatch`; `batchEvictKernels.cu` and `hybridCacheManager.cpp` (0.7.1)
for `in_place`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cachewitness_reference.tensorrt_edge.config import check

EVICTED = -1
"""The new row of an evicted slot, as the contract writes it."""


class RowMove(NamedTuple):
    """After the compaction, row `dst` holds what row `src` held before."""

    src: int
    dst: int


class Moves(NamedTuple):
    """The rows that move, by kind of memory; each list is one simultaneous permutation. Right
    ones are equal.
    """

    kv: tuple[RowMove, ...]
    lengths: tuple[RowMove, ...]
    states: tuple[RowMove, ...]


def build_batch_mapping(finished: Sequence[bool]) -> list[int]:
    """Return the mapping that numbers survivors ascending (upstream: `buildBatchMapping`)."""
    mapping = []
    row = 0
    for gone in finished:
        mapping.append(EVICTED if gone else row)
        row += not gone
    return mapping


def check_mapping(
    mapping: Sequence[int], old_batch: int, new_batch: int, active_batch_size: int
) -> None:
    """Raise CacheError unless the mapping takes the survivors of `old_batch` slots one to one
    onto rows [0, `new_batch`).
    """
    where = "compactBatch:"
    check(
        old_batch == active_batch_size,
        f"{where} First dimension must match oldActiveBatch (oldBatch {old_batch}, active batch"
        f" size {active_batch_size}).",
    )
    check(
        len(mapping) == old_batch,
        f"{where} batchMapping has {len(mapping)} entries; oldBatch is {old_batch}.",
    )
    check(
        0 <= new_batch <= old_batch,
        f"{where} newBatch {new_batch} is not in range [0, oldBatch] ([0, {old_batch}]).",
    )
    taken: dict[int, int] = {}
    for slot, row in enumerate(mapping):
        inside = row == EVICTED or 0 <= row < new_batch
        check(
            inside,
            f"{where} batchMapping[{slot}] is {row}; it must be -1 or in range [0, newBatch) ([0,"
            f" {new_batch})).",
        )
        if row != EVICTED:
            check(
                row not in taken,
                f"{where} batchMapping sends slots {taken.get(row)} and {slot} to one row, {row}.",
            )
            taken[row] = slot
    missing = [row for row in range(new_batch) if row not in taken]
    check(
        not missing,
        f"{where} batchMapping sends nobody to row {missing[0] if missing else 0}; newBatch is"
        f" {new_batch}.",
    )
    assert len(taken) == new_batch


def plan(mapping: Sequence[int], old_batch: int, new_batch: int, active_batch_size: int) -> Moves:
    """Return the moves of an allowed mapping. Raises CacheError for one that is not
    (`check_mapping`).
    """
    check_mapping(mapping, old_batch, new_batch, active_batch_size)
    moves = tuple(
        RowMove(slot, row) for slot, row in enumerate(mapping) if row not in (EVICTED, slot)
    )
    assert len({move.dst for move in moves}) == len(moves)
    return Moves(moves, moves, moves)


def in_place(
    mapping: Sequence[int], lengths: Sequence[int], new_batch: int, max_batch_size: int
) -> Moves:
    """Return what the releases' loops amount to; `lengths` are those of the old batch, in
    tokens. Nothing is checked.
    """
    old_batch = len(mapping)
    filled = [row if length else EVICTED for row, length in zip(mapping, lengths, strict=True)]
    return Moves(
        kv=() if old_batch == new_batch else _ascending(filled, max_batch_size),
        lengths=_ascending(mapping, old_batch),
        states=_ascending(mapping, old_batch),
    )


def _ascending(mapping: Sequence[int], bound: int) -> tuple[RowMove, ...]:
    """Copy rows one by one in ascending order, where the new one lies below `bound`; return
    whose content ends up where.
    """
    content = list(range(max([bound, len(mapping)])))
    for slot, row in enumerate(mapping):
        if 0 <= row < bound and row != slot:
            content[row] = content[slot]
    return tuple(RowMove(src, dst) for dst, src in enumerate(content) if src != dst)
