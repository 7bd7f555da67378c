"""Faults in how vLLM's cache core counts blocks of which each rank has a part (decode context
parallelism), found at both levels with `context_parallel=2`. Without ranks none of them shows.
"""

from __future__ import annotations

from functools import partial

from cachewitness.engines.mutant import Mutant
from cachewitness.engines.source_edits import Edit, edited
from cachewitness_faults.vllm.modules import SINGLE, UTILS

BASE, FULL = "SingleTypeKVCacheManager", "FullAttentionManager"

fault = partial(edited, level="manager", built=True)

RANKS: tuple[Mutant, ...] = (
    fault(
        Edit(
            SINGLE,
            BASE,
            "__init__",
            "self.dcp_world_size = dcp_world_size if kv_cache_spec.dcp_sharded else 1",
            "self.dcp_world_size = dcp_world_size",
        ),
        name="vllm-states-divided-among-ranks",
        what="Blocks that are whole on each rank are counted as if each rank had a part.",
        anomaly="engine-crashed",
        checker="engine",
        group="B",
    ),
    fault(
        Edit(
            SINGLE,
            FULL,
            "find_longest_cache_hit",
            "hit_length = len(computed_blocks[0]) * block_size",
            "hit_length = len(computed_blocks[0]) * kv_cache_spec.block_size",
        ),
        name="vllm-hit-by-blocks-of-a-rank",
        what="A hit is as long as one rank's parts of its blocks.",
        anomaly="lost-hit",
        checker="reuse-floor",
        group="C",
    ),
    fault(
        Edit(
            SINGLE,
            FULL,
            "find_longest_cache_hit",
            "max_length // block_size",
            "max_length // kv_cache_spec.block_size",
        ),
        name="vllm-hits-bounded-by-blocks-of-a-rank",
        what="Blocks beyond the last token that may be hit are hit.",
        anomaly="nothing-to-compute",
        checker="safety-law",
        group="C",
    ),
    fault(
        Edit(
            SINGLE,
            BASE,
            "cache_blocks",
            "num_full_blocks = min(num_tokens, num_hashed_tokens) // self.block_size",
            "num_full_blocks = min(num_tokens, num_hashed_tokens) // self.kv_cache_spec.block_size",
        ),
        name="vllm-keyed-when-a-rank-is-full",
        what="A block gets its key as soon as it has as many tokens as one rank's part.",
        anomaly="partial-commit",
        checker="commit-order",
        group="D",
    ),
    fault(
        Edit(
            UTILS,
            "",
            "resolve_dcp_kv_block_size",
            "return spec.block_size * (dcp_world_size if spec.dcp_sharded else 1)",
            "return spec.block_size",
        ),
        name="vllm-aligned-by-blocks-of-a-rank",
        what="Where hits may end is worked out from the blocks that one rank has.",
        anomaly="stale-hit",
        checker="safety-law",
        group="C",
    ),
    fault(
        Edit(
            SINGLE,
            BASE,
            "get_num_blocks_to_allocate",
            "num_required_blocks = cdiv(num_tokens, self.block_size)",
            "num_required_blocks = cdiv(num_tokens, self.kv_cache_spec.block_size)",
        ),
        name="vllm-room-asked-by-blocks-of-a-rank",
        what="A request waits for as many blocks as one rank's parts of its tokens would fill.",
        anomaly="no-progress",
        checker="progress",
        group="G",
    ),
)
"""They are planted where there are ranks."""
