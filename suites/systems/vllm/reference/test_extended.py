"""What is added to vLLM for testing: when it is used at all, what is refused, other free lists,
snapshots of several pages.
"""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness_reference.primitives import GroupId
from cachewitness_reference.vllm.block_pool import BlockPool
from cachewitness_reference.vllm.config import AbsentRule, ConfigError
from cachewitness_reference.vllm.key_index import KVCacheBlock
from cachewitness_reference.vllm.kv_cache_manager import KVCacheManager
from cachewitness_reference.vllm.mamba import MambaManager
from cachewitness_reference.vllm.request import Request, RequestStatus
from cachewitness_reference.vllm_extended.assemble import get_kv_cache_manager
from cachewitness_reference.vllm_extended.config import FreeList, build
from cachewitness_reference.vllm_extended.free_list import OrderedPool
from cachewitness_reference.vllm_extended.snapshots import SnapshotBlock, SnapshotPool

FULL = {"kind": "full", "block_size": 16}
MAMBA = {"kind": "recurrent", "block_size": 16}
SMALL = {"kind": "full", "block_size": 4}
TOKENS = list(range(100, 300))


def manager(groups: list[dict[str, Any]], num_blocks: int = 100, **options: Any) -> KVCacheManager:
    return get_kv_cache_manager(build(groups, num_blocks, {"retention_interval": None, **options}))


def test_who_asks_for_nothing_gets_vllm_itself() -> None:
    """Without an option of ours every part is vLLM's own class, not a subclass of it."""
    m = manager([FULL, MAMBA])
    parts: list[object] = [
        m,
        m.block_pool,
        m.block_pool.blocks[1],
        m.coordinator.single_type_managers[1],
    ]
    assert [type(part) for part in parts] == [KVCacheManager, BlockPool, KVCacheBlock, MambaManager]


@pytest.mark.parametrize(
    ("groups", "options", "kind", "names"),
    [
        ([FULL], {"pages_per_snapshot": 2}, ConfigError, "pages_per_snapshot"),
        (
            [FULL, MAMBA],
            {"pages_per_snapshot": 2, "hash_block_size": 8},
            AbsentRule,
            "pages_per_snapshot",
        ),
        ([FULL, MAMBA], {"pages_per_snapshot": 0}, ConfigError, "pages_per_snapshot"),
        (
            [FULL, MAMBA],
            {"pages_per_snapshot": 2, "num_speculative_tokens": 2},
            AbsentRule,
            "pages_per_snapshot",
        ),
        ([FULL], {"free_list": "random"}, ConfigError, "free_list"),
        ([FULL], {"tier_pages": -1}, ConfigError, "tier_pages"),
        ([FULL], {"tier_pages": 4, "enable_caching": False}, ConfigError, "enable_caching"),
        ([FULL, MAMBA], {"tier_pages": 4, "hash_block_size": 2}, AbsentRule, "hash_block_size"),
        (
            [FULL, MAMBA],
            {"tier_pages": 4, "pages_per_snapshot": 2},
            AbsentRule,
            "pages_per_snapshot",
        ),
        ([FULL], {"kv_connector": 1}, AbsentRule, "connector"),
        ([FULL], {"tier": 1}, ConfigError, "tier_pages"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(
    groups: list[dict[str, Any]], options: dict[str, Any], kind: type[ConfigError], names: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        build(groups, 20, options)
    assert type(refusal.value) is kind
    assert names in str(refusal.value) and "\n" not in str(refusal.value)


# --- free lists -----------------------------------------------------------------------------------


def keyed(of: BlockPool) -> tuple[Request, list[KVCacheBlock]]:
    """Take two blocks and key them as eight tokens."""
    request = Request("r", list(range(8)), 4)
    blocks = of.get_new_blocks(2)
    of.cache_full_blocks(request, blocks, 0, 2, 4, GroupId(0))
    return request, blocks


def test_a_queue_in_order_of_return_does_not_look_at_keys() -> None:
    """Blocks 1 and 2 have keys, 3 and 4 have none; all four are given back in one go, keyed ones
    in between, then block 5.
    """
    waiting = {}
    orders: tuple[FreeList, ...] = ("fifo", "lifo")
    for free_list in orders:
        p = OrderedPool(8, 4, free_list=free_list)
        _, blocks = keyed(p)
        scratch = p.get_new_blocks(2)
        (other,) = p.get_new_blocks(1)
        p.free_blocks([scratch[1], blocks[1], scratch[0], blocks[0]])
        p.free_blocks([other])
        waiting[free_list] = list(p.free_block_queue)
    assert waiting == {"fifo": [6, 7, 4, 2, 3, 1, 5], "lifo": [5, 4, 2, 3, 1, 6, 7]}


# --- snapshots of several pages -------------------------------------------------------------------


def test_a_snapshot_of_three_pages_is_held_keyed_and_evicted_as_one() -> None:
    p = SnapshotPool(8, 4)
    request = Request("r", [1, 2, 3, 4], 4)
    (snapshot,) = p.get_new_blocks(1)
    p.take_extra_pages(snapshot, 2)
    assert isinstance(snapshot, SnapshotBlock)
    p.cache_full_blocks(request, [snapshot], 0, 1, 4, GroupId(0))
    pages = [snapshot, *snapshot.extra_pages]
    assert [page.ref_cnt for page in pages] == [1, 1, 1]
    assert {page.block_hash for page in pages} == {snapshot.block_hash}
    assert [page.primary for page in pages] == [None, snapshot, snapshot]
    p.free_blocks([snapshot])
    assert list(p.free_block_queue) == [4, 5, 6, 7, 1, 2, 3]
    p.get_new_blocks(5)
    assert p.get_cached_block(request.block_hashes[0], [GroupId(0)]) is None
    assert all(
        page.block_hash is None and page.primary is None and not page.extra_pages for page in pages
    )
    assert list(p.free_block_queue) == [2, 3], "the other pages are free, and go first"


def test_snapshots_of_several_pages_take_as_many_blocks() -> None:
    m = manager([FULL, MAMBA], pages_per_snapshot=3)
    r = Request("r", TOKENS[:64], 16)
    for _ in range(2):
        m.new_step_starts()
        assert m.allocate_slots(r, 16) is not None
        r.num_computed_tokens, r.status = r.num_computed_tokens + 16, RequestStatus.RUNNING
    assert m.block_pool.get_num_free_blocks() == 99 - 2 - 2 * 3
    m.free(r)
    assert m.block_pool.get_num_free_blocks() == 99
    m.new_step_starts()
    assert m.get_computed_blocks(Request("probe", TOKENS[:64], 16))[1] == 32


def test_a_state_that_does_not_fit_with_all_its_pages_is_not_allocated() -> None:
    m = manager([FULL, MAMBA], num_blocks=5, pages_per_snapshot=4)
    r = Request("r", TOKENS[:8], 16)
    m.new_step_starts()
    assert m.allocate_slots(r, 8) is None
    assert m.block_pool.get_num_free_blocks() == 4
