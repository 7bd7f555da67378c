"""OpenVINO GenAI: how many blocks both pools get, from blocks, from a budget, or from nothing.

The rules are those of `reference_impl.openvino_genai.sizing`. A layout gives the bytes of the two kinds of block. A KV block
holds the keys and values of `kv_block_size` tokens in every attention layer, sliding layers included, since they keep every
token there. A linear-attention block is the whole state of one sequence over all recurrent layers, the convolution with all
columns of its kernel (measured: `conv_state_table` is [channels, kernel]).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import click

from harness._util.errors import UsageError
from harness.plan import options
from harness.plan.result import Plan
from harness.trace import layouts
from harness.trace.model import DTYPE_BYTES, Full, Model, Recurrent, Sliding
from reference_impl.openvino_genai.config import ConfigError, SchedulerConfig, latency_oriented
from reference_impl.openvino_genai.sizing import Capacity, LayoutBytes, derive
from reference_impl.openvino_genai.spec import GIB, KV_BLOCK_SIZES, NEWEST, RELEASES, SIZE_MAX

PRECISIONS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
UNLIMITED = SIZE_MAX
"""`max_num_batched_tokens` of a client."""
PIPELINES = ("ContinuousBatchingPipeline", "LLMPipeline", "VLMPipeline")


@dataclass(frozen=True)
class Request:
    """What the user asked; None is not said. `config` holds fields of SchedulerConfig by their own names."""

    config: dict[str, int | bool]
    layout: str | None = None
    kv_block_bytes: int | None = None
    la_block_bytes: int | None = None
    kv_precision: str | None = None
    state_precision: str | None = None
    device: str = "cpu"
    release: str = NEWEST
    pipeline: str = PIPELINES[0]
    memory_gib: int | None = None


class _Tokens(click.ParamType[int]):
    """A number of tokens, or `unlimited`."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number; unlimited is the largest 64-bit one."""
        if isinstance(value, str) and value.lower() == "unlimited":
            return 2**64 - 1
        return int(options.COUNT.convert(value, param, ctx))


@click.command("openvino_genai")
@click.option("--layout", metavar="NAME|PATH", help="A layout with a model; gives the bytes of blocks.")
@click.option("--kv-blocks", "num_kv_blocks", type=options.COUNT, help="num_kv_blocks; 0 derives it.")
@click.option("--cache-size-gib", "cache_size", type=options.COUNT, help="cache_size: whole GiB for both pools.")
@click.option("--linear-attention-blocks", "num_linear_attention_blocks", type=options.COUNT, help="0 derives it.")
@click.option("--multiplier", "cache_interval_multiplier", type=options.COUNT, help="KV blocks between two checkpoints.")
@click.option("--max-num-batched-tokens", type=_Tokens(), metavar="N|unlimited", help="Tokens in a step.")
@click.option("--max-num-seqs", type=options.COUNT, help="Sequences in a batch; sizes the pool of states.")
@click.option("--prefix-caching/--no-prefix-caching", "enable_prefix_caching", default=None, help="enable_prefix_caching.")
@click.option("--dynamic-split-fuse/--no-dynamic-split-fuse", default=None, help="Off: prompts whole, as in vLLM.")
@click.option("--cache-eviction/--no-cache-eviction", "use_cache_eviction", default=None, help="use_cache_eviction.")
@click.option("--sparse-attention/--no-sparse-attention", "use_sparse_attention", default=None, help="use_sparse_attention.")
@click.option(
    "--pipeline",
    type=click.Choice(PIPELINES),
    default=PIPELINES[0],
    show_default=True,
    help="Whose defaults the options start from.",
)
@click.option("--kv-block-bytes", type=options.SIZE, help="Without a layout: bytes of a KV block.")
@click.option("--la-block-bytes", type=options.Whole(0, 2**63 - 1), help="Without a layout: bytes of a state.")
@click.option("--kv-precision", type=click.Choice(["f32", "f16", "bf16"]), help="Instead of the layout's type.")
@click.option("--state-precision", type=click.Choice(["f32", "f16", "bf16"]), help="Instead of the layout's types.")
@click.option("--device", type=click.Choice(["cpu", "gpu", "gpu+xattention"]), default="cpu", show_default=True)
@click.option("--memory-gib", type=options.GIB, help="All memory of the machine; without, it is not compared.")
@click.option("--release", help="2026.2, 2026.3 or 2026.4 (the default).")
@options.as_json
def command(as_json: bool, **given: Any) -> None:
    """Derive the capacity of both pools from a SchedulerConfig."""
    said = {name: value for name, value in given.items() if value is not None}
    names = {field.name for field in fields(SchedulerConfig)}
    config = {name: value for name, value in said.items() if name in names}
    options.show(plan(Request(config, **{name: value for name, value in said.items() if name not in names})), as_json=as_json)


def plan(request: Request) -> Plan:
    """Derive the capacity of both pools. Raises UsageError naming the option or the field that does not fit."""
    if request.release not in RELEASES:
        raise UsageError(f"--release: {request.release!r} is unknown; known: {', '.join(RELEASES)}")
    config = _config(request)
    known, sizes = _block_bytes(request, config)
    memory = None if request.memory_gib is None else request.memory_gib * GIB
    try:
        capacity = derive(config, sizes, request.release, memory)
    except ConfigError as error:
        raise UsageError(f"openvino_genai: {error}{_hint(str(error), config, sizes)}") from None
    answer = Plan("openvino_genai", request.release, request.layout or "")
    _tell(answer, config, sizes, capacity, known)
    _remark(answer, request, config, capacity)
    return answer


def _hint(refusal: str, config: SchedulerConfig, sizes: LayoutBytes) -> str:
    """Return which options are meant where OpenVINO's own words name no field."""
    if refusal.startswith("Requested linear attention"):
        states = config.num_linear_attention_blocks or config.max_num_seqs
        return (
            f" {states} states of {sizes.la_block_bytes} bytes against --cache-size-gib {config.cache_size}: lower "
            "--max-num-seqs or --linear-attention-blocks, or use --prefix-caching"
        )
    if refusal.startswith("Requested cache size"):
        return f" --cache-size-gib {config.cache_size} against --memory-gib"
    if refusal.startswith("Requested cache blocks"):
        return f" --kv-blocks {config.num_kv_blocks} against --memory-gib"
    return ""


def _config(request: Request) -> SchedulerConfig:
    given = dict(request.config)
    caching, multiplier = given.get("enable_prefix_caching"), given.get("cache_interval_multiplier")
    if caching is False and multiplier is not None:
        raise UsageError("--multiplier: without prefix caching there are no checkpoints; leave it or --no-prefix-caching out")
    base = SchedulerConfig() if request.pipeline == PIPELINES[0] else latency_oriented()
    if multiplier is not None:
        given["enable_prefix_caching"] = True
    try:
        return replace(base, **given)  # type: ignore[arg-type]
    except ConfigError as error:
        raise UsageError(f"openvino_genai: {error}") from None


def _block_bytes(request: Request, config: SchedulerConfig) -> tuple[bool, LayoutBytes]:
    """Return whether the bytes of blocks are known, and they themselves (1 each where nobody asks for them)."""
    tokens = KV_BLOCK_SIZES[request.device.upper()]
    if request.layout is not None:
        if request.kv_block_bytes is not None or request.la_block_bytes is not None:
            raise UsageError("--layout gives the bytes of blocks; leave --kv-block-bytes and --la-block-bytes out")
        return True, layout_bytes(layouts.model(request.layout), request, tokens)
    if request.kv_precision or request.state_precision:
        raise UsageError("--kv-precision and --state-precision need --layout")
    if request.kv_block_bytes is None:
        _do_without_bytes(request, config)
        return False, LayoutBytes(1, 1, tokens)
    try:
        return True, LayoutBytes(request.kv_block_bytes, request.la_block_bytes or 0, tokens)
    except ConfigError as error:
        raise UsageError(f"openvino_genai: {error}") from None


def _do_without_bytes(request: Request, config: SchedulerConfig) -> None:
    give = "give --layout or --kv-block-bytes"
    if request.la_block_bytes is not None:
        raise UsageError("--la-block-bytes needs --kv-block-bytes")
    if config.cache_size and not config.num_kv_blocks:
        raise UsageError(f"--cache-size-gib is split by the bytes of blocks; {give}")
    if request.memory_gib is not None:
        raise UsageError(f"--memory-gib is compared with the bytes of blocks; {give}")
    adaptive = config.enable_prefix_caching and RELEASES[request.release].adaptive_multiplier
    if adaptive and config.cache_interval_multiplier is None:
        raise UsageError(
            f"--multiplier: unset, release {request.release} derives it from the bytes of blocks; {give}, or --multiplier, or "
            "--release 2026.2"
        )


def layout_bytes(model: Model, request: Request, kv_block_size: int) -> LayoutBytes:
    """Return the bytes of both kinds of block. Raises UsageError for a layer that OpenVINO GenAI's rules do not speak of."""
    kv = la = 0
    for index, cache in enumerate(model.caches):
        if isinstance(cache, Full | Sliding):
            width = DTYPE_BYTES[PRECISIONS.get(request.kv_precision or "", cache.dtype)]
            kv += cache.layers * kv_block_size * 2 * cache.kv_heads * cache.head_dim * width
        elif isinstance(cache, Recurrent):
            precision = PRECISIONS.get(request.state_precision or "")
            conv = cache.conv_bytes(cache.conv_kernel) // DTYPE_BYTES[cache.conv_dtype]
            state = cache.state_bytes // DTYPE_BYTES[cache.state_dtype]
            wide = DTYPE_BYTES[precision or cache.conv_dtype], DTYPE_BYTES[precision or cache.state_dtype]
            la += cache.layers * (conv * wide[0] + state * wide[1])
        else:
            kind = type(cache).__struct_config__.tag
            raise UsageError(
                f"--layout {request.layout}: model.caches[{index}].kind {kind!r}: OpenVINO GenAI's document and sources say "
                "nothing of its size"
            )
    if not kv:
        raise UsageError(f"--layout {request.layout}: model.caches: no attention layer, and the pipeline needs one")
    return LayoutBytes(kv, la, kv_block_size)


def _tell(answer: Plan, config: SchedulerConfig, sizes: LayoutBytes, capacity: Capacity, known: bool) -> None:
    size = sizes.kv_block_size
    answer.add("prefix_caching", config.enable_prefix_caching)
    answer.add("kv_block_tokens", size, "by device: CPU 32, GPU 16, GPU with xattention 256")
    if known:
        answer.add("kv_block_bytes", sizes.kv_block_bytes, "keys and values of a block's tokens, all attention layers")
        answer.add("la_block_bytes", sizes.la_block_bytes, "one sequence's state, all recurrent layers")
    if capacity.multiplier is not None and capacity.interval is not None:
        answer.add("multiplier", capacity.multiplier, _multiplier_how(config, answer.release))
        answer.add("interval_tokens", capacity.interval, f"a checkpoint every {size} x {capacity.multiplier} tokens")
    answer.add("kv_blocks", capacity.kv_blocks, _kv_how(config))
    answer.add("la_blocks", capacity.la_blocks, _la_how(config, capacity) if sizes.hybrid else "no recurrent layers")
    answer.add("kv_tokens", capacity.kv_blocks * size, "tokens that the KV pool holds, over all sequences")
    if known:
        answer.add("kv_bytes", capacity.kv_bytes)
        answer.add("la_bytes", capacity.la_bytes)
        answer.add("total_bytes", capacity.total_bytes)
    answer.add("dynamic", capacity.dynamic, "a pool without blocks starts small and grows" if capacity.dynamic else "")


def _multiplier_how(config: SchedulerConfig, release: str) -> str:
    if config.cache_interval_multiplier is not None:
        return "as given"
    if RELEASES[release].adaptive_multiplier:
        return "min(max(8, ceil(la block / KV block)), 256)"
    return "unset: 8"


def _kv_how(config: SchedulerConfig) -> str:
    if config.num_kv_blocks:
        return "as given"
    if not config.cache_size:
        return "neither blocks nor a budget is set"
    most = "the most tokens that fit both pools" if config.enable_prefix_caching else "what the states leave"
    return f"{most}, of {config.cache_size} GiB"


def _la_how(config: SchedulerConfig, capacity: Capacity) -> str:
    sized = bool(config.num_kv_blocks or config.cache_size)
    split = bool(config.cache_size and not config.num_kv_blocks)
    if config.num_linear_attention_blocks and not (split and config.enable_prefix_caching):
        return "as given"
    if not sized:
        return "nothing is derived"
    if config.enable_prefix_caching:
        return "one for each interval of those tokens" if split else f"ceil({capacity.kv_blocks} / {capacity.multiplier})"
    return "unlimited batches: one" if config.unlimited else "bounded batches: max_num_seqs"


def _remark(answer: Plan, request: Request, config: SchedulerConfig, capacity: Capacity) -> None:
    if request.config.get("cache_interval_multiplier") is not None and "enable_prefix_caching" not in request.config:
        answer.notes.append("prefix caching is on because --multiplier means nothing without it")
    if config.num_kv_blocks and config.cache_size:
        answer.notes.append("--kv-blocks wins: the budget of --cache-size-gib is not used")
    split = config.cache_size and not config.num_kv_blocks
    if config.num_linear_attention_blocks and split and config.enable_prefix_caching:
        answer.notes.append(
            "--linear-attention-blocks is discarded under a shared budget with prefix caching; the document says it overrides, "
            "release 2026.4.1 was measured to discard it"
        )
    if not config.enable_prefix_caching and capacity.la_blocks and not capacity.dynamic:
        answer.notes.append(f"at most {capacity.la_blocks} sequences run at once: the pool of states does not grow")
    if request.layout is not None and not (request.kv_precision and request.state_precision):
        answer.notes.append(
            "bytes are those of the layout's types; the precision that a device chooses is not known here: --kv-precision, "
            "--state-precision"
        )
