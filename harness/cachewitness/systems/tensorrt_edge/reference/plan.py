"""TensorRT-Edge-LLM: the tensors of a HybridCacheManager and their bytes.

Everything is allocated at once, for the largest batch and the longest sequence: an attention layer
keeps [maxBatch, 2, heads, maxSeqLen, headDim], sliding layers included, a recurrent layer
[maxBatch, heads, headDim, size] and [maxBatch, convDim, convKernel], the convolution with all
columns of its kernel. The lengths are one INT32 a row. Which configurations are refused is
`cachewitness_reference.tensorrt_edge.config`'s to say. From release 0.10 on the keys and values lie
in pages of 128 tokens, which rounds the longest sequence up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import click

from cachewitness._util.errors import UsageError
from cachewitness.plan import options, sources
from cachewitness.plan.result import Plan
from cachewitness.workloads.model import Full, Model, Recurrent, Sliding
from cachewitness_reference.tensorrt_edge.config import (
    CacheError,
    Config,
    DataType,
    KVConfig,
    KVLayerConfig,
    LayerType,
    MambaConfig,
    checked,
)
from cachewitness_reference.tensorrt_edge.spec import RELEASES

BYTES = {DataType.HALF: 2, DataType.BF16: 2, DataType.FLOAT: 4, DataType.FP8: 1}
KV_TYPES = {"half": DataType.HALF, "fp8": DataType.FP8}
STATE_TYPES = {"half": DataType.HALF, "float": DataType.FLOAT, "bf16": DataType.BF16}
HEAD_DIMS = (64, 128, 256, 512)
"""The head sizes that the compaction kernel knows (0.7.1)."""
PAGE_TOKENS = 128
PAGED = "0.10"
INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class Request:
    """What the user asked."""

    layout: str
    max_batch_size: int
    max_sequence_length: int
    kv_cache_type: str = "half"
    recurrent_state_type: str = "half"
    conv_state_type: str = "half"
    release: str = RELEASES[0]
    memory: int | None = None


@click.command("tensorrt_edge")
@options.model_options()
@click.option("--max-batch-size", type=options.SIZE, required=True, help="Rows: sequences at once.")
@click.option(
    "--max-sequence-length", type=options.SIZE, required=True, help="Tokens that a row holds."
)
@options.memory
@click.option(
    "--kv-cache-type", type=click.Choice(["half", "fp8"]), default="half", show_default=True
)
@click.option(
    "--recurrent-state-type",
    type=click.Choice(["half", "float", "bf16"]),
    default="half",
    show_default=True,
)
@click.option(
    "--conv-state-type",
    type=click.Choice(["half", "float", "bf16"]),
    default="half",
    show_default=True,
)
@click.option("--release", default="0.7", show_default=True, help="0.7, 0.8, 0.9 or 0.10.")
@options.as_json
def command(as_json: bool, **given: Any) -> None:
    """Work out the tensors of a HybridCacheManager and their bytes."""
    options.show(plan(Request(**given)), as_json=as_json)


def plan(request: Request) -> Plan:
    """Return the shapes and bytes of every tensor. Raises UsageError naming the option or the
    field that does not fit.
    """
    if request.release not in RELEASES:
        raise UsageError(f"--release: {request.release!r} is unknown; known: {', '.join(RELEASES)}")
    model = sources.unquantized_model(request.layout)
    for option, value in (
        ("batch-size", request.max_batch_size),
        ("sequence-length", request.max_sequence_length),
    ):
        if value > INT32_MAX:
            raise UsageError(
                f"--max-{option}: {value} does not fit the 32-bit integers of the configuration"
            )
    config = config_of(model, request)
    answer = Plan("tensorrt_edge", request.release, request.layout)
    _attention(answer, config, request)
    _recurrent(answer, config)
    answer.add("lengths_bytes", 4 * config.max_batch_size, f"INT32 [{config.max_batch_size}]")
    parts = ("kv_bytes", "recurrent_bytes", "conv_bytes", "lengths_bytes")
    answer.add("total_bytes", sum(int(answer.value(part) or 0) for part in parts))
    if request.memory is not None:
        row = int(answer.value("total_bytes") or 0) // request.max_batch_size
        answer.add(
            "row_bytes",
            row,
            f"one sequence of at most {request.max_sequence_length} tokens, whatever its length",
        )
        answer.add(
            "requests_running",
            request.memory // row,
            f"{request.memory} // {row}: rows that fit, the largest batch",
        )
        answer.tell_running(request.max_sequence_length, request.memory // row)
    _remark(answer, model, config, request)
    return answer


def config_of(model: Model, request: Request) -> Config:
    """Return the manager's configuration of a model, the layers of a kind one after the other;
    their order changes no byte.

    Raises UsageError for layers that the manager does not have, and for what its constructors
    refuse.
    """
    heads: list[KVLayerConfig] = []
    states: list[Recurrent] = []
    where = f"{sources.option(request.layout)}: model.caches"
    for index, cache in enumerate(model.caches):
        if isinstance(cache, Full | Sliding):
            heads += [KVLayerConfig(cache.kv_heads, cache.head_dim)] * cache.layers
        elif isinstance(cache, Recurrent):
            states += [cache] * cache.layers
        else:
            kind = type(cache).__struct_config__.tag
            raise UsageError(f"{where}[{index}].kind {kind!r}: the manager has no such layers")
    if len({(*state.state_shape, state.conv_channels, state.conv_kernel) for state in states}) > 1:
        raise UsageError(f"{where}: recurrent layers differ; the manager has one shape for all")
    rows = request.max_batch_size
    kv = KVConfig(
        len(heads), rows, request.max_sequence_length, tuple(heads), KV_TYPES[request.kv_cache_type]
    )
    mamba = MambaConfig()
    if states:
        shape = states[0].state_shape
        if len(shape) != 3:
            raise UsageError(f"{where}: state_shape needs three axes: heads, head size, state size")
        mamba = MambaConfig(
            len(states),
            rows,
            recurrent_state_num_heads=shape[0],
            recurrent_state_head_dim=shape[1],
            recurrent_state_size=shape[2],
            conv_dim=states[0].conv_channels,
            conv_kernel=states[0].conv_kernel,
            recurrent_state_type=STATE_TYPES[request.recurrent_state_type],
            conv_state_type=STATE_TYPES[request.conv_state_type],
        )
    types = (LayerType.ATTENTION,) * len(heads) + (LayerType.MAMBA,) * len(states)
    try:
        return checked(Config(types, kv, mamba, rows))
    except CacheError as error:
        raise UsageError(f"tensorrt_edge: {error}") from None


def _attention(answer: Plan, config: Config, request: Request) -> None:
    kv = config.kv_config
    rows = config.max_batch_size
    width = BYTES[config.kv_config.kv_cache_type]
    length = kv.max_sequence_length
    if request.release == PAGED:
        length = math.ceil(length / PAGE_TOKENS) * PAGE_TOKENS
        answer.add(
            "kv_pages",
            rows * length // PAGE_TOKENS,
            f"{rows} x ceil({kv.max_sequence_length} / {PAGE_TOKENS}), each layer",
        )
    total = 0
    for layer in dict.fromkeys(kv.layer_configs):
        layers = kv.layer_configs.count(layer)
        heads = layer.num_kv_heads
        dim = layer.head_dim
        each = rows * 2 * heads * length * dim * width
        shape = f"[{rows}, 2, {heads}, {length}, {dim}]"
        if request.release == PAGED:
            shape = f"[2, {rows * length // PAGE_TOKENS}, {PAGE_TOKENS}, {heads}, {dim}]"
        answer.add(
            f"kv_layer_{heads}x{dim}_bytes",
            each,
            f"{shape} {kv.kv_cache_type.value}, {layers} layers",
        )
        total += layers * each
    answer.add("kv_bytes", total, f"{kv.num_attention_layers} attention layers, not zeroed")


def _recurrent(answer: Plan, config: Config) -> None:
    mamba = config.mamba_config
    rows = config.max_batch_size
    layers = config.mamba_config.num_recurrent_layers
    if not layers:
        answer.add("recurrent_bytes", 0, "no recurrent layers")
        answer.add("conv_bytes", 0, "no recurrent layers")
        return
    state = [
        rows,
        mamba.recurrent_state_num_heads,
        mamba.recurrent_state_head_dim,
        mamba.recurrent_state_size,
    ]
    conv = [rows, mamba.conv_dim, mamba.conv_kernel]
    for name, shape, kind in (
        ("recurrent_bytes", state, mamba.recurrent_state_type),
        ("conv_bytes", conv, mamba.conv_state_type),
    ):
        answer.add(
            name,
            layers * math.prod(shape) * BYTES[kind],
            f"{shape} {kind.value}, {layers} layers, zeroed",
        )


def _remark(answer: Plan, model: Model, config: Config, request: Request) -> None:
    odd = sorted({layer.head_dim for layer in config.kv_config.layer_configs} - set(HEAD_DIMS))
    if odd:
        known = ", ".join(map(str, HEAD_DIMS))
        answer.notes.append(
            f"head size {', '.join(map(str, odd))} cannot be compacted: the kernel knows {known}"
        )
    if any(isinstance(cache, Sliding) for cache in model.caches):
        answer.notes.append(
            "sliding layers keep every token of the longest sequence: the manager has no type of"
            " its own for them"
        )
    if request.max_sequence_length > model.max_length:
        answer.notes.append(
            f"--max-sequence-length is longer than the {model.max_length} tokens of"
            f" {model.checkpoint}"
        )
    if request.kv_cache_type == "fp8":
        answer.notes.append("the scales of FP8 keys and values are not counted")
    if config.mamba_config.num_recurrent_layers and "bf16" in (
        request.recurrent_state_type,
        request.conv_state_type,
    ):
        answer.notes.append("releases 0.7 to 0.10 cannot compact bf16 states; the reference can")
