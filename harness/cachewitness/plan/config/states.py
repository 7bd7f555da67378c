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


def _row(family: str, channels: int, kernel: int, shape: list[int], types: tuple[str, str]) -> Row:
    convolution = {"conv_channels": channels, "conv_kernel": kernel, "conv_dtype": types[0]}
    return {"family": family} | convolution | {"state_shape": shape, "state_dtype": types[1]}


def _typed(fields: Fields, field: str, otherwise: str, why: str) -> str:
    """Return the type of a state: what a field says, else a type with the reason why it is that."""
    said = fields.word(field, get_args(Dtype)) if field else None
    if said is None:
        fields.notes.append(f"state_dtype: the configuration names none; {otherwise} is {why}")
    return said or otherwise


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
        kept = _typed(fields, field, dtype, AUTO)
        return _row(
            "gdn", 2 * keys * key + values * value, kernel, [values, value, key], (dtype, kept)
        )

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
    kept = _typed(fields, "", "float32", "what vLLM's `auto` means for KDA")
    return _row("kda", 3 * heads * size, kernel, [heads, size, size], (dtype, kept))


def mamba1(fields: Fields, dtype: str) -> Row:
    """Return what a Mamba layer keeps: every channel has a state of its own."""
    inner = fields.count("mamba_expand") * fields.count("hidden_size")
    kept = _typed(fields, "", dtype, AUTO)
    return _row(
        "mamba1",
        inner,
        fields.count("mamba_d_conv"),
        [inner, fields.count("mamba_d_state")],
        (dtype, kept),
    )


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
    kept = _typed(fields, "", dtype, AUTO)
    return _row(
        "mamba2", inner + 2 * groups * size, kernel, [heads, inner // heads, size], (dtype, kept)
    )


def nemotron(fields: Fields, dtype: str) -> Row:
    """Return what a Mamba-2 layer keeps, by the names of Nemotron-H."""
    heads = fields.count("mamba_num_heads")
    size = fields.count("mamba_head_dim")
    width = fields.count("ssm_state_size")
    channels = heads * size + 2 * fields.count("n_groups", also="mamba_n_groups") * width
    kept = _typed(fields, "mamba_ssm_cache_dtype", "float32", "vLLM's choice for Nemotron-H")
    kernel = fields.count("conv_kernel", also="mamba_d_conv")
    return _row("mamba2", channels, kernel, [heads, size, width], (dtype, kept))


def short_conv(fields: Fields, dtype: str) -> Row:
    """Return what a short convolution of LFM2 keeps: its last inputs and no state beside them."""
    channels = fields.count("conv_dim" if fields.says("conv_dim") else "hidden_size")
    return _row("short_conv", channels, fields.count("conv_L_cache"), [], (dtype, dtype))
