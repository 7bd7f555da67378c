"""What each layer of a model keeps, in order, by the ways in which configurations say it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cachewitness.plan.config.fields import Fields

Kinds = Callable[[Fields], list[str]]
FULL, SLIDING, STATE, NOTHING = "full", "sliding", "recurrent", ""
ATTENTION = {"full_attention": FULL, "attention": FULL}
RECURRENT = {"linear_attention": STATE, "mamba": STATE}
WINDOWS = {"sliding_attention": SLIDING, "full_attention": FULL}
BLOCKS = ATTENTION | RECURRENT | {"moe": NOTHING, "mlp": NOTHING}
LETTERS = {"M": STATE, "*": FULL, "-": NOTHING, "E": NOTHING}
"""Nemotron-H's pattern: Mamba-2, attention, and two kinds that keep nothing."""


def every(period: str | int, among: str, last: str, known: Mapping[str, str]) -> Kinds:
    """Return the reader of `layer_types`; left out, every so many-th layer is of the kind `last`,
    the others `among`.

    `period` is a number, or the field that has it.
    """

    def kinds(fields: Fields) -> list[str]:
        layers = fields.layers()
        if fields.says("layer_types"):
            return fields.kinds("layer_types", known, layers)
        apart = period if isinstance(period, int) else fields.count(period)
        return [among if (layer + 1) % apart else last for layer in range(layers)]

    return kinds


def alike(fields: Fields) -> list[str]:
    """Return the kinds of a model whose layers are alike: with windows if the file, or its
    class, names one that is not 0.
    """
    layers = fields.layers()
    if fields.says("layer_types"):
        return fields.kinds("layer_types", WINDOWS, layers)
    windowed = fields.settles("sliding_window") and fields.count("sliding_window", least=0) > 0
    return [SLIDING if windowed else FULL] * layers


def qwen(fields: Fields) -> list[str]:
    """Return the kinds of Qwen2 and Qwen3: full attention; a window counts only if
    `use_sliding_window` says so. A drafter of DFlash has windows where its list says so.
    """
    drafter = fields.table("dflash_config")
    if drafter is not None:
        return _dflash(fields, drafter)
    if fields.true("use_sliding_window"):
        raise fields.refused(
            "use_sliding_window", "which layers vLLM gives the window is not worked out here"
        )
    layers = fields.layers()
    return (
        fields.kinds("layer_types", ATTENTION, layers)
        if fields.says("layer_types")
        else [FULL] * layers
    )


def _dflash(fields: Fields, drafter: Fields) -> list[str]:
    """Return the kinds of a drafter of DFlash: a list of words, or windows in all layers."""
    if drafter.says("swa_window_size"):
        raise drafter.refused("swa_window_size", "windows of another size are not worked out here")
    layers = fields.layers()
    windowed = [SLIDING] * layers if drafter.true("use_swa") else [FULL] * layers
    if not fields.says("layer_types"):
        return windowed
    named = fields.kinds("layer_types", WINDOWS, layers)
    return named if SLIDING in named else windowed


def side_by_side(fields: Fields) -> list[str]:
    """Return the kinds of Falcon-H1: every layer has attention and Mamba-2 side by side."""
    return [FULL, STATE] * fields.layers()


def gemma(fields: Fields) -> list[str]:
    """Return the kinds of Gemma 3: every sixth layer is full, unless the file says otherwise."""
    if fields.true("use_bidirectional_attention"):
        raise fields.refused(
            "use_bidirectional_attention",
            "a model that reads in both directions has no prefix cache",
        )
    return every("sliding_window_pattern", SLIDING, FULL, WINDOWS)(fields)


def jamba(fields: Fields) -> list[str]:
    """Return the kinds of Jamba: attention at an offset within every period."""
    period = fields.count("attn_layer_period")
    offset = fields.count("attn_layer_offset", least=0)
    if offset >= period:
        raise fields.refused(
            "attn_layer_offset", f"{offset} is not below attn_layer_period {period}"
        )
    return [FULL if layer % period == offset else STATE for layer in range(fields.layers())]


def nemotron(fields: Fields) -> list[str]:
    """Return the kinds of Nemotron-H: a list of words, or a pattern of letters."""
    if fields.says("sliding_window"):
        raise fields.refused(
            "sliding_window", "what a window of Nemotron-H keeps is not worked out here"
        )
    for field in ("layers_block_type", "layer_types"):
        if fields.says(field):
            return fields.kinds(field, BLOCKS, None)
    return fields.kinds(
        "hybrid_override_pattern",
        LETTERS,
        fields.layers() if fields.says("num_hidden_layers") else None,
    )


def granite(fields: Fields) -> list[str]:
    """Return the kinds of Granite 4: a list that nothing replaces."""
    field = "layers_block_type" if fields.says("layers_block_type") else "layer_types"
    return fields.kinds(field, ATTENTION | RECURRENT, fields.layers())


def kimi(fields: Fields) -> list[str]:
    """Return the kinds of Kimi-Linear: two lists of layers, counted from 1, or a list of words."""
    layers = fields.layers()
    inner = fields.table("linear_attn_config")
    if inner is None or fields.says("layer_types"):
        return fields.kinds("layer_types", ATTENTION | RECURRENT, layers)
    full, kda = (inner.numbers(field, 1, layers) for field in ("full_attn_layers", "kda_layers"))
    if sorted(full + kda) != [*range(1, layers + 1)]:
        raise inner.refused(
            "full_attn_layers, kda_layers",
            f"together they do not name each of {layers} layers once",
        )
    return [FULL if layer in full else STATE for layer in range(1, layers + 1)]


def lfm2(fields: Fields) -> list[str]:
    """Return the kinds of LFM2: a list of words, or the layers that are attention."""
    layers = fields.layers()
    if fields.says("layer_types") or not fields.says("full_attn_idxs"):
        return fields.kinds("layer_types", ATTENTION | {"conv": STATE}, layers)
    full = fields.numbers("full_attn_idxs", 0, layers - 1)
    return [FULL if layer in full else STATE for layer in range(layers)]


def whole(fields: Fields) -> list[str]:
    """Return the kinds of a model of full attention alone. Raises UsageError if the file names
    others.
    """
    layers = fields.layers()
    if fields.says("layer_types"):
        return fields.kinds("layer_types", ATTENTION | {"indexed_attention": FULL}, layers)
    return [FULL] * layers


def chunks(fields: Fields) -> list[str]:
    """Return the kinds of Llama 4: vLLM keeps the layers that read a chunk whole, since it switches
    its hybrid manager off for them.
    """
    fields.notes.append(
        "layers that read a chunk of tokens are kept whole: vLLM switches its hybrid manager off"
        " for them, unless VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE is set"
    )
    return [FULL] * fields.layers()


def states(fields: Fields) -> list[str]:
    """Return the kinds of a model without attention."""
    return [STATE] * fields.layers()


def bamba(fields: Fields) -> list[str]:
    """Return the kinds of Bamba: the layers that are attention, counted from 0."""
    layers = fields.layers()
    if not fields.says("attn_layer_indices"):
        return [STATE] * layers
    full = fields.numbers("attn_layer_indices", 0, layers - 1)
    return [FULL if layer in full else STATE for layer in range(layers)]


def zamba2(fields: Fields) -> list[str]:
    """Return the kinds of Zamba2: every layer has a state, and a hybrid one attention beside it."""
    words = {"mamba": STATE, "linear_attention": STATE, "hybrid": FULL}
    named = fields.kinds("layers_block_type", words, fields.layers())
    return [kind for name in named for kind in ((FULL, STATE) if name == FULL else (STATE,))]


def plamo2(fields: Fields) -> list[str]:
    """Return the kinds of PLaMo 2: in the middle of every period attention, else states."""
    layers = fields.layers()
    period = fields.count("mamba_step", least=2)
    if layers <= period // 2:
        return [STATE] * (layers - 1) + [FULL]
    return [FULL if layer % period == period // 2 else STATE for layer in range(layers)]


def groups(field: str) -> Kinds:
    """Return the reader of a model whose groups of layers end with full attention."""

    def kinds(fields: Fields) -> list[str]:
        apart = fields.count(field)
        return [STATE if (layer + 1) % apart else FULL for layer in range(fields.layers())]

    return kinds


def flagged(field: str) -> Kinds:
    """Return the reader of a list of 0 and 1, where 1 is full attention and 0 a state."""

    def kinds(fields: Fields) -> list[str]:
        return [FULL if flag else STATE for flag in fields.flags(field, fields.layers())]

    return kinds


def shared(of: Kinds) -> Kinds:
    """Return the reader of a model whose last `num_kv_shared_layers` read what an earlier layer
    keeps.
    """

    def kinds(fields: Fields) -> list[str]:
        found = of(fields)
        settled = fields.settles("num_kv_shared_layers")
        borrowed = fields.count("num_kv_shared_layers", least=0) if settled else 0
        if borrowed >= len(found):
            raise fields.refused("num_kv_shared_layers", f"{borrowed} of {len(found)} layers")
        return found[: len(found) - borrowed] + [NOTHING] * borrowed

    return kinds
