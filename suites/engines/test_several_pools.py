"""A manager whose groups lie in several pools shows each of them; groups that repeat another's
blocks have its keys.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.events import Event, KvCleared, KvRemoved, Rules
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines.cache_state import Claim, Count
from cachewitness.engines.observe import ObservedManager
from cachewitness.engines.several_pools import SeveralPoolsState, pools_of, shared
from cachewitness.systems.vllm.header import describe, with_pools
from cachewitness.workloads import layouts


def pool(*held: int, keys: dict[int, bytes] | None = None, pages: int = 4) -> Any:
    """Return a pool of so many pages, the first of them null: `held` of pages 1, 2, … how often."""
    keys = keys or {}
    counts = [0, *held, *[0] * (pages - 1 - len(held))]
    blocks = [
        SimpleNamespace(
            block_id=page,
            is_null=page == 0,
            ref_cnt=count,
            block_hash=keys.get(page),
            block_hash_num_tokens=16 if page in keys else None,
        )
        for page, count in enumerate(counts)
    ]
    return SimpleNamespace(
        blocks=blocks,
        get_num_free_blocks=lambda: sum(not one.ref_cnt for one in blocks[1:]),
    )


def group(of: Any, **tables: list[int]) -> Any:
    rows = {r: [of.blocks[page] for page in pages] for r, pages in tables.items()}
    return SimpleNamespace(block_pool=of, req_to_blocks=rows)


def repeated(of: Any) -> Any:
    """Return another pool over the same blocks."""
    return SimpleNamespace(blocks=of.blocks, get_num_free_blocks=of.get_num_free_blocks)


ATTENTION = pool(1, 1, keys={1: b"a0", 3: b"b0"})
STATES = pool(3, keys={1: b"s1"}, pages=3)
MANAGERS = [
    group(ATTENTION, r=[1, 2]),
    group(STATES, r=[1]),
    group(again := repeated(STATES), r=[1]),
    group(again, r=[1]),
]


def of(managers: list[Any]) -> SeveralPoolsState:
    return SeveralPoolsState(managers, pools_of(managers), group_of)


def group_of(key: bytes) -> int:
    return int(key[-1:])


@pytest.fixture
def state() -> SeveralPoolsState:
    return of(MANAGERS)


def test_groups_of_one_pool_share_it_and_groups_that_repeat_have_their_own() -> None:
    alike = [group(ATTENTION), group(ATTENTION)]
    assert pools_of(alike) == [0, 0] and shared(alike, ATTENTION)
    assert pools_of([*alike, group(STATES)]) == [0, 0, 2]
    assert pools_of(MANAGERS) == [0, 2, 3, 4] and not shared(MANAGERS, ATTENTION)
    assert not shared([group(STATES)], ATTENTION), "states alone, beside a pool of attention"
    assert shared(alike, repeated(ATTENTION)), "a pool that is wrapped"


def test_each_pool_has_its_null_page_its_size_and_its_counts(state: SeveralPoolsState) -> None:
    assert state.null() == {0: [0], 2: [0], 3: [0], 4: [0]}
    assert state.sizes() == {0: 4, 2: 3, 3: 3, 4: 3}
    assert state.counts()[0] == Count(free=0, held=2, cached=1)
    assert {state.counts()[number] for number in (2, 3, 4)} == {Count(free=1, held=1, cached=0)}
    assert state.tables("r") == [[1, 2], [1], [1], [1]] and state.tables("s") == [[], [], [], []]
    assert state.fullest() == 0


def test_a_key_is_one_of_each_group_that_repeats_its_own(state: SeveralPoolsState) -> None:
    assert state.keys() == {
        (0, 1, b"a0"): Claim(16),
        (0, 3, b"b0"): Claim(16),
        **{(index, 1, b"s1"): Claim(16) for index in (1, 2, 3)},
    }


def test_a_key_of_a_group_that_there_is_not_is_shown_as_it_is() -> None:
    """It is for those to refuse who read it."""
    assert [*of([group(ATTENTION), group(pool(1, keys={1: b"s7"}))]).keys()][-1] == (7, 1, b"s7")


def test_routers_are_not_asked_of_groups_that_repeat(state: SeveralPoolsState) -> None:
    """What they were told of the first of them counts for all; a reset is one."""
    events: list[Event] = [KvCleared(step=1), KvRemoved(step=1, group=1, hashes=["s"])]
    each = state.each_group([*events, KvRemoved(step=1, group=0, hashes=["a"])])
    assert [getattr(event, "group", None) for event in each] == [None, 1, 2, 3, 0]


def test_groups_that_repeat_hold_a_block_together(state: SeveralPoolsState) -> None:
    """One reference a group; what does not come out even is shown as it is."""
    assert state.references(0, 1) == 1 and state.references(2, 1) == 1
    uneven = pool(2, pages=3)
    managers = [group(ATTENTION), group(uneven), group(again := repeated(uneven)), group(again)]
    assert of(managers).references(3, 1) == 2


def observed(*, drafts: int = 0, partial: bool = False, tiered: bool = False) -> ObservedManager:
    """Return the observer of a manager with a pool of attention and one of states."""
    managers = [group(ATTENTION), group(STATES)]
    managers[1].num_speculative_blocks = drafts
    coordinator = SimpleNamespace(single_type_managers=managers, enable_partial_hash_hits=partial)
    manager = SimpleNamespace(block_pool=ATTENTION, coordinator=coordinator)
    return ObservedManager(manager, group_of, tiered=tiered)


HEADER = describe(TraceHeader("t", layouts.load("full-mamba"), 4), "vllm", "0", Rules())


def test_the_header_has_the_pools_of_the_groups() -> None:
    header = with_pools(HEADER, observed())
    assert [(pool.id, pool.pages) for pool in header.pools] == [(0, 4), (2, 3)]
    assert [one.pool for one in header.groups] == [0, 2]


@pytest.mark.parametrize("what", ["drafts", "partial", "tiered"])
def test_what_is_not_driven_with_several_pools_is_refused(what: str) -> None:
    """What is copied there does not say in which pool it is."""
    with pytest.raises(UsageError, match="several block pools are not driven"):
        with_pools(HEADER, observed(**{what: True}))
