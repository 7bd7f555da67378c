"""Block tables in the device's space: what is kept from step to step is what the whole row would
give, for less work.
"""

from __future__ import annotations

import random
from array import array

import pytest

from cachewitness.toy.device import PlacedTables


class Asked(list[int]):
    """A space that counts how many of its pages are asked for."""

    count = 0

    def __getitem__(self, page: int) -> int:  # type: ignore[override]
        self.count += 1
        return super().__getitem__(page)


@pytest.mark.parametrize("seed", range(20))
def test_rows_that_change_anyhow_are_those_placed_from_nothing(seed: int) -> None:
    """They grow, lose their front as windows do, shrink, are exchanged, and are one list that
    the engine changes in place.
    """
    chance = random.Random(seed)
    space = [7 * page for page in range(50)]
    placed = PlacedTables([space, space])
    rows = [list[int](), list[int]()]
    for _ in range(60):
        row = chance.choice(rows)
        row += [chance.randrange(50) for _ in range(chance.randrange(3))]
        if row and chance.random() < 0.3:
            row[chance.randrange(len(row))] = chance.choice([-1, 0, 9])
        if chance.random() < 0.1:
            del row[len(row) // 2 :]
        r = chance.choice("ab")
        exact = [[space[page] if page >= 0 else 0 for page in row] for row in rows]
        assert [list(row) for row in placed.of(r, rows)] == exact
        if chance.random() < 0.1:
            placed.forget(r)


def test_what_was_returned_does_not_change_with_the_row() -> None:
    placed = PlacedTables([[0, 10, 20, 30]])
    row = [1, 2]
    (first,) = placed.of("r", [row])
    row.append(3)
    (second,) = placed.of("r", [row])
    assert (first, second) == (array("i", [10, 20]), array("i", [10, 20, 30]))


def test_a_step_of_decoding_places_at_most_one_page_of_a_row() -> None:
    space = Asked(range(5000))
    placed = PlacedTables([space])
    row = list(range(1, 4000))
    placed.of("r", [row])
    space.count = 0
    placed.of("r", [list(row)])
    assert space.count == 0
    placed.of("r", [[*row, 4500]])
    assert space.count == 1
    placed.of("r", [[0, *row[1:], 4500]])
    assert space.count == 1 + 4000
