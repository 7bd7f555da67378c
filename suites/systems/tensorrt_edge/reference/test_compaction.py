"""Compaction: every allowed mapping up to four rows as one permutation; every other one refused;
what releases do instead.
"""

from __future__ import annotations

from itertools import product

import pytest

from cachewitness_reference.tensorrt_edge.compaction import (
    Moves,
    RowMove,
    build_batch_mapping,
    check_mapping,
    in_place,
    plan,
)
from cachewitness_reference.tensorrt_edge.config import CacheError
from cachewitness_reference.tensorrt_edge.policy import HybridCachePolicy
from suites.support.tensorrt_edge import A, M, config, refused

OLD_MAX = 4
EVERY = [
    (list(mapping), old)
    for old in range(OLD_MAX + 1)
    for mapping in product(range(-1, OLD_MAX), repeat=old)
]


def allowed(mapping: list[int]) -> bool:
    """Whether survivors stand one to one on the first rows, written as the sentence of the
    contract says it.
    """
    survivors = sorted(row for row in mapping if row >= 0)
    return survivors == list(range(len(survivors)))


def after(mapping: list[int], rows: list[str]) -> list[str]:
    """Return the first rows after a compaction: a new list, so that nothing is overwritten."""
    return [rows[mapping.index(row)] for row in range(sum(row >= 0 for row in mapping))]


def applied(moves: tuple[RowMove, ...], rows: list[str]) -> list[str]:
    return [rows[{move.dst: move.src for move in moves}.get(row, row)] for row in range(len(rows))]


def test_every_allowed_mapping_is_one_simultaneous_permutation() -> None:
    """All 89 of up to four rows, 65 of them of four; and each kind of memory moves alike."""
    right = [mapping for mapping, _ in EVERY if allowed(mapping)]
    assert len(right) == 1 + 2 + 5 + 16 + 65
    for mapping in right:
        rows = [f"row{slot}" for slot in range(len(mapping))]
        new = sum(row >= 0 for row in mapping)
        moves = plan(mapping, len(mapping), new, len(mapping))
        assert applied(moves.kv, rows)[:new] == after(mapping, rows)
        assert moves.kv == moves.lengths == moves.states


def test_every_other_mapping_is_refused() -> None:
    """Whatever `new_batch` is said to be, and an allowed one with any other `new_batch`."""
    for mapping, old in EVERY:
        count = sum(row >= 0 for row in mapping)
        for new in range(OLD_MAX + 1):
            if not (allowed(mapping) and new == count):
                with pytest.raises(CacheError, match=r"^compactBatch: "):
                    check_mapping(mapping, old, new, old)


@pytest.mark.parametrize(
    ("mapping", "old", "new", "active", "text"),
    [
        (
            [0, 1],
            2,
            2,
            3,
            "First dimension must match oldActiveBatch (oldBatch 2, active batch size 3).",
        ),
        ([0, 1], 3, 2, 3, "batchMapping has 2 entries; oldBatch is 3."),
        ([0, 0, -1], 3, 1, 3, "batchMapping sends slots 0 and 1 to one row, 0."),
        (
            [0, 2, -1],
            3,
            2,
            3,
            "batchMapping[1] is 2; it must be -1 or in range [0, newBatch) ([0, 2)).",
        ),
        (
            [0, -2, 1],
            3,
            2,
            3,
            "batchMapping[1] is -2; it must be -1 or in range [0, newBatch) ([0, 2)).",
        ),
        ([1, -1, -1], 3, 2, 3, "batchMapping sends nobody to row 0; newBatch is 2."),
        ([0, 1], 2, 3, 2, "newBatch 3 is not in range [0, oldBatch] ([0, 2])."),
        ([-1, -1], 2, -1, 2, "newBatch -1 is not in range [0, oldBatch] ([0, 2])."),
    ],
)
def test_a_mapping_that_the_contract_does_not_allow_says_why(
    mapping: list[int], old: int, new: int, active: int, text: str
) -> None:
    assert refused(plan, mapping, old, new, active) == f"compactBatch: {text}"


def test_a_refused_compaction_has_moved_nothing() -> None:
    """Lengths, the active batch and the next commit are as before."""
    cache = filled([3, 5, 7])
    refused(cache.compact_batch, [1, 1, -1], 3, 2)
    assert cache.get_kv_cache_lengths() == [3, 5, 7] and cache.get_active_batch_size() == 3
    cache.commit_sequence_length(1)
    assert cache.get_kv_cache_lengths() == [4, 6, 8]


def filled(lengths: list[int]) -> HybridCachePolicy:
    """Return a hybrid manager with so many tokens computed in its rows."""
    cache = HybridCachePolicy(config((A, M, A, M)))
    cache.reset_for_new_sequences([0] * len(lengths))
    cache.commit_sequence_length(lengths)
    return cache


def test_lengths_and_states_move_with_their_rows() -> None:
    """Rows 2 and 0 survive, in this order; what they capture afterwards is of their own
    positions.
    """
    cache = filled([3, 5, 7])
    cache.compact_batch([1, -1, 0], 3, 2)
    cache.set_active_batch_size(2)
    assert cache.get_kv_cache_lengths() == [7, 3]
    assert [cache.capture_recurrent_states(slot).position for slot in (0, 1)] == [7, 3]
    assert [cache.capture_conv_states(slot).position for slot in (0, 1)] == [7, 3]
    cache.commit_sequence_length(1)
    assert cache.get_kv_cache_lengths() == [8, 4]


def test_the_active_batch_size_is_the_callers_to_set() -> None:
    """Compaction leaves it; a commit that forgets it meets rows of nobody and is refused."""
    cache = filled([3, 5, 7])
    cache.compact_batch([-1, 0, 1], 3, 2)
    assert cache.get_active_batch_size() == 3
    assert "of nobody" in refused(cache.commit_sequence_length, 1)
    cache.set_active_batch_size(2)
    cache.commit_sequence_length(1)
    assert cache.get_kv_cache_lengths() == [6, 8]


def test_a_vacated_row_is_of_nobody_until_it_is_begun_anew() -> None:
    """It cannot be captured, nor reused; zeroed, it can begin."""
    cache = filled([3, 5])
    cache.compact_batch([-1, 0], 2, 1)
    cache.set_active_batch_size(1)
    assert "of nobody" in refused(cache.capture_recurrent_states, 1)
    assert "of nobody" in refused(cache.reset_for_new_sequences, [5, 0])
    cache.zero_recurrent_states(1)
    cache.reset_for_new_sequences([5, 0])
    assert cache.get_kv_cache_lengths() == [5, 0]


def test_survivors_are_numbered_ascending() -> None:
    """The runtime's own mapping: evicted rows are -1, survivors keep their order."""
    assert build_batch_mapping([False, True, False, False, True]) == [0, -1, 1, 2, -1]
    assert build_batch_mapping([]) == [] and build_batch_mapping([True]) == [-1]


# --- what the releases do instead -----------------------------------------------------------------


def test_in_place_is_right_where_survivors_keep_their_order() -> None:
    """For each of the 31 such mappings of up to four rows, the moves leave the survivors where
    they belong.
    """
    for flags in (
        flags for old in range(OLD_MAX + 1) for flags in product([False, True], repeat=old)
    ):
        mapping = build_batch_mapping(flags)
        rows = [f"row{slot}" for slot in range(len(flags))]
        new = len(flags) - sum(flags)
        moves = in_place(mapping, [1] * len(flags), new, OLD_MAX)
        for kind in moves:
            assert applied(kind, rows)[:new] == after(mapping, rows)


def test_in_place_tears_a_swap() -> None:
    """[1, 0] of two rows: KV stays (an early return), lengths and states both become those of
    row 0.
    """
    assert in_place([1, 0], [4, 4], 2, OLD_MAX) == Moves((), (RowMove(0, 1),), (RowMove(0, 1),))


def test_in_place_loses_a_row_that_moves_up() -> None:
    """[2, -1, 0] of three rows: row 2 becomes row 0 before it is read, so the third sequence is
    lost.
    """
    moves = in_place([2, -1, 0], [4, 4, 4], 2, OLD_MAX)
    assert moves.states == (RowMove(0, 2),)
    assert applied(moves.states, ["a", "b", "c"]) == ["a", "b", "a"]


def test_in_place_moves_kv_beyond_the_old_batch_and_nothing_else() -> None:
    """A new row in [oldBatch, maxBatch) passes one bound and fails the other: KV moves alone."""
    assert in_place([3, -1], [4, 4], 1, OLD_MAX) == Moves((RowMove(0, 3),), (), ())


def test_in_place_skips_the_kv_of_an_empty_row() -> None:
    """A row without tokens has no KV to copy; its length and states move."""
    moves = in_place([-1, 0], [4, 0], 1, OLD_MAX)
    assert (moves.kv, moves.lengths) == ((), (RowMove(1, 0),))
