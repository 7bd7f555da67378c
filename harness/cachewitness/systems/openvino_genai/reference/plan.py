"""OpenVINO GenAI: how many blocks both pools get, from blocks, from a budget, or from nothing.

The rules are those of `cachewitness_reference.openvino_genai.sizing`. A layout gives the bytes of
the two kinds of block. A KV block holds the keys and values of `kv_block_size` tokens in every
attention layer, sliding layers included, since they keep every token there. A linear-attention
block is the whole state of one sequence over all recurrent layers, the convolution with all columns
of its kernel (measured: `conv_state_table` is [channels, kernel]).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import GroupKind, GroupSpec, Layout
from cachewitness.plan import options, sources
from cachewitness.plan.lost import lost_tokens
from cachewitness.plan.result import Plan, Table, Value
from cachewitness.systems.openvino_genai.reference import sizes
from cachewitness.systems.openvino_genai.reference.fitting import grouped
from cachewitness_reference.openvino_genai.config import SchedulerConfig
from cachewitness_reference.openvino_genai.sizing import Capacity, LayoutBytes
from cachewitness_reference.openvino_genai.spec import GIB, KV_BLOCK_SIZES, NEWEST, RELEASES

BLOCKS_MAX = 2**16
MULTIPLIERS = 9
"""Multipliers that are compared at most: from 1 to 256, the largest that OpenVINO derives by
itself."""
BY_DEVICE = "by device: CPU 32, GPU 16, GPU with xattention 256"


@dataclass(frozen=True)
class Request:
    """What the user asked: options by the names that a run takes, and a layout and a release if
    they are named.
    """

    options: Mapping[str, Any]
    layout: str | None = None
    release: str = NEWEST
    request_tokens: int | None = None
    intervals: bool = False


class _Tokens(click.ParamType[int]):
    """A number of tokens, or `unlimited`."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number; unlimited is the largest 64-bit one."""
        if isinstance(value, str) and value.lower() == "unlimited":
            return 2**64 - 1
        return int(options.COUNT.convert(value, param, ctx))


@click.command("openvino_genai")
@options.model_options(required=False, help="A layout; its model gives the bytes of blocks.")
@click.option(
    "--scenario",
    metavar="NAME",
    help="A scenario of the document, 1 to 6, or a variant or starting point of it.",
)
@click.option(
    "--pipeline",
    type=click.Choice(sizes.PIPELINES),
    help="Whose defaults the options start from; default: SchedulerConfig's.",
)
@click.option(
    "--kv-blocks",
    "--num-kv-blocks",
    "num_kv_blocks",
    type=options.COUNT,
    help="num_kv_blocks; 0 derives it.",
)
@click.option(
    "--cache-size-gib",
    "--cache-size",
    "cache_size",
    type=options.COUNT,
    help="Whole GiB for both pools.",
)
@click.option(
    "--linear-attention-blocks",
    "--num-linear-attention-blocks",
    "num_linear_attention_blocks",
    type=options.COUNT,
    help="0 derives it.",
)
@click.option(
    "--multiplier",
    "--cache-interval-multiplier",
    "cache_interval_multiplier",
    type=options.COUNT,
    help="KV blocks between two checkpoints.",
)
@click.option(
    "--max-num-batched-tokens", type=_Tokens(), metavar="N|unlimited", help="Tokens in a step."
)
@click.option(
    "--max-num-seqs", type=options.COUNT, help="Sequences in a batch; sizes the pool of states."
)
@click.option(
    "--prefix-caching/--no-prefix-caching",
    "enable_prefix_caching",
    default=None,
    help="enable_prefix_caching.",
)
@click.option(
    "--dynamic-split-fuse/--no-dynamic-split-fuse",
    default=None,
    help="Off: prompts whole, as in vLLM.",
)
@click.option(
    "--cache-eviction/--no-cache-eviction",
    "use_cache_eviction",
    default=None,
    help="use_cache_eviction.",
)
@click.option(
    "--sparse-attention/--no-sparse-attention",
    "use_sparse_attention",
    default=None,
    help="use_sparse_attention.",
)
@click.option(
    "--kv-block-bytes", type=options.SIZE, help="Where no layout says it: bytes of a KV block."
)
@click.option(
    "--la-block-bytes",
    type=options.Whole(0, 2**63 - 1),
    help="Where no layout says it: bytes of a state.",
)
@click.option(
    "--kv-precision",
    type=click.Choice([*sizes.PRECISIONS, *sizes.PACKED]),
    help="Instead of the model's type: KV_CACHE_PRECISION. A CPU takes u8 by itself.",
)
@click.option(
    "--state-precision",
    type=click.Choice([*sizes.PRECISIONS]),
    help="Instead of the model's types.",
)
@click.option(
    "--device",
    type=click.Choice(sizes.CHOICES["device"]),
    help="By default cpu, or a made-up layout's own blocks.",
)
@options.memory
@options.request_tokens
@click.option(
    "--intervals",
    is_flag=True,
    help="With --request-tokens: what each multiplier keeps, and what it costs.",
)
@click.option(
    "--memory-gib", type=options.GIB, help="All memory of the machine; without, it is not compared."
)
@click.option(
    "--release", default=NEWEST, show_default=True, metavar="NAME", help=f"{', '.join(RELEASES)}."
)
@options.as_json
def command(
    as_json: bool,
    layout: str | None,
    release: str,
    memory: int | None,
    request_tokens: int | None,
    intervals: bool,
    **given: Any,
) -> None:
    """Derive the capacity of both pools from a SchedulerConfig."""
    config = {name: value for name, value in given.items() if value is not None}
    if memory is not None:
        config = _budget(memory, config)
    options.show(plan(Request(config, layout, release, request_tokens, intervals)), as_json=as_json)


def _budget(memory: int, config: dict[str, Any]) -> dict[str, Any]:
    """Return options with a memory as `cache_size`, which counts whole GiB."""
    if "cache_size" in config:
        raise UsageError("--memory and --cache-size-gib say the same; leave one of them out")
    if memory % GIB:
        raise UsageError(
            f"--memory: {memory} bytes are no whole number of GiB, and OpenVINO's cache_size counts"
            " those"
        )
    return config | {"cache_size": memory // GIB}


def plan(request: Request) -> Plan:
    """Derive the capacity of both pools. Raises UsageError naming the option or the field that
    does not fit.
    """
    if request.release not in RELEASES:
        raise UsageError(
            f"--release: {request.release!r} is unknown; known are {', '.join(RELEASES)}"
        )
    chosen = {**dict.fromkeys(sizes.SIZES, 0), **sizes.chosen(request.options)}
    layout = _layout(request, chosen)
    config = sizes.config_of(chosen)
    tokens = sizes.one_block_size(layout, "attention")
    weighed = sizes.weights(layout, chosen, tokens)
    capacity = sizes.capacity_of(config, layout, chosen, request.release)
    answer = Plan("openvino_genai", request.release, request.layout or "")
    hybrid = any(group.kind == "recurrent" for group in layout.groups)
    made_up = request.layout is not None and weighed is None and "device" not in chosen
    answer.add("prefix_caching", config.enable_prefix_caching)
    answer.add("kv_block_tokens", tokens, "the layout's own blocks" if made_up else BY_DEVICE)
    _explain(answer, config, hybrid, weighed, capacity)
    if request.request_tokens is not None:
        _tell_requests(answer, request.request_tokens, tokens, capacity, hybrid)
    if request.intervals:
        answer.tables.append(_intervals(request, layout, chosen, capacity))
    _remark(answer, request, config, capacity)
    return answer


def _layout(request: Request, chosen: Mapping[str, Any]) -> Layout:
    """Return the layout in blocks of OpenVINO's size; without one, a hybrid, or attention alone
    if no state has bytes.
    """
    if request.layout is not None:
        model = (
            sources.unquantized_model(request.layout) if sources.has_model(request.layout) else None
        )
        return grouped(sources.layout(request.layout), model, chosen)
    attention = "kv_block_bytes" in chosen and not chosen.get("la_block_bytes")
    kinds: list[GroupKind] = ["full"] if attention else ["full", "recurrent"]
    tokens = KV_BLOCK_SIZES[chosen.get("device", "cpu").upper()]
    return grouped(Layout("", [GroupSpec(kind, tokens) for kind in kinds]), None, chosen)


def _explain(
    answer: Plan,
    config: SchedulerConfig,
    hybrid: bool,
    weighed: LayoutBytes | None,
    capacity: Capacity,
) -> None:
    size = answer.value("kv_block_tokens")
    assert isinstance(size, int)
    if weighed is not None:
        answer.add(
            "kv_block_bytes",
            weighed.kv_block_bytes,
            "keys and values of a block's tokens, all attention layers",
        )
        answer.add(
            "la_block_bytes", weighed.la_block_bytes, "one sequence's state, all recurrent layers"
        )
    if capacity.multiplier is not None and capacity.interval is not None:
        answer.add("multiplier", capacity.multiplier, _multiplier_how(config, answer.release))
        answer.add(
            "interval_tokens",
            capacity.interval,
            f"a checkpoint every {size} x {capacity.multiplier} tokens",
        )
    answer.add("kv_blocks", capacity.kv_blocks, _kv_how(config))
    answer.add(
        "la_blocks",
        capacity.la_blocks,
        _la_how(config, capacity) if hybrid else "no recurrent layers",
    )
    answer.add(
        "kv_tokens", capacity.kv_blocks * size, "tokens that the KV pool holds, over all sequences"
    )
    if weighed is not None:
        answer.add("kv_bytes", capacity.kv_bytes)
        answer.add("la_bytes", capacity.la_bytes)
        answer.add("total_bytes", capacity.total_bytes)
    answer.add(
        "dynamic",
        capacity.dynamic,
        "a pool without blocks starts small and grows" if capacity.dynamic else "",
    )


def _tell_requests(answer: Plan, tokens: int, size: int, capacity: Capacity, hybrid: bool) -> None:
    """Add how many sequences of a length the pools hold at once; nothing is said of pools that
    grow.
    """
    if capacity.dynamic:
        answer.notes.append(
            "--request-tokens: a cache that grows holds what memory allows; give blocks or a budget"
        )
        return
    blocks = -(-tokens // size)
    states = capacity.states_of(tokens)
    answer.add("request_kv_blocks", blocks, f"ceil({tokens} / {size})")
    fit = capacity.kv_blocks // blocks
    how = f"{capacity.kv_blocks} // {blocks}"
    if hybrid:
        every = (
            "one, without checkpoints"
            if capacity.interval is None
            else f"ceil({tokens} / {capacity.interval})"
        )
        answer.add("request_states", states, every)
        fit, how = (
            min(fit, capacity.la_blocks // states),
            f"min({how}, {capacity.la_blocks} // {states})",
        )
    answer.add("requests_running", fit, f"{how}: held at once, none shares a block")
    answer.tell_running(tokens, fit)


def _intervals(
    request: Request, layout: Layout, chosen: Mapping[str, Any], capacity: Capacity
) -> Table:
    """Return what multipliers of 1, 2, 4, … keep and cost sequences of a length, beside a
    checkpoint at every KV block's end.

    Raises UsageError where no checkpoints are kept, no blocks are known, or the length is more than
    is walked over.
    """
    tokens = request.request_tokens
    size = sizes.one_block_size(layout, "attention")
    if tokens is None or capacity.interval is None or capacity.dynamic:
        raise UsageError(
            "--intervals: give --request-tokens, a model with recurrent layers, --prefix-caching,"
            " and blocks or a budget"
        )
    if tokens // size > BLOCKS_MAX:
        raise UsageError(
            f"--request-tokens: {tokens} are more than {BLOCKS_MAX} blocks of {size} tokens"
        )
    every = range(size, tokens + 1, size)
    rows: list[tuple[Value, ...]] = []
    for multiplier in (1 << power for power in range(MULTIPLIERS) if size << power <= tokens):
        given = {**chosen, "cache_interval_multiplier": multiplier}
        found = sizes.capacity_of(sizes.config_of(given), layout, given, request.release)
        states = found.states_of(tokens)
        interval = size * multiplier
        most, mean = lost_tokens(every, range(interval, tokens + 1, interval), tokens)
        fit = min(found.kv_blocks // -(-tokens // size), found.la_blocks // states)
        rows.append(
            (multiplier, interval, found.kv_blocks, found.la_blocks, states, fit, most, round(mean))
        )
    columns = (
        "multiplier",
        "interval_tokens",
        "kv_blocks",
        "la_blocks",
        "request_states",
        "requests_running",
    )
    return Table("intervals", (*columns, "lost_most_tokens", "lost_mean_tokens"), rows)


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
    most = (
        "the most tokens that fit both pools"
        if config.enable_prefix_caching
        else "what the states leave"
    )
    return f"{most}, of {config.cache_size} GiB"


def _la_how(config: SchedulerConfig, capacity: Capacity) -> str:
    sized = bool(config.num_kv_blocks or config.cache_size)
    split = bool(config.cache_size and not config.num_kv_blocks)
    if config.num_linear_attention_blocks and not (split and config.enable_prefix_caching):
        return "as given"
    if not sized:
        return "nothing is derived"
    if config.enable_prefix_caching:
        return (
            "one for each interval of those tokens"
            if split
            else f"ceil({capacity.kv_blocks} / {capacity.multiplier})"
        )
    return "unlimited batches: one" if config.unlimited else "bounded batches: max_num_seqs"


def _remark(answer: Plan, request: Request, config: SchedulerConfig, capacity: Capacity) -> None:
    given = request.options
    if given.get("cache_interval_multiplier") is not None and "enable_prefix_caching" not in given:
        answer.notes.append("prefix caching is on because --multiplier means nothing without it")
    if config.cache_interval_multiplier is not None and not config.enable_prefix_caching:
        answer.notes.append(
            "--multiplier is not used: without prefix caching there are no checkpoints"
        )
    if config.num_kv_blocks and config.cache_size:
        answer.notes.append("--kv-blocks wins: the budget of --cache-size-gib is not used")
    # A number of blocks outweighs a size in OpenVINO, so the budget is shared only without one.
    split = config.cache_size and not config.num_kv_blocks
    if config.num_linear_attention_blocks and split and config.enable_prefix_caching:
        answer.notes.append(
            "--linear-attention-blocks is discarded under a shared budget with prefix caching; the"
            " document says that it overrides, the sources of 2026.2 and 2026.3 and the package"
            " 2026.4.1 discard it"
        )
    if not config.enable_prefix_caching and capacity.la_blocks and not capacity.dynamic:
        most = (
            "1 sequence runs" if capacity.la_blocks == 1 else f"{capacity.la_blocks} sequences run"
        )
        answer.notes.append(f"at most {most} at once: the pool of states does not grow")
    by_layout = request.layout is not None and any(line.name == "kv_bytes" for line in answer.lines)
    if by_layout and not (given.get("kv_precision") and given.get("state_precision")):
        answer.notes.append(
            "bytes are those of the layout's types where no precision is given: a CPU keeps keys"
            " and values in u8 by itself (--kv-precision u8), and which type another device and"
            " states have is not known here (--state-precision)"
        )
