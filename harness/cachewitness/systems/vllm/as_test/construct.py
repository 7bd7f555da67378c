"""Spells out how vLLM's objects are built for a trace, with the names that its release takes and
without its defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import GroupSpec, TraceHeader
from cachewitness.systems.vllm.as_test import text
from cachewitness.systems.vllm.build import (
    base_block_size,
    block_sizes_of,
    cache_config,
    has_retention_field,
    parameters,
)
from cachewitness.systems.vllm.declared import interval_of, read_options
from cachewitness.systems.vllm.request_options import NAMES
from cachewitness.systems.vllm.source import Source
from cachewitness_reference.vllm_extended.config import Options

SINCE = (0, 26)
"""The first release whose look-up answers as the exported code expects."""
CHECKPOINTS = "prefill_checkpoints"
SHAPE = "num_kv_heads=1, head_size=8, dtype=torch.float32"
_IMPORTS = {"full": "FullAttentionSpec", "sliding": "SlidingWindowSpec"}


class Built(NamedTuple):
    """Lines of a test: what it imports, what its steps and requests are made from, the objects
    that it makes first.
    """

    imports: list[str]
    constants: list[str]
    objects: list[str]


def built(header: TraceHeader, source: Source) -> Built:
    """Return the lines that build what a trace runs on. Raises UsageError for what the exported
    test does not spell out.
    """
    options = read_options(header, source)
    _refuse(header, options, source)
    interval = interval_of(header, options, source)
    sizes = block_sizes_of(source, header, cache_config(source, header, options, interval), options)
    offered = {
        "num_blocks": header.pages,
        "kv_cache_tensors": [],
        "prefix_cache_retention_interval": interval,
    }
    config = _call(source.interface.KVCacheConfig, offered, {"kv_cache_groups": "GROUPS"}, first=())
    objects = ["init_none_hash(sha256)", f"config = {config}"]
    constants = [*_groups(header, options), _requests(options, sizes[1])]
    if header.level == "scheduler":
        objects += _scheduler(header, source, options, sizes)
    else:
        limits = {
            "max_model_len": options.max_model_len,
            "scheduler_block_size": sizes[0],
            "hash_block_size": sizes[1],
            "max_in_flight_tokens": options.max_num_batched_tokens,
            "max_num_batched_tokens": options.max_num_batched_tokens,
            "use_eagle": options.use_eagle,
        }
        objects.append(
            f"manager = {_call(source.manager.KVCacheManager, limits, {}, first=('config',))}"
        )
    return Built(_imports(header), constants, objects)


def _refuse(header: TraceHeader, options: Options, source: Source) -> None:
    """Raise UsageError for a configuration that the exported code cannot bring about."""
    odd = {
        "async_depth": options.async_depth,
        "num_speculative_tokens": options.num_speculative_tokens,
        "enable_caching": not options.enable_caching,
        "watermark": options.watermark,
        "tier_pages": options.tier_pages,
        **{name: header.options.get(name) for name in NAMES if name != CHECKPOINTS},
    }
    asked = [f"option {name!r}" for name, value in odd.items() if value]
    asked += [
        f"a group of kind {group.kind}"
        for group in header.layout.groups
        if group.kind not in (*_IMPORTS, "recurrent")
    ]
    if source.is_before(SINCE):
        asked.append(f"a vLLM before {'{}.{}'.format(*SINCE)}")
    if (
        not has_retention_field(source)
        and header.options.get("retention_interval", "by release") != "by release"
    ):
        asked.append("an interval that is an environment variable")
    if header.level == "scheduler" and options.use_eagle:
        asked.append("EAGLE under vLLM's scheduler")
    if asked:
        raise UsageError(
            f"--export pytest: {asked[0]} is not spelled out in a test; attach the trace instead"
        )


def _groups(header: TraceHeader, options: Options) -> list[str]:
    """Return the groups with their specs; heads, sizes and dtypes are of no account to the cache
    core.
    """
    states = options.mamba_cache_mode
    aligned = header.options.get(CHECKPOINTS, 0)
    saves = (
        f", num_prefill_checkpoint_blocks=1, prefill_checkpoint_alignment={aligned}"
        if aligned
        else ""
    )
    specs = [_spec(group, states, options, saves) for group in header.layout.groups]
    shape = [f"SHAPE = dict({SHAPE})"] if sum("**SHAPE" in spec for spec in specs) > 1 else []
    specs = specs if shape else [spec.replace("**SHAPE", SHAPE) for spec in specs]
    marks = [
        ", is_eagle_group=True" if index in options.eagle_groups else ""
        for index in range(len(specs))
    ]
    groups = [
        f'KVCacheGroupSpec(["layers.{index}"], {spec}{marks[index]})'
        for index, spec in enumerate(specs)
    ]
    whole = f"GROUPS = [{', '.join(groups)}]"
    return [
        *shape,
        *(
            [whole]
            if len(whole) < 120
            else ["GROUPS = [", *(f"    {group}," for group in groups), "]"]
        ),
    ]


def _spec(group: GroupSpec, states: str, options: Options, saves: str) -> str:
    if group.kind == "recurrent":
        size = options.max_model_len if states == "none" else group.block_size
        shapes = "shapes=((4, 4),), dtypes=(torch.float32,)"
        return f'MambaSpec(block_size={size}, {shapes}, mamba_cache_mode="{states}"{saves})'
    window = f", sliding_window={group.window}" if group.kind == "sliding" else ""
    return f"{_IMPORTS[group.kind]}(block_size={group.block_size}{window}, **SHAPE)"


def _imports(header: TraceHeader) -> list[str]:
    kinds = {_IMPORTS.get(group.kind, "MambaSpec") for group in header.layout.groups}
    specs = ", ".join(sorted({"KVCacheConfig", "KVCacheGroupSpec", *kinds}))
    lines = [
        "from vllm.sampling_params import SamplingParams",
        "from vllm.utils.hashing import sha256",
    ]
    lines.append("from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash")
    lines.append(f"from vllm.v1.kv_cache_interface import {specs}")
    if header.level == "scheduler":
        lines.append("from vllm.config import DeviceConfig, SchedulerConfig, VllmConfig")
        lines.append("from vllm.v1.core.sched.scheduler import Scheduler")
        lines.append("from vllm.v1.outputs import ModelRunnerOutput")
        lines.append("from vllm.v1.request import Request, RequestStatus")
        lines.append("from vllm.v1.structured_output import StructuredOutputManager")
        if header.options.get(CHECKPOINTS):
            lines.append(
                "from vllm.model_executor.layers.mamba.checkpoint import"
                " compute_mamba_prefill_checkpoints"
            )
        return ["import torch", *sorted(lines)]
    lines.append("from vllm.v1.core.kv_cache_manager import KVCacheManager")
    lines.append("from vllm.v1.request import Request, RequestStatus")
    return ["import torch", *sorted(lines)]


def _requests(options: Options, hash_block_size: int) -> str:
    sampling = f"SamplingParams(max_tokens={options.max_model_len})"
    hasher = f"get_request_block_hasher({hash_block_size}, sha256)"
    return (
        f'ASKED = {{"sampling_params": {sampling}, "pooling_params": None, "block_hasher":'
        f" {hasher}}}"
    )


def _scheduler(
    header: TraceHeader, source: Source, options: Options, sizes: tuple[int, int]
) -> list[str]:
    """Return the lines that build vLLM's scheduler, whose model is a stand-in."""
    limits = {
        "max_model_len": options.max_model_len,
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "max_num_seqs": min(options.max_num_seqs, options.max_num_batched_tokens),
        "is_encoder_decoder": False,
        "async_scheduling": False,
        "scheduler_reserve_full_isl": options.scheduler_reserve_full_isl,
    }
    known = source.part("config", "SchedulerConfig")
    cache: dict[str, object] = {
        "num_gpu_blocks": header.pages,
        "block_size": base_block_size(header),
    }
    cache |= {
        "mamba_block_size": base_block_size(header),
        "mamba_cache_mode": options.mamba_cache_mode,
    }
    if options.hash_block_size:
        cache["prefix_match_unit"] = options.hash_block_size
    described = ", ".join(f"{name}={value!r}" for name, value in cache.items()).replace("'", '"')
    return [
        (
            'whole = VllmConfig(device_config=DeviceConfig(device="cpu"),'
            f" scheduler_config={_call(known, limits, {}, first=())})"
        ),
        f"vars(whole.cache_config).update({described})",
        f"whole.model_config = {text.MODEL.format(length=options.max_model_len)}",
        (
            "engine = Scheduler(whole, config, StructuredOutputManager(whole),"
            f" block_size={sizes[0]}, hash_block_size={sizes[1]})"
        ),
    ]


def _call(
    target: Callable[..., Any],
    offered: Mapping[str, object],
    names: Mapping[str, str],
    first: tuple[str, ...],
) -> str:
    """Return a call with those of the offered values that are not the target's defaults, and
    with variables by name.
    """
    known = parameters(target)
    values = [
        f"{name}={value!r}"
        for name, value in offered.items()
        if name in known and known[name].default != value
    ]
    return f"{target.__name__}({', '.join([*first, *values, *(f'{name}={value}' for name, value in names.items())])})"  # noqa: E501
