"""A trace on a named model, sized by vLLM itself: its groups, its blocks and how many of them there
are.

The layers of the model (`model_layers`) and a memory go through vLLM's `get_kv_cache_configs`:
formation of groups, unification of pages, padding, the number of blocks and the longest request
that fits are its decisions. What comes out is the layout that the engine declares, and the trace
runs on it. A drafter of EAGLE's kind is a layer more, marked as vLLM marks it.

Sources: vLLM 0.29.0 to 0.33.0, `v1/core/kv_cache_utils.py`, `kv_cache_planning.py` (0.33);
`v1/engine/core.py`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import GroupSpec, Layout, TraceHeader
from cachewitness.engines.version_check import takes
from cachewitness.systems.vllm.build import fill, settle
from cachewitness.systems.vllm.engine_config import engine_config
from cachewitness.systems.vllm.model_layers import layer_specs
from cachewitness.systems.vllm.rswa import windowed
from cachewitness.systems.vllm.source import Source
from cachewitness.workloads import layouts
from cachewitness.workloads.model import Compressor
from cachewitness_reference.vllm_extended.config import Options

SINCE = (0, 29)
"""The oldest release whose sizing the adapter was written for."""
PAGES = "pages"
ENOUGH = 1 << 20
FIT = -1
"""As a model's length: as long as the memory allows."""


class Sized(NamedTuple):
    """What vLLM made of a model.

    The trace's header with its groups and pages, the options with the length that fits, the
    KVCacheConfig, the VllmConfig.
    """

    header: TraceHeader
    options: Options
    config: Any
    whole: Any


def size(
    source: Source, header: TraceHeader, options: Options, interval: int | None, memory: str
) -> Sized:
    """Return what vLLM makes of the model that the trace's layout is of.

    `memory` is what there is for its cache: `pages`, as many blocks as the trace has pages, or a
    number of MiB. `interval` is the retention interval in tokens. Raises UsageError for a layout
    without a model, and for what this release has not or refuses.
    """
    if source.is_before(SINCE):
        raise UsageError(
            f"vLLM {source.version}: its sizing is driven from {SINCE[0]}.{SINCE[1]} on; leave"
            " `sized` out"
        )
    model = layouts.model(header.layout.name)
    whole = engine_config(source, header, options)
    vars(whole.model_config).update(original_max_model_len=FIT, supports_kv_cache_grouping=False)
    settle(
        source,
        whole.cache_config,
        {"num_gpu_blocks_override": header.pages if memory == PAGES else None},
    )
    specs = layer_specs(source, model, header.layout, options, whole)
    specs = dict(zip(specs, windowed(source, list(specs.values()), header), strict=True))
    packed = any(isinstance(cache, Compressor) for cache in model.caches)
    config = configured(
        source, whole, specs, _mebibytes(memory) << 20, interval, of=model.checkpoint, packed=packed
    )
    length = whole.model_config.max_model_len
    if (count := getattr(source.utils, "update_kv_cache_capacity", None)) is not None:
        count(whole, config)
    groups = [_group(source, group) for group in config.kv_cache_groups]
    layout = Layout(
        name=header.layout.name,
        groups=groups,
        story=header.layout.story,
        source=f"sized by vLLM {source.version}",
    )
    sized = msgspec.structs.replace(header, layout=layout, pages=config.num_blocks)
    eagle = [index for index, group in enumerate(config.kv_cache_groups) if group.is_eagle_group]
    return Sized(
        sized, dataclasses.replace(options, max_model_len=length, eagle_groups=eagle), config, whole
    )


def _mebibytes(memory: str) -> int:
    """Return a number of MiB; with `pages` any that is enough, as vLLM then counts blocks and
    not bytes.
    """
    if memory == PAGES:
        return ENOUGH
    if not memory.isdecimal() or not 0 < int(memory) <= ENOUGH:
        raise UsageError(
            f"--engine: vllm:sized={memory}: say `pages`, or a number of MiB up to {ENOUGH}"
        )
    return int(memory)


def configured(
    source: Source,
    whole: Any,
    specs: dict[str, Any],
    memory: int,
    interval: int | None,
    *,
    of: str,
    packed: bool,
) -> Any:
    """Return the scheduler's KVCacheConfig, made by the calls that vLLM's engine makes, and settle
    what follows from it.

    `packed`: the kernels of the model take a block of all layers as one piece of memory, and
    nothing else. Raises UsageError for what vLLM refuses; `of` says what it was asked to size.
    """
    try:
        config = _planned(source, whole, specs, memory, packed=packed)
    except (ValueError, AssertionError, NotImplementedError) as error:
        raise UsageError(
            f"vLLM {source.version} refuses {of}: {' '.join(str(error).split())}"
        ) from None
    settle(source, config, {"prefix_cache_retention_interval": interval})
    settle(source, whole.cache_config, {"num_gpu_blocks": config.num_blocks})
    return config


def _planned(
    source: Source, whole: Any, specs: dict[str, Any], memory: int, *, packed: bool
) -> Any:
    settle(source, whole.scheduler_config, {"disable_hybrid_kv_cache_manager": False})
    if hasattr(whole.cache_config, "kv_cache_layout"):
        resolve = source.part("v1.attention.backends.utils", "resolve_kv_cache_layout")
        known = source.part("v1.kv_cache_layout", "KVCacheLayout").__members__
        offers = [name for name, layout in known.items() if layout.is_block_outermost or not packed]
        fill(
            source,
            resolve,
            {"vllm_config": whole, "supported_layouts": [offers], "kv_cache_specs": specs.values()},
        )
    planning = "v1.core.kv_cache_planning" if _planned_apart(source) else "v1.core.kv_cache_utils"
    get_configs = source.part(planning, "get_kv_cache_configs")
    offered: dict[str, Any] = {
        "vllm_config": whole,
        "kv_cache_specs": [specs],
        "available_memory": [memory],
    }
    if takes(get_configs, "global_kv_cache_groups"):
        offered["global_kv_cache_groups"] = source.part(planning, "get_global_kv_cache_groups")(
            whole, [dict(specs)]
        )
    configs = get_configs(**offered)
    return fill(
        source, source.utils.generate_scheduler_kv_cache_config, {"kv_cache_configs": configs}
    )


def _planned_apart(source: Source) -> bool:
    return not hasattr(source.utils, "get_kv_cache_configs")


def _group(source: Source, group: Any) -> GroupSpec:
    """Return a group in the words of a layout. Raises UsageError for a kind of specification
    that the harness does not know.
    """
    interface = source.interface
    spec = group.kv_cache_spec
    layers = len(group.layer_names)
    block = spec.block_size
    if isinstance(spec, interface.MambaSpec):
        return GroupSpec(kind="recurrent", block_size=block, layers=layers)
    if isinstance(spec, interface.SlidingWindowSpec):
        return GroupSpec(
            kind="sliding", block_size=block, layers=layers, window=spec.sliding_window
        )
    if isinstance(spec, interface.ChunkedLocalAttentionSpec):
        return GroupSpec(
            kind="chunked", block_size=block, layers=layers, chunk=spec.attention_chunk_size
        )
    if isinstance(spec, interface.FullAttentionSpec):
        return GroupSpec(kind="full", block_size=block, layers=layers)
    raise UsageError(
        f"vLLM {source.version} made a group of {type(spec).__name__}, which the harness has no"
        " kind for"
    )
