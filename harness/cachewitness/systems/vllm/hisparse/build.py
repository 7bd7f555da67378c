"""Builds what vLLM needs for HiSparse: its configuration, the layers of a model with a sparse
indexer, and its own sizing.

A layout of HiSparse is two groups of full attention with blocks of one size: the latent vectors,
and the indexers, of which each serves as many layers of the first. The groups of vLLM (on the host,
resident, hot) are made of these layers by its `get_kv_cache_configs`.

Left out of vLLM's checks is the device: `VllmConfig` refuses HiSparse without CUDA, so it is told
of it when it is made.

Sources: vLLM 0.33.0, `config/vllm.py`, `config/attention.py`; `v1/hisparse/layout.py`;
`models/deepseek_v32/attention.py`.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import TraceHeader
from cachewitness.systems.vllm.build import fill, settle
from cachewitness.systems.vllm.connectors.build import MODEL
from cachewitness.systems.vllm.engine_config import engine_config
from cachewitness.systems.vllm.sizing import ENOUGH, FIT, Sized, configured
from cachewitness.systems.vllm.source import Source
from cachewitness_reference.vllm_extended.config import Options

NAME = "HiSparseConnector"
TOP_K = 16
"""So many tokens a query reads. A request's hot region has room for two queries'
(`ResolvedHiSparseConfig`)."""
LATENT, INDEXER = 576, 132
"""The widths of DeepSeek-V3.2: elements of two bytes, and bytes."""


def size_hisparse(
    source: Source, header: TraceHeader, options: Options, interval: int | None, *, eager: bool
) -> Sized:
    """Return what vLLM makes of a trace's layout with HiSparse.

    The device has as many blocks for each resident group as the trace has pages, the host
    `tier_pages`, or as many. `eager`: decoded rows are mirrored to the host in their step (vLLM's
    default), else blocks are copied when they are full. Raises UsageError for a layout that is not
    of HiSparse, and for what vLLM refuses.
    """
    latent, indexer = _groups(header)
    whole = engine_config(source, header, options)
    vars(whole.model_config).update(
        MODEL,
        original_max_model_len=FIT,
        supports_kv_cache_grouping=False,
        hf_config=SimpleNamespace(index_topk=TOP_K),
    )
    settle(source, whole.cache_config, {"num_gpu_blocks_override": header.pages * indexer.layers})
    hisparse = fill(
        source,
        source.part("config", "HiSparseConfig"),
        {"eager_host_mirror": eager},
        ["eager_host_mirror"],
    )
    settle(source, whole.attention_config, {"hisparse_config": hisparse})
    specs = _layers(source, latent.layers, indexer.layers, latent.block_size)
    stride = sum(spec.page_size_bytes for name, spec in specs.items() if "indexer" not in name)
    blocks = options.tier_pages or header.pages
    transfer = {
        "kv_connector": NAME,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"host_pool_gib": blocks * stride / 2**30},
    }
    settle(
        source,
        whole,
        {
            "kv_transfer_config": fill(
                source, source.part("config", "KVTransferConfig"), transfer, transfer
            )
        },
    )
    config = configured(
        source, whole, specs, ENOUGH << 20, interval, of="HiSparse here", packed=True
    )
    return Sized(
        header,
        dataclasses.replace(options, max_model_len=whole.model_config.max_model_len),
        config,
        whole,
    )


def _groups(header: TraceHeader) -> Any:
    groups = header.layout.groups
    fits = len(groups) == 2 and all(group.kind == "full" and group.layers for group in groups)
    if (
        not fits
        or groups[0].block_size != groups[1].block_size
        or groups[0].layers % groups[1].layers
    ):
        raise UsageError(
            f"layout {header.layout.name!r}: HiSparse wants two groups of full attention with equal"
            " blocks, the latent vectors and the indexers, each of which serves as many layers;"
            " layout 'full-sparse' is such a one"
        )
    return groups


def _layers(source: Source, layers: int, indexers: int, block: int) -> dict[str, Any]:
    """Return vLLM's specification of every layer: of those that share an indexer the first has
    it.
    """
    import torch

    latent = source.interface.MLAAttentionSpec
    role = source.interface.SparseCacheRole
    shared = layers // indexers
    vector = {
        "block_size": block,
        "num_kv_heads": 1,
        "head_size": LATENT,
        "dtype": torch.bfloat16,
        "topk_buffer_width": TOP_K,
    }
    key = {
        "block_size": block,
        "num_kv_heads": 1,
        "head_size": INDEXER,
        "dtype": torch.uint8,
        "cache_role": role.INDEXER,
    }
    specs: dict[str, Any] = {}
    for layer in range(layers):
        leads = {"is_index_group_leader": layer % shared == 0}
        specs[f"layers.{layer}"] = fill(source, latent, {**vector, **leads}, {**vector, **leads})
        if leads["is_index_group_leader"]:
            specs[f"layers.{layer}.indexer"] = fill(source, latent, key, key)
    return specs
