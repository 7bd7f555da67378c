"""Pools that say which of their blocks changed: they say all of them, whatever kind of pool it
is.
"""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness.systems.vllm.reference.reporting_pool import observable_manager
from cachewitness_reference.vllm.kv_cache_manager import KVCacheManager
from cachewitness_reference.vllm.request import Request, RequestStatus
from cachewitness_reference.vllm_extended.config import build

GROUPS = [{"kind": "full", "block_size": 4}, {"kind": "recurrent", "block_size": 4}]
TOKENS = list(range(1000, 1100))


def state(manager: KVCacheManager) -> dict[int, tuple[Any, ...]]:
    """Return what an observer compares, by block."""
    return {
        block.block_id: (block.ref_cnt, block.block_hash) for block in manager.block_pool.blocks
    }


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"hash_block_size": 2},
        {"free_list": "lifo"},
        {"pages_per_snapshot": 2},
        {"tier_pages": 8},
    ],
    ids=["plain", "hits inside a block", "free list", "snapshots", "tier"],
)
def test_every_block_that_changed_is_said_to_have(options: dict[str, Any]) -> None:
    """After each call of a manager whose pool is short, the blocks that differ are among those
    that the pool names.
    """
    manager: Any = observable_manager(build(GROUPS, 30, {"retention_interval": None, **options}))
    seen = state(manager)
    changed = 0
    for number in range(24):
        first = number % 3 * 5
        request = Request(
            f"r{number}",
            TOKENS[first : first + 14 + number % 2],
            manager.kv_cache_config.hash_block_size,
        )
        manager.new_step_starts()
        blocks, hit, request.shared_prefix_boundary = manager.get_computed_blocks(request)
        calls = [
            lambda r=request, b=blocks, h=hit: manager.allocate_slots(
                r, 12 - h if h < 12 else 1, h, b
            )
        ]
        calls.append(
            lambda r=request: manager.withdraw(r) if r.request_id.endswith("7") else manager.free(r)
        )
        if number % 10 == 9:
            calls.append(lambda: manager.reset_prefix_cache())
        for call in calls:
            call()
            request.status = RequestStatus.RUNNING
            now = state(manager)
            differ = {block_id for block_id in now if now[block_id] != seen[block_id]}
            assert differ <= set(manager.block_pool.drain_dirty())
            seen, changed = now, changed + len(differ)
    assert changed > 100
