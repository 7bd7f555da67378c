"""The layers of a named model, as vLLM's own specifications of what each keeps.

What a model's code decides itself, and no sizing rule, is read from its layout: the blocks of
DeepSeek-V4's windows and compressors, and the block that an attention backend for latent vectors
asks for. The block of a model with recurrent states is raised by vLLM's own rule until a page holds
a state.

Sources: vLLM 0.33.0, `v1/kv_cache_interface.py`; `platforms/interface.py`,
`_align_hybrid_block_size`; `models/deepseek_v4/attention.py`, `compressor.py`;
`model_executor/layers/mamba/abstract.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import Layout
from cachewitness.systems.vllm.build import fill, settle
from cachewitness.systems.vllm.source import Source
from cachewitness.workloads.model import (
    Compressor,
    Full,
    Indexer,
    Latent,
    Model,
    Recurrent,
    Sliding,
)
from cachewitness_reference.vllm.config import Options

DEFAULT_BLOCK = 16
"""`CacheConfig.DEFAULT_BLOCK_SIZE`."""
PACKED_ALIGNMENT = 576
"""Bytes to whose multiples pages of packed vectors (uint8) are rounded up (`models/deepseek_v4`,
`kv_page_alignment`)."""
GRID = "get_mamba_prefill_checkpoint_alignment"
DTYPES = {"float8": "float8_e4m3fn"}
"""vLLM's names for element types that it calls otherwise."""


def layer_specs(
    source: Source, model: Model, layout: Layout, options: Options, config: Any
) -> dict[str, Any]:
    """Return vLLM's specification of every layer of a model, by name, in the order of its caches.

    `config` is the VllmConfig; its block size is set, as vLLM's platform sets it. Raises UsageError
    for a cache that this release cannot describe.
    """
    attention = [cache for cache in model.caches if not isinstance(cache, Recurrent)]
    recurrent = [cache for cache in model.caches if isinstance(cache, Recurrent)]
    latent = any(isinstance(cache, Latent) for cache in attention)
    asked = _full_block(layout) if latent and not recurrent else DEFAULT_BLOCK
    settle(source, config.cache_config, {"block_size": asked, "mamba_block_size": asked})
    if recurrent:
        _raise_block_size(source, model, attention[0], recurrent, config)
    specs: dict[str, Any] = {}
    for cache in model.caches:
        if isinstance(cache, Recurrent):
            spec = _state(source, cache, options, config)
        else:
            spec = _attention(source, cache, layout, config.cache_config.block_size)
        specs |= {f"layers.{len(specs) + number}": spec for number in range(cache.layers)}
    return specs | _draft(source, attention[-1], options, config)


def _draft(source: Source, cache: Any, options: Options, config: Any) -> dict[str, Any]:
    """Return the layer of a drafter that takes hidden states: one more of the model's last kind
    of attention.
    """
    if not options.use_eagle:
        return {}
    if not isinstance(cache, Full):
        raise UsageError(
            "option 'use_eagle': a drafter is built for models whose last caches are of full"
            " attention"
        )
    marked = {
        "is_draft": True,
        "num_kv_heads": cache.kv_heads,
        "head_size": cache.head_dim,
        "dtype": _dtype(cache.dtype),
    }
    spec = source.interface.FullAttentionSpec
    return {
        "draft.0": fill(
            source, spec, {"block_size": config.cache_config.block_size, **marked}, ["is_draft"]
        )
    }


def _attention(source: Source, cache: Any, layout: Layout, block: int) -> Any:
    interface = source.interface
    if isinstance(cache, Full | Sliding):
        heads = {
            "num_kv_heads": cache.kv_heads,
            "head_size": cache.head_dim,
            "dtype": _dtype(cache.dtype),
        }
        if isinstance(cache, Full):
            return fill(source, interface.FullAttentionSpec, {"block_size": block, **heads}, heads)
        window = {"sliding_window": cache.window}
        return fill(
            source, interface.SlidingWindowSpec, {"block_size": block, **heads, **window}, window
        )
    vector = {"num_kv_heads": 1, "head_size": cache.width, "dtype": _dtype(cache.dtype)}
    if isinstance(cache, Compressor) or (isinstance(cache, Latent) and cache.window):
        rounded = {"sliding_window": cache.window, "alignment": PACKED_ALIGNMENT}
        own = _own_block(layout, cache)
        return fill(
            source,
            interface.SlidingWindowMLASpec,
            {"block_size": own, **vector, **rounded},
            rounded,
        )
    assert isinstance(cache, Latent | Indexer)
    compressed = {"tokens_per_state": cache.tokens_per_entry} if cache.tokens_per_entry > 1 else {}
    rounded = {"alignment": PACKED_ALIGNMENT} if compressed else {}
    return fill(
        source,
        interface.MLAAttentionSpec,
        {"block_size": block, **vector, **compressed, **rounded},
        compressed,
    )


def _state(source: Source, cache: Recurrent, options: Options, config: Any) -> Any:
    offered = {
        "block_size": config.cache_config.mamba_block_size,
        "page_size_padded": config.cache_config.mamba_page_size_padded,
        "mamba_cache_mode": options.mamba_cache_mode,
        "num_speculative_blocks": options.num_speculative_tokens,
        **_shapes(cache),
    }
    return fill(
        source, source.interface.MambaSpec, offered, ["shapes", "dtypes", "page_size_padded"]
    )


def _shapes(cache: Recurrent) -> dict[str, Any]:
    """Return what one state is made of: the convolution's last inputs, and unless it is all, a
    matrix for each head.
    """
    shapes = (cache.conv_kernel - 1, cache.conv_channels), tuple(cache.state_shape)
    parts = 2 if cache.state_shape else 1
    return {
        "shapes": shapes[:parts],
        "dtypes": (_dtype(cache.conv_dtype), _dtype(cache.state_dtype))[:parts],
    }


def _raise_block_size(
    source: Source, model: Model, attention: Any, recurrent: list[Recurrent], config: Any
) -> None:
    """Have vLLM's platform raise the block size until a page of attention holds a state, and say
    how a state is padded.
    """
    latent = isinstance(attention, Latent)
    described = {
        "architecture": model.checkpoint,
        "dtype": _dtype(attention.dtype),
        "use_mla": latent,
        "get_num_kv_heads": lambda _: 1 if latent else attention.kv_heads,
        "get_head_size": lambda: attention.width if latent else attention.head_dim,
    }
    vars(config.model_config).update(described)
    states = [_shapes(cache) for cache in recurrent]
    largest = max(
        states,
        key=lambda state: (
            fill(source, source.interface.MambaSpec, {"block_size": -1, **state}).page_size_bytes
        ),
    )
    kernels = SimpleNamespace(
        get_supported_kernel_block_sizes=lambda: [DEFAULT_BLOCK], customize_spec=lambda spec: spec
    )
    with _in_place_of_a_model(source, largest, model.checkpoint_alignment):
        source.part("platforms.interface", "Platform")._align_hybrid_block_size(config, kernels)


@contextmanager
def _in_place_of_a_model(
    source: Source, state: dict[str, Any], checkpoint_alignment: int
) -> Iterator[None]:
    """Let vLLM find these shapes where it asks a model's class for them, and this grid where it
    asks its layers.
    """
    asked = SimpleNamespace(
        get_mamba_state_shape_from_config=lambda _: state["shapes"],
        get_mamba_state_dtype_from_config=lambda _: state["dtypes"],
    )
    registry = source.part("model_executor.models", "ModelRegistry")
    layers = _module(source)
    grid = getattr(layers, GRID, None)
    registry.resolve_model_cls = lambda *_, **__: (asked, "")
    if grid is not None:
        setattr(layers, GRID, lambda _: checkpoint_alignment)
    try:
        yield
    finally:
        del registry.resolve_model_cls
        if grid is not None:
            setattr(layers, GRID, grid)


def _module(source: Source) -> Any:
    return sys.modules[source.part("model_executor.layers.mamba.abstract", "MambaBase").__module__]


def _own_block(layout: Layout, cache: Latent | Compressor) -> int:
    """Return the block of a window whose layers choose it: in the layout, windows come before
    compressors.
    """
    blocks = [
        group.block_size
        for group in layout.groups
        if group.kind == "sliding" and group.window == cache.window
    ]
    return blocks[0] if isinstance(cache, Latent) else blocks[-1]


def _full_block(layout: Layout) -> int:
    return min(group.block_size for group in layout.groups if group.kind == "full")


def _dtype(name: str) -> Any:
    import torch

    return getattr(torch, DTYPES.get(name, name))
