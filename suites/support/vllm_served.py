"""Requests served one after the other by the reference of vLLM: what each hits, and where its
groups can be hit afterwards.
"""

from __future__ import annotations

from typing import Any

from cachewitness_reference.vllm.config import build
from cachewitness_reference.vllm.kv_cache_manager import KVCacheManager
from cachewitness_reference.vllm.request import Request
from cachewitness_reference.vllm.scheduler import Scheduler


class Seven:
    """Generates 7 and guesses nothing."""

    def draft(self, request: Request, count: int) -> list[int]:
        return []

    def sample(self, request: Request, drafts: list[int]) -> list[int]:
        return [7]


def scheduler(groups: list[dict[str, Any]], **options: Any) -> Scheduler:
    """Return the reference with 200 blocks and steps of 16 tokens."""
    config = build(groups, 200, {"max_num_batched_tokens": 16, **options})
    return Scheduler(config, KVCacheManager(config), Seven())


def serve(engine: Scheduler, name: str, tokens: list[int], generate: int = 1) -> tuple[int, int]:
    """Run one request to its end; return its hit and its shared-prefix boundary."""
    request = Request(name, tokens, engine.config.hash_block_size)
    engine.add_request(request)
    hit = -1
    while request.num_output_tokens < generate:
        output = engine.schedule()
        if hit < 0:
            hit = request.num_computed_tokens - output.num_scheduled_tokens[name]
        engine.update_from_output(output)
    engine.finish_requests([name])
    return hit, request.shared_prefix_boundary


def boundaries(engine: Scheduler, group: int) -> list[int]:
    """Return the lengths at which a group can be hit."""
    blocks = engine.kv_cache_manager.block_pool.blocks
    return sorted(
        b.block_hash_num_tokens or 0 for b in blocks if b.block_hash and b.block_hash[-1] == group
    )
