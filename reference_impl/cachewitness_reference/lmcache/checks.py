"""What is refused when an engine starts with LMCache behind it, in LMCache's own words.

Each check raises before anything is cached. One is missing on purpose, because LMCache has none:
nobody asks whether object groups are separate for a recurrent model, though without that a step
over several blocks stores nothing that can be served.

Sources: `integration/vllm/lmcache_mp_connector.py`, `kv_cache_group_edits.py`,
`vllm_multi_process_adapter.py` (0.5.6); the texts of earlier releases from those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cachewitness_reference.lmcache.groups import LayerSpec
from cachewitness_reference.lmcache.spec import NEWEST, RELEASES


class StartupError(ValueError):
    """The engine and the server do not fit; the message is LMCache's own line."""


def validate_mamba_step_alignment(
    max_num_batched_tokens: int,
    mamba_block_sizes: Sequence[int],
    mamba_cache_mode: str = "align",
    release: str = NEWEST,
) -> None:
    """Refuse a budget with which steps do not end where states are needed. Only mode `align` is
    constrained.
    """
    if mamba_cache_mode != "align" or not mamba_block_sizes:
        return
    sizes = sorted(set(mamba_block_sizes))
    if len(sizes) > 1:
        raise StartupError(
            f"All Mamba KV cache groups must use one physical block size; got {sizes}."
        )
    block = sizes[0]
    budget = max_num_batched_tokens
    if RELEASES[release].step_below_two_blocks and not block <= budget < 2 * block:
        raise StartupError(
            "Mamba-hybrid models with LMCache require block_size <= max_num_batched_tokens < 2 *"
            " block_size so every prefill step advances exactly one block and every block boundary"
            f" gets a state snapshot; got max_num_batched_tokens={budget}, block_size={block}. Set"
            f" --max-num-batched-tokens {block}."
        )
    if budget < block:
        raise StartupError(
            "Mamba-hybrid models with LMCache require max_num_batched_tokens >= block_size so"
            " every prefill step advances at least one full block; got"
            f" max_num_batched_tokens={budget}, block_size={block}. Set --max-num-batched-tokens to"
            f" at least {block}."
        )


def validate_kv_cache_groups(groups: Sequence[Sequence[LayerSpec]], release: str = NEWEST) -> None:
    """Refuse groups that cannot be moved or have no reusable states, all of them in one line."""
    modes = RELEASES[release].mamba_modes
    keep = (
        "only "
        + " and ".join(f"'{mode}'" for mode in modes)
        + (" keeps" if len(modes) == 1 else " keep")
    )
    refused = []
    for index, specs in enumerate(groups):
        for spec in specs:
            if spec.kind == "cross":
                refused.append(f"group {index}: CrossAttentionSpec")
            elif spec.kind == "mamba" and spec.mamba_cache_mode not in modes:
                mode = f"MambaSpec with mamba_cache_mode='{spec.mamba_cache_mode}'"
                refused.append(f"group {index}: {mode} ({keep} reusable state snapshots)")
    if refused:
        raise StartupError(
            "LMCache cannot serve this model's KV cache groups: "
            + "; ".join(refused)
            + ". See lmcache/integration/vllm/kv_cache_group_edits.py."
        )


def validate_chunk_size(chunk_size: int, tokens_per_block: Sequence[int]) -> None:
    """Refuse a chunk that does not end where every group has a block end. 0 stands for a group
    that is never cached.
    """
    cached = [tokens for tokens in tokens_per_block if tokens > 0]
    if not cached or min(tokens_per_block) < 0:
        raise StartupError(
            f"group tokens_per_block {list(tokens_per_block)} must be non-negative with at least"
            " one cacheable group"
        )
    span = math.lcm(*cached)
    if chunk_size % span:
        raise StartupError(
            f"LMCache chunk size {chunk_size} must be a multiple of {span} (the vLLM block size"
            f" scaled by decode_context_parallel_size). Set --chunk-size to a multiple of {span}."
        )


def validate_group_spans(chunk_size: int, tokens_per_block: Sequence[int]) -> None:
    """Refuse a chunk that is no multiple of some group's block, naming the group."""
    for group, tokens in enumerate(tokens_per_block):
        if tokens and chunk_size % tokens:
            raise StartupError(
                f"LMCache chunk size {chunk_size} must be a multiple of group {group}"
                f" tokens_per_block {tokens}"
            )


def validate_registration(chunk_size: int, tokens_per_block: Sequence[int]) -> None:
    """Refuse the same where a worker registers its pages."""
    for group, tokens in enumerate(tokens_per_block):
        if tokens and chunk_size % tokens:
            raise StartupError(
                f"LMCache chunk size {chunk_size} must be a multiple of engine group {group}"
                f" tokens_per_block {tokens}"
            )


def validate_servers(chunk_sizes: Sequence[int]) -> None:
    """Refuse servers that cut prompts differently."""
    if len(set(chunk_sizes)) > 1:
        raise StartupError(
            f"All LMCache servers must share the same chunk_size, got {set(chunk_sizes)}"
        )


def validate_transfer(num_groups: int, *, engine_driven: bool) -> None:
    """Refuse several groups where the engine moves the pages itself: only LMCache's own transfer
    knows groups.
    """
    if engine_driven and num_groups > 1:
        raise StartupError("engine-driven transfer does not support hybrid KV cache groups")
