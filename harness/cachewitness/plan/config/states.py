"""What a recurrent layer keeps, as rows of `[[model.caches]]` without the number of layers.

The shapes are vLLM 0.33.0's (`model_executor/layers/mamba/mamba_utils.py`), and so are the types
where a configuration names none (`model_executor/models/config.py`). Every function takes the
fields and the type of the weights, and raises UsageError naming the field that does not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from cachewitness.plan.config.fields import Fields
from cachewitness.workloads.model import Dtype

Row = dict[str, Any]
AUTO = "what vLLM's `auto` makes of such weights"


def _row(
    family: str, channels: int, kernel: int, shape: list[int], types: tuple[str, str, bool]
) -> Row:
    """Return a row; `types` are those of the convolution and of the state, and whether the file
    fixes the latter.
    """
    convolution = {"conv_channels": channels, "conv_kernel": kernel, "conv_dtype": types[0]}
    state = {"state_shape": shape, "state_dtype": types[1]}
    fixed = {"state_dtype_fixed": True} if types[2] else {}
    return {"family": family} | convolution | state | fixed


def _typed(
    fields: Fields, field: str, dtype: str, otherwise: str, why: str
) -> tuple[str, str, bool]:
    """Return the types of a convolution and its state, the latter what a field says, else a type
    with the reason why it is that; and whether the file fixes it.
    """
    named = fields.word(field, get_args(Dtype)) if field else None
    if named is None:
        fields.notes.append(f"state_dtype: the configuration names none; {otherwise} is {why}")
    return dtype, named or otherwise, named is not None and named == dtype


def gated_delta(field: str) -> Callable[[Fields, str], Row]:
    """Return the reader of a gated DeltaNet layer; `field` names the type of its state, in
    configurations that say it.
    """

    def state(fields: Fields, dtype: str) -> Row:
        keys = fields.count("linear_num_key_heads")
        key = fields.count("linear_key_head_dim")
        values = fields.count("linear_num_value_heads")
        value = fields.count("linear_value_head_dim")
        kernel = fields.count("linear_conv_kernel_dim")
        kept = _typed(fields, field, dtype, dtype, AUTO)
        return _row("gdn", 2 * keys * key + values * value, kernel, [values, value, key], kept)

    return state


def kda(fields: Fields, dtype: str) -> Row:
    """Return what Kimi delta attention keeps: keys, queries and values pass a convolution each."""
    inner = fields.table("linear_attn_config")
    if inner is None:
        heads = fields.count("linear_num_heads")
        size = fields.count("linear_head_dim")
        kernel = fields.count("linear_conv_kernel_dim")
    else:
        heads = inner.count("num_heads")
        size = inner.count("head_dim")
        kernel = inner.count("short_conv_kernel_size")
    kept = _typed(fields, "", dtype, "float32", "what vLLM's `auto` means for KDA")
    return _row("kda", 3 * heads * size, kernel, [heads, size, size], kept)


def mamba1(fields: Fields, dtype: str) -> Row:
    """Return what a Mamba layer keeps: every channel has a state of its own."""
    inner = fields.count("mamba_expand") * fields.count("hidden_size")
    kept = _typed(fields, "", dtype, dtype, AUTO)
    kernel = fields.count("mamba_d_conv")
    return _row("mamba1", inner, kernel, [inner, fields.count("mamba_d_state")], kept)


def mamba2(fields: Fields, dtype: str) -> Row:
    """Return what a Mamba-2 layer keeps, by the names of Falcon-H1 and Granite 4."""
    inner_field = "mamba_d_ssm" if fields.settles("mamba_d_ssm") else "hidden_size"
    inner = fields.count(inner_field) * (
        1 if inner_field == "mamba_d_ssm" else fields.count("mamba_expand")
    )
    heads = fields.count("mamba_n_heads")
    if inner % heads:
        raise fields.refused(
            "mamba_n_heads", f"{inner} channels cannot be divided by {heads} heads"
        )
    if (
        fields.says("mamba_d_head")
        and not fields.auto("mamba_d_head")
        and fields.count("mamba_d_head") * heads != inner
    ):
        raise fields.refused(
            "mamba_d_head",
            f"{heads} heads of this size are not the {inner} channels of {inner_field}",
        )
    groups = fields.count("mamba_n_groups")
    size = fields.count("mamba_d_state")
    kernel = fields.count("mamba_d_conv")
    kept = _typed(fields, "", dtype, dtype, AUTO)
    return _row("mamba2", inner + 2 * groups * size, kernel, [heads, inner // heads, size], kept)


def nemotron(fields: Fields, dtype: str) -> Row:
    """Return what a Mamba-2 layer keeps, by the names of Nemotron-H."""
    heads = fields.count("mamba_num_heads")
    size = fields.count("mamba_head_dim")
    width = fields.count("ssm_state_size")
    channels = heads * size + 2 * fields.count("n_groups", also="mamba_n_groups") * width
    kept = _typed(fields, "mamba_ssm_cache_dtype", dtype, "float32", "vLLM's choice for Nemotron-H")
    kernel = fields.count("conv_kernel", also="mamba_d_conv")
    return _row("mamba2", channels, kernel, [heads, size, width], kept)


def short_conv(fields: Fields, dtype: str) -> Row:
    """Return what a short convolution of LFM2 keeps: its last inputs and no state beside them."""
    channels = fields.count("conv_dim" if fields.says("conv_dim") else "hidden_size")
    return _row("short_conv", channels, fields.count("conv_L_cache"), [], (dtype, dtype, False))


def mamba(fields: Fields, dtype: str) -> Row:
    """Return what a layer of a Mamba without attention keeps."""
    expanded = fields.count("expand") * fields.count("hidden_size")
    inner = fields.count("intermediate_size") if fields.says("intermediate_size") else expanded
    kept = _typed(fields, "", dtype, dtype, AUTO)
    kernel = fields.count("conv_kernel")
    return _row("mamba1", inner, kernel, [inner, fields.count("state_size")], kept)


def plain_mamba2(fields: Fields, dtype: str) -> Row:
    """Return what a layer of a Mamba-2 without attention keeps."""
    inner = fields.count("expand") * fields.count("hidden_size")
    return _mamba2_of(
        fields,
        dtype,
        inner,
        heads="num_heads",
        groups=fields.count("n_groups"),
        size="state_size",
        kernel="conv_kernel",
    )


def zamba2(fields: Fields, dtype: str) -> Row:
    """Return what a Mamba-2 layer keeps, by the names of Zamba2."""
    inner = fields.count("mamba_expand") * fields.count("hidden_size")
    return _mamba2_of(
        fields,
        dtype,
        inner,
        heads="n_mamba_heads",
        groups=fields.count("mamba_ngroups"),
        size="mamba_d_state",
        kernel="mamba_d_conv",
    )


def plamo2(fields: Fields, dtype: str) -> Row:
    """Return what a Mamba-2 layer keeps, by the names of PLaMo 2, whose heads share no groups."""
    inner = fields.count("mamba_num_heads") * fields.count("hidden_size_per_head")
    return _mamba2_of(
        fields,
        dtype,
        inner,
        heads="mamba_num_heads",
        groups=0,
        size="mamba_d_state",
        kernel="mamba_d_conv",
    )


def _mamba2_of(
    fields: Fields, dtype: str, inner: int, *, heads: str, groups: int, size: str, kernel: str
) -> Row:
    number = fields.count(heads)
    if inner % number:
        raise fields.refused(heads, f"{inner} channels cannot be divided by {number} heads")
    width = fields.count(size)
    kept = _typed(fields, "", dtype, dtype, AUTO)
    return _row(
        "mamba2",
        inner + 2 * groups * width,
        fields.count(kernel),
        [number, inner // number, width],
        kept,
    )


def linear(fields: Fields, dtype: str) -> Row:
    """Return what linear attention keeps: a matrix for every head, and no convolution."""
    heads = fields.count("num_attention_heads")
    size = (
        fields.count("head_dim")
        if fields.says("head_dim")
        else fields.divided("hidden_size", "num_attention_heads")
    )
    kept = _typed(fields, "", dtype, dtype, AUTO)
    return _row("linear", 1, 1, [heads, size, size], kept)
