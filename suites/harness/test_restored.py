"""What a hit brought back, group by group, against slots written by hand."""

from __future__ import annotations

import pytest

from harness.history import Group, Hit
from harness.restored import restored

FULL = Group(id=0, kind="full", block_size=4)
STATE = Group(id=1, kind="recurrent", block_size=8)
WIDE = Group(id=2, kind="full", block_size=8)


@pytest.mark.parametrize(
    ("resume", "slots", "expected"),
    [
        (8, [[3, 4], [5], [6]], {"full": 8, "recurrent": 8}),
        (8, [[3, 4], [0], [6]], {"full": 8, "recurrent": 0}),
        (8, [[3, 4], [5], [0]], {"full": 0, "recurrent": 8}),
        (8, [[3], [5], [6]], {"full": 0, "recurrent": 8}),
        (8, [[0, 4], [5], [6]], {"full": 8, "recurrent": 8}),
        (12, [[3, 4, 7], [0, 5], [6, 8]], {"full": 12, "recurrent": 12}),
        (0, [[], [], []], {"full": 0, "recurrent": 0}),
    ],
)
def test_group_restores_up_to_the_hit_if_its_last_column_is_there(
    resume: int, slots: list[list[int]], expected: dict[str, int]
) -> None:
    """Of two groups of a kind, the one that got least counts; columns further left may be null."""
    hit = Hit(r="a", reported=resume, resume=resume, slots=slots)
    assert restored([FULL, STATE, WIDE], hit) == expected
