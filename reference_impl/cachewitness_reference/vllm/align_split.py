"""Where a prefill chunk ends when recurrent states are cached (`align` mode).

A state exists only where a chunk ends, so chunk ends are steered: onto block boundaries, and no
further than the next place where a state is wanted. Wanted are the last boundary at which the
request can be resumed, the prompt's tail inside its block when hits may end there, and the
shared-prefix boundary. A chunk that reaches the end of the prefill may end anywhere: the column it
stops in is advanced by decoding. A block wider than a whole step is reached in several, on a
private running state.

Source: vLLM, `v1/core/sched/scheduler.py`, `Scheduler._mamba_block_aligned_split` (0.33.0).
Releases before 0.32 stop at the last boundary of the prompt rather than the last one at which it
can be resumed; here every release stops as 0.33 does.
"""

from __future__ import annotations

from cachewitness_reference.vllm.config import KVCacheConfig
from cachewitness_reference.vllm.mamba import get_mamba_prefill_checkpoint_position
from cachewitness_reference.vllm.request import Request


def mamba_block_aligned_split(
    start: int,
    num_new_tokens: int,
    *,
    num_prompt_tokens: int,
    num_tokens: int,
    block_size: int,
    hash_block_size: int,
    partial_hits: bool,
    use_eagle: bool,
    shared_prefix_boundary: int,
    max_prefill_tokens: int,
) -> int:
    """Return how many of `num_new_tokens` tokens from `start` on to compute in this step; 0 puts
    the request off.

    `block_size` is the Mamba groups', `shared_prefix_boundary` the request's shared-prefix boundary
    (0: none), `max_prefill_tokens` what a step can compute at most.
    """
    # Generated tokens that are computed again after a preemption are prefill too.
    prefill_end = max(num_prompt_tokens, num_tokens - 1)
    if start >= prefill_end:
        return num_new_tokens
    end = start + num_new_tokens
    if end < prefill_end:
        aligned_end = end // block_size * block_size
        if aligned_end > start or block_size <= max_prefill_tokens:
            end = aligned_end

    stops: list[int] = [get_mamba_prefill_checkpoint_position(num_tokens, block_size, use_eagle)]
    if start % block_size:
        stops.append(start // block_size * block_size + block_size)
    if partial_hits:
        tail = get_mamba_prefill_checkpoint_position(num_prompt_tokens, hash_block_size, use_eagle)
        if stops[0] < tail < num_prompt_tokens:
            stops.append(tail)
    if start < shared_prefix_boundary < end:
        stops.append(start + (shared_prefix_boundary - start) // block_size * block_size)
    end = min((stop for stop in stops if start < stop < end), default=end)
    return max(end - start, 0)


def split_for(
    config: KVCacheConfig,
    request: Request,
    num_new_tokens: int,
    num_new_computed_tokens: int,
    max_prefill_tokens: int,
) -> int:
    """Return how many tokens of a request to compute in this step under a configuration.

    `num_new_computed_tokens` is what it has just hit; `max_prefill_tokens` as above.
    """
    if not config.has_mamba_layers or config.options.mamba_cache_mode != "align":
        return num_new_tokens
    return mamba_block_aligned_split(
        request.num_computed_tokens + num_new_computed_tokens,
        num_new_tokens,
        num_prompt_tokens=request.num_prompt_tokens,
        num_tokens=request.num_tokens,
        block_size=config.mamba_block_size,
        hash_block_size=config.hash_block_size,
        partial_hits=config.enable_partial_hash_hits
        and config.hash_block_size < config.mamba_block_size,
        use_eagle=config.options.use_eagle,
        shared_prefix_boundary=request.shared_prefix_boundary,
        max_prefill_tokens=max_prefill_tokens,
    )
