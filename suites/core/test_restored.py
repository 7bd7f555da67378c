"""What a hit brought back, group by group, against pages written by hand."""

from __future__ import annotations

import pytest

from cachewitness.core.events import Group, Header, Hit, Pool
from cachewitness.core.restored import from_tier, loaded, restored

FULL = Group(id=0, kind="full", block_size=4)
STATE = Group(id=1, kind="recurrent", block_size=8)
WIDE = Group(id=2, kind="full", block_size=8)


def header(*groups: Group) -> Header:
    """Return a device whose page 0 is the null block, and a tier beside it."""
    pools = [Pool(id=0, pages=10, null=[0]), Pool(id=1, pages=10, tier="cpu")]
    return Header(engine="by hand", level="scheduler", pools=pools, groups=list(groups))


@pytest.mark.parametrize(
    ("resume", "pages", "expected"),
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
    resume: int, pages: list[list[int]], expected: dict[str, int]
) -> None:
    """Of two groups of a kind, the one that got least counts; columns further left may be null."""
    hit = Hit(r="a", reported=resume, resume=resume, pages=pages)
    assert restored(header(FULL, STATE, WIDE), hit) == expected


@pytest.mark.parametrize(
    ("resume", "aside", "expected"),
    [
        (8, [[-1, 4], [5]], {"full": 8, "recurrent": 8}),
        (8, [[3, -1], [5]], {"full": 0, "recurrent": 8}),
        (7, [[3, 4], [-1]], {"full": 7, "recurrent": 0}),
        (8, [[], []], {"full": 0, "recurrent": 0}),
        (0, [[], []], {"full": 0, "recurrent": 0}),
    ],
)
def test_group_comes_from_a_tier_if_its_last_column_was_fetched_there(
    resume: int, aside: list[list[int]], expected: dict[str, int]
) -> None:
    """Pages of the device beside it are not counted, whatever they hold."""
    copies = [
        Group(id=2, kind="full", block_size=4, pool=1, source_group=0),
        Group(id=3, kind="recurrent", block_size=8, pool=1, source_group=1),
    ]
    hit = Hit(r="a", reported=resume, resume=resume, pages=[[6, 7], [8], *aside], tier="cpu")
    assert from_tier(header(FULL, STATE, *copies), hit) == expected


@pytest.mark.parametrize(
    ("stop", "aside", "expected"),
    [
        (8, [[3, 4], [-1]], 8),
        (8, [[-1, 4], [-1]], 4),
        (7, [[-1, 4], [-1]], 3),
        (8, [[-1, 4], [5]], 8),
        (8, [[], []], 0),
    ],
)
def test_tokens_are_loaded_that_lie_in_a_block_from_elsewhere_of_any_group(
    stop: int, aside: list[list[int]], expected: int
) -> None:
    """Each counts once, whatever groups have it."""
    copies = [
        Group(id=2, kind="full", block_size=4, pool=1, source_group=0),
        Group(id=3, kind="recurrent", block_size=8, pool=1, source_group=1),
    ]
    hit = Hit(r="a", reported=8, resume=7, pages=[[6, 7], [8], *aside], tier="cpu")
    assert loaded(header(FULL, STATE, *copies), hit, stop) == expected
