"""The groups that vLLM makes of a model: a layout, by the arithmetic of
`cachewitness_reference.vllm.sizing`.

Sources (vLLM 0.33.0): `v1/core/kv_cache_planning.py`, `get_kv_cache_groups`; `config/cache.py`,
DEFAULT_BLOCK_SIZE.
"""

from __future__ import annotations

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import GroupSpec, Layout
from cachewitness.plan.hybrid import hybrid_of, is_hybrid
from cachewitness.workloads.model import Full, Latent, Model, Recurrent, Sliding
from cachewitness_reference.vllm.sizing import block_alignment, deal_layers, unified_block_size

DEFAULT_BLOCK = 16
"""Tokens in a block of a model without recurrent layers, and the least block of one that has them.
"""
LATENT_BLOCK = 64
"""The same where attention keeps latent vectors alone: what the kernels take that vLLM chooses on
Hopper (FlashMLA, v1/attention/backends/mla/flashmla.py). Other kernels take 16 (Triton), 32
(FlashInfer) or 128 (CUTLASS)."""


def layout_of(model: Model, named: str, name: str = "") -> Layout:
    """Return the layout that vLLM makes of a model on one rank; `named` is the option that named
    it, for messages.

    Raises UsageError for layers that these rules do not fit.
    """
    block = _hybrid_block(model, named) if is_hybrid(model) else _block(model, named)
    dealt = deal_layers([cache.layers for cache in model.caches])
    groups = [
        _group(cache, block, layers)
        for cache, sizes in zip(model.caches, dealt, strict=True)
        for layers in sizes
    ]
    return Layout(name or model.checkpoint, groups)


def _hybrid_block(model: Model, named: str) -> int:
    hybrid = hybrid_of(model, 1, named)
    alignment = block_alignment(
        DEFAULT_BLOCK, latent=hybrid.latent, checkpoint_alignment=model.checkpoint_alignment
    )
    return unified_block_size(hybrid.token_bytes, hybrid.state_bytes, alignment)


def _block(model: Model, named: str) -> int:
    if model.latent_alone:
        return LATENT_BLOCK
    pages = {cache.token_bytes for cache in model.caches if isinstance(cache, Full | Sliding)}
    if len(pages) != 1 or not all(isinstance(cache, Full | Sliding) for cache in model.caches):
        raise UsageError(
            f"{named}: model.caches: groups are worked out for attention layers whose tokens weigh"
            " the same"
        )
    return DEFAULT_BLOCK


def _group(cache: object, block: int, layers: int) -> GroupSpec:
    if isinstance(cache, Recurrent):
        return GroupSpec("recurrent", block, layers=layers)
    if isinstance(cache, Sliding):
        return GroupSpec("sliding", block, layers=layers, window=cache.window)
    assert isinstance(cache, Full | Latent)
    return GroupSpec("full", block, layers=layers)
