"""The look-up fold against an oracle that knows nothing of runs, and the cases that are hard for
it.
"""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachewitness_reference.lmcache.fold import fold, servable_lengths, unfold

FULL = -1


def needed(length: int, window: int) -> set[int]:
    """Return by the definition which chunks a group must have for a prefix of so many."""
    return {chunk for chunk in range(length) if window <= 0 or chunk >= length - window}


def by_definition(rows: list[list[bool]], windows: list[int]) -> list[int]:
    """Return every servable length, each tried on its own."""
    held = [{chunk for chunk, present in enumerate(row) if present} for row in rows]
    lengths = range(1, len(rows[0]) + 1)
    return [
        n
        for n in lengths
        if all(needed(n, w) <= have for have, w in zip(held, windows, strict=True))
    ]


@st.composite
def looked_up(draw: st.DrawFn) -> tuple[list[list[bool]], list[int]]:
    """Rows of up to 12 chunks, mostly present, for up to 5 groups with windows of any kind."""
    chunks = draw(st.integers(0, 12))
    groups = draw(st.integers(1, 5))
    present = st.lists(st.sampled_from([True, True, True, False]), min_size=chunks, max_size=chunks)
    rows = draw(st.lists(present, min_size=groups, max_size=groups))
    return rows, draw(
        st.lists(st.sampled_from([FULL, 0, 1, 2, 3, 20]), min_size=groups, max_size=groups)
    )


@settings(max_examples=400, deadline=None)
@given(looked_up())
def test_servable_lengths_are_those_of_the_definition(
    case: tuple[list[list[bool]], list[int]],
) -> None:
    rows, windows = case
    servable = by_definition(rows, windows)
    assert [
        index + 1 for index, fits in enumerate(servable_lengths(rows, windows)) if fits
    ] == servable
    assert fold(rows, windows) == max(servable, default=0)


@settings(max_examples=200, deadline=None)
@given(looked_up())
def test_what_is_retained_serves_the_hit_and_nothing_less_does(
    case: tuple[list[list[bool]], list[int]],
) -> None:
    """The chunks retained of each row suffice for the hit, and without any one of them it is
    gone.
    """
    rows, windows = case
    hit = fold(rows, windows)
    kept = [
        [chunk in unfold(hit, window) for chunk in range(len(row))]
        for row, window in zip(rows, windows, strict=True)
    ]
    assert hit == 0 or servable_lengths(kept, windows)[hit - 1]
    for row, window in enumerate(windows):
        for chunk in unfold(hit, window):
            less = [list(other) for other in kept]
            less[row][chunk] = False
            assert not servable_lengths(less, windows)[hit - 1]


def test_every_presence_of_two_groups_in_five_chunks() -> None:
    """All 1024 cases of attention and states."""
    for bits in product([False, True], repeat=10):
        rows = [list(bits[:5]), list(bits[5:])]
        assert fold(rows, [FULL, 1]) == max(by_definition(rows, [FULL, 1]), default=0)


def test_servable_lengths_are_not_monotone() -> None:
    """With attention everywhere and states at 2 and 5, five chunks are servable, four and three
    are not, two are.
    """
    rows = [[True] * 6, [False, True, False, False, True, False]]
    assert [index + 1 for index, fits in enumerate(servable_lengths(rows, [FULL, 1])) if fits] == [
        2,
        5,
    ]
    assert fold(rows, [FULL, 1]) == 5


def test_full_attention_alone_has_the_leading_run_of_what_all_rows_have() -> None:
    """The special case: the leading ones of the conjunction."""
    rows = [[True, True, True, False, True], [True, True, False, True, True]]
    assert fold(rows, [FULL, FULL]) == 2


def test_holes_outside_a_window_are_irrelevant() -> None:
    row = [False, False, True, True]
    assert fold([row, [True] * 4], [2, FULL]) == 4
    assert fold([row, [True] * 4], [3, FULL]) == 0


def test_a_window_wider_than_the_prefix_needs_all_of_it() -> None:
    assert fold([[True, True]], [3]) == 2
    assert fold([[False, True]], [3]) == 0


@pytest.mark.parametrize(
    ("rows", "windows"), [([[]], [FULL]), ([[], []], [FULL, 1]), ([[False]], [1])]
)
def test_nothing_there_is_no_hit(rows: list[list[bool]], windows: list[int]) -> None:
    """Of the empty prefix nothing is servable, and bit 0 is not set for it."""
    assert fold(rows, windows) == 0


@pytest.mark.parametrize(
    ("hit", "window", "expected"),
    [
        (5, FULL, range(5)),
        (5, 2, range(3, 5)),
        (5, 1, range(4, 5)),
        (1, 3, range(1)),
        (0, 2, range(0)),
    ],
)
def test_retained_is_the_window_before_the_hit(hit: int, window: int, expected: range) -> None:
    assert list(unfold(hit, window)) == list(expected)
