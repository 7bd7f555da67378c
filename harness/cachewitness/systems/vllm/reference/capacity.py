"""How long a prompt the reference's pool holds alone, by vLLM's sizing of a request.

Real vLLM checks this at its start and refuses to begin, or shortens `max_model_len`. The pool of a
trace is the harness's, so the length is worked out from it.

Source: vLLM 0.33.0, `v1/core/kv_cache_planning.py`; `v1/kv_cache_interface.py`,
`max_memory_usage_bytes` of each kind.
"""

from __future__ import annotations

from cachewitness_reference.vllm.config import KVCacheConfig
from cachewitness_reference.vllm.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheGroupSpec,
    MambaSpec,
)
from cachewitness_reference.vllm_extended.config import options_of

RUNNING_STATES = 2
"""Blocks of a running request in a recurrent group: the state that it advances from, and the one
that it writes."""


def longest_held(config: KVCacheConfig) -> int:
    """Return the longest prompt, in tokens, that the pool holds alone with a token behind it; 0 if
    there is none.
    """
    least = 0
    most = config.options.max_model_len - 1
    while least < most:
        middle = (least + most + 1) // 2
        # One block of the pool is the null block.
        if sum(_blocks(config, g, middle + 1) for g in config.kv_cache_groups) < config.num_blocks:
            least = middle
        else:
            most = middle - 1
    return least


def _blocks(config: KVCacheConfig, group: KVCacheGroupSpec, tokens: int) -> int:
    """Return the most blocks of a group that a request of so many tokens holds at once."""
    spec = group.kv_cache_spec
    drafts = config.options.num_speculative_tokens
    # A hit inside a block copies it, and the source is kept until the step has run.
    copied = int(config.enable_partial_hash_hits)
    if isinstance(spec, MambaSpec):
        if spec.mamba_cache_mode == "none":
            return 1 + drafts
        pages = options_of(config).pages_per_snapshot
        kept = config.options.async_depth * (1 + drafts)  # of steps in flight
        if spec.mamba_cache_mode == "all":
            return -(-tokens // spec.block_size) + drafts + copied
        return pages * (RUNNING_STATES + kept + copied) + drafts
    ahead = tokens + drafts * (1 + config.options.async_depth)
    if isinstance(spec, FullAttentionSpec):
        return -(-ahead // spec.block_size) + copied
    # All tokens may be in flight, as a trace at manager level asks for any number: a window then
    # keeps all blocks, and one more for its offset.
    return -(-ahead // spec.block_size) + 1 + copied
