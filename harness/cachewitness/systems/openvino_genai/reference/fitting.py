"""What OpenVINO makes of a layout under given options: its own groups of a model, and the
checkpoint interval as a block size.

The groups of a published model's layout are those of vLLM; OpenVINO keeps the same layers in blocks
of the device's size, and a state of all recurrent layers at every interval. A made-up layout keeps
its blocks, unless a device is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import SEGMENT_TOKENS_MAX, GroupKind, GroupSpec, Layout
from cachewitness.systems.openvino_genai.reference import sizes
from cachewitness.workloads.model import DTYPE_BYTES, Full, Model, Recurrent, Sliding
from cachewitness_reference.openvino_genai.sizing import LayoutBytes, multiplier_for
from cachewitness_reference.openvino_genai.spec import KV_BLOCK_SIZES, NEWEST, RELEASES

INTERVALS = 4
"""So many intervals a prompt has room for at least; with longer ones no trace could reach a
checkpoint."""


def fit(
    layout: Layout, model: Model | None, given: Mapping[str, Any], release: str = ""
) -> tuple[Layout, dict[str, Any]]:
    """Return the layout and the options that a run has; traces are measured by the former.

    Raises UsageError for options that do not fit, for a layer that OpenVINO's rules do not speak
    of, and for an interval that prompts of traces cannot reach.
    """
    options = sizes.chosen(given)
    fitted = grouped(layout, model, options)
    interval = _interval(fitted, options, release or NEWEST)
    if interval * INTERVALS > SEGMENT_TOKENS_MAX:
        raise UsageError(
            f"policy openvino_genai: cache_interval_multiplier: a checkpoint every {interval:,}"
            f" tokens, and a trace's prompts have {SEGMENT_TOKENS_MAX:,} at most; run with a"
            " smaller one"
        )
    groups = [
        replace(group, block_size=interval) if group.kind == "recurrent" else group
        for group in fitted.groups
    ]
    return replace(fitted, groups=groups), {
        name: value for name, value in options.items() if name not in sizes.MODEL
    }


def grouped(layout: Layout, model: Model | None, options: Mapping[str, Any]) -> Layout:
    """Return a layout in KV blocks of OpenVINO's size; recurrent groups keep the block size that
    they have.
    """
    device = options.get("device")
    if model is None:
        if precision := next((name for name in sizes.MODEL[1:] if options.get(name)), ""):
            raise UsageError(
                f"policy openvino_genai: {precision}: layout {layout.name!r} has no model to which"
                " it could apply"
            )
        tokens = sizes.one_block_size(layout, "attention")
        groups = [*layout.groups]
    else:
        device = device or "cpu"
        tokens = KV_BLOCK_SIZES[device.upper()]
        groups = list(_of_model(layout.name, model, options, tokens))
    tokens = KV_BLOCK_SIZES[device.upper()] if device else tokens
    return replace(
        layout,
        groups=[g if g.kind == "recurrent" else replace(g, block_size=tokens) for g in groups],
    )


def _of_model(
    name: str, model: Model, options: Mapping[str, Any], tokens: int
) -> Iterator[GroupSpec]:
    """Yield a group for each kind of layer, with what it weighs."""
    states = sizes.PRECISIONS.get(options.get("state_precision") or "")
    for index, cache in enumerate(model.caches):
        if isinstance(cache, Full | Sliding):
            wide = _token_bytes(cache, options, tokens)
            window = cache.window if isinstance(cache, Sliding) else 0
            own: GroupKind = "sliding" if window else "full"
            yield GroupSpec(own, tokens, window=window, layers=cache.layers, token_bytes=wide)
        elif isinstance(cache, Recurrent):
            conv = cache.conv_channels * cache.conv_kernel * DTYPE_BYTES[states or cache.conv_dtype]
            memory = (
                cache.state_bytes
                // DTYPE_BYTES[cache.state_dtype]
                * DTYPE_BYTES[states or cache.state_dtype]
            )
            yield GroupSpec("recurrent", tokens, layers=cache.layers, state_bytes=conv + memory)
        else:
            kind = type(cache).__struct_config__.tag
            raise UsageError(
                f"layout {name!r}: model.caches[{index}].kind {kind!r}: OpenVINO GenAI's document"
                " and sources say nothing of its size"
            )
    if not any(isinstance(cache, Full | Sliding) for cache in model.caches):
        raise UsageError(
            f"layout {name!r}: model.caches: no attention layer, and the pipeline needs one"
        )


def _token_bytes(cache: Full | Sliding, options: Mapping[str, Any], tokens: int) -> int:
    """Return what one layer keeps of a token, keys and values together. Raises UsageError for a
    packed type on another device than a CPU, and for heads that it does not fill.
    """
    precision = options.get("kv_precision") or ""
    numbers = 2 * cache.kv_heads * cache.head_dim
    if precision not in sizes.PACKED:
        return numbers * DTYPE_BYTES[sizes.PRECISIONS.get(precision) or cache.dtype]
    if options.get("device", "cpu") != "cpu":
        raise UsageError(
            f"policy openvino_genai: kv_precision: what a GPU packs into {precision} is not worked"
            " out here; --device cpu"
        )
    block = tokens * numbers * sizes.PACKED[precision] // 8
    block += cache.kv_heads * (cache.head_dim + tokens) * sizes.SCALE_BYTES
    if block % tokens:
        raise UsageError(
            f"policy openvino_genai: kv_precision: {precision} fills no whole bytes of a token with"
            f" heads of {cache.head_dim}"
        )
    return block // tokens


def _interval(layout: Layout, options: Mapping[str, Any], release: str) -> int:
    """Return the tokens from one checkpoint to the next; of a layout that has none, the tokens
    of a KV block.
    """
    tokens = sizes.one_block_size(layout, "attention")
    if sizes.sized(options):
        return (
            sizes.capacity_of(sizes.config_of(options), layout, options, release).interval or tokens
        )
    if any(group.kind == "recurrent" for group in layout.groups) and options.get(
        "enable_prefix_caching", True
    ):
        return multiplier(layout, options, release) * tokens
    return tokens


def multiplier(layout: Layout, options: Mapping[str, Any], release: str) -> int:
    """Return the KV blocks from one checkpoint to the next of a hybrid whose pools are a trace's
    own.

    It is as the options say; unset, as the release derives it from what blocks weigh, or if nobody
    says that, as the layout's recurrent blocks. Raises UsageError if these are no multiple of a KV
    block.
    """
    tokens = sizes.one_block_size(layout, "attention")
    config = sizes.config_of({**options, "enable_prefix_caching": True})
    weighed = sizes.weights(layout, options, tokens)
    if config.cache_interval_multiplier is not None or weighed is not None:
        found = multiplier_for(config, weighed or LayoutBytes(1, 1, tokens), release)
        assert found is not None
        return found
    own = sizes.one_block_size(layout, "recurrent")
    if own % tokens:
        raise UsageError(
            f"layout {layout.name!r}: a checkpoint interval is a multiple of the KV block size, and"
            f" {own} is none of {tokens}; set the option 'cache_interval_multiplier'"
        )
    return own // tokens


def remarks(layout: Layout, options: Mapping[str, Any], release: str = "") -> list[str]:
    """Return in lines how a run sizes the pools of a layout, or which of OpenVINO's defaults it
    replaces, and by what.

    Raises UsageError for what does not fit.
    """
    options, release = sizes.chosen(options), release or NEWEST
    layout = grouped(layout, None, options)
    if sizes.sized(options):
        return [f"{layout.name}: {_sized(layout, options, release)}"]
    found = [
        "num_kv_blocks and cache_size (0, which is dynamic) by the pool of each trace, so that"
        " pools run full"
    ]
    if "enable_prefix_caching" not in options:
        found.append("enable_prefix_caching (false) by true, without which nothing is reused")
    if "max_num_seqs" not in options:
        found.append(
            "max_num_seqs (256) by 4, since without prefix caching each takes a state off the pool"
        )
    if "max_num_batched_tokens" not in options:
        found.append(
            "max_num_batched_tokens (256) by 2048, or 4 checkpoint intervals if that is more:"
            " prompts stay whole"
        )
    unset = options.get("cache_interval_multiplier") is None and options.get(
        "enable_prefix_caching", True
    )
    weighed = sizes.weights(layout, options, sizes.one_block_size(layout, "attention"))
    if unset and weighed is None and any(group.kind == "recurrent" for group in layout.groups):
        formula = (
            "min(max(8, ceil(state / KV block)), 256)"
            if RELEASES[release].adaptive_multiplier
            else "8"
        )
        found.append(
            f"cache_interval_multiplier (unset: {formula}) by what the recurrent blocks of a"
            " made-up layout say"
        )
    return [f"replaces {line}" for line in found]


def _sized(layout: Layout, options: Mapping[str, Any], release: str) -> str:
    """Return how SchedulerConfig sizes the pools, in words."""
    config = sizes.config_of(options)
    tokens = sizes.one_block_size(layout, "attention")
    found = sizes.capacity_of(config, layout, options, release)
    room = "dynamic" if found.dynamic else "fixed"
    plural = "" if found.la_blocks == 1 else "s"
    states = (
        f", {found.la_blocks:,} state{plural}"
        if any(group.kind == "recurrent" for group in layout.groups)
        else ""
    )
    every = f", a checkpoint every {found.interval:,} tokens" if found.interval else ""
    caching = "prefix caching on" if config.enable_prefix_caching else "prefix caching off"
    blocks = f"{found.kv_blocks:,} KV blocks of {tokens} tokens"
    return f"{room} pools, {blocks}{states}{every}; {caching}, all else by SchedulerConfig"
