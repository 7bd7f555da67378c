"""Parameters of a toy model: their names and shapes, and a seeded initialisation.

Names and shapes are those of a Hugging Face Qwen3.5 text checkpoint; a Mamba2 layer's are those of
GraniteMoeHybrid's `mamba`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from cachewitness_reference.toy_model.config import ToyConfig

ONE_AT_FIRST = ("linear_attn.norm.weight", "mamba.norm.weight", "mamba.D")


def shapes(config: ToyConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield every parameter's name and shape, in order."""
    c = config
    yield "model.embed_tokens.weight", (c.vocab_size, c.hidden_size)
    for index, layer_type in enumerate(c.layer_types):
        name = f"model.layers.{index}"
        yield f"{name}.input_layernorm.weight", (c.hidden_size,)
        if layer_type == "linear_attention":
            yield from _linear_attention(f"{name}.linear_attn", c)
        elif layer_type == "mamba2":
            yield from _mamba2(f"{name}.mamba", c)
        else:
            yield from _attention(f"{name}.self_attn", c)
        yield f"{name}.post_attention_layernorm.weight", (c.hidden_size,)
        yield f"{name}.mlp.gate_proj.weight", (c.intermediate_size, c.hidden_size)
        yield f"{name}.mlp.up_proj.weight", (c.intermediate_size, c.hidden_size)
        yield f"{name}.mlp.down_proj.weight", (c.hidden_size, c.intermediate_size)
    yield "model.norm.weight", (c.hidden_size,)


def _attention(name: str, c: ToyConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.q_proj.weight", (2 * c.num_attention_heads * c.head_dim, c.hidden_size)
    yield f"{name}.k_proj.weight", (c.num_key_value_heads * c.head_dim, c.hidden_size)
    yield f"{name}.v_proj.weight", (c.num_key_value_heads * c.head_dim, c.hidden_size)
    yield f"{name}.o_proj.weight", (c.hidden_size, c.num_attention_heads * c.head_dim)
    yield f"{name}.q_norm.weight", (c.head_dim,)
    yield f"{name}.k_norm.weight", (c.head_dim,)


def _linear_attention(name: str, c: ToyConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    values = c.linear_num_value_heads * c.linear_value_head_dim
    yield f"{name}.in_proj_qkv.weight", (c.linear_conv_dim, c.hidden_size)
    yield f"{name}.in_proj_z.weight", (values, c.hidden_size)
    yield f"{name}.in_proj_b.weight", (c.linear_num_value_heads, c.hidden_size)
    yield f"{name}.in_proj_a.weight", (c.linear_num_value_heads, c.hidden_size)
    yield f"{name}.conv1d.weight", (c.linear_conv_dim, 1, c.linear_conv_kernel_dim)
    yield f"{name}.dt_bias", (c.linear_num_value_heads,)
    yield f"{name}.A_log", (c.linear_num_value_heads,)
    yield f"{name}.norm.weight", (c.linear_value_head_dim,)
    yield f"{name}.out_proj.weight", (c.hidden_size, values)


def _mamba2(name: str, c: ToyConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield (
        f"{name}.in_proj.weight",
        (
            c.mamba_inner_dim + c.mamba_conv_dim + c.mamba_num_heads,
            c.hidden_size,
        ),
    )
    yield f"{name}.conv1d.weight", (c.mamba_conv_dim, 1, c.mamba_conv_kernel_dim)
    yield f"{name}.conv1d.bias", (c.mamba_conv_dim,)
    yield f"{name}.dt_bias", (c.mamba_num_heads,)
    yield f"{name}.A_log", (c.mamba_num_heads,)
    yield f"{name}.D", (c.mamba_num_heads,)
    yield f"{name}.norm.weight", (c.mamba_inner_dim,)
    yield f"{name}.out_proj.weight", (c.hidden_size, c.mamba_inner_dim)


def random_weights(
    config: ToyConfig, seed: int, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Return freshly initialised parameters; the same for the same seed, whatever the dtype is
    rounded to.
    """
    generator = torch.Generator().manual_seed(seed)
    return {name: _initial(name, shape, generator).to(dtype) for name, shape in shapes(config)}


def _initial(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if name.endswith("dt_bias"):
        # softplus(dt_bias) lies between 3/10000 and 3/100: memories that last from tens to
        # thousands of tokens.
        low = math.log(3e-4)
        high = math.log(3e-2)
        steps = torch.exp(low + (high - low) * torch.rand(shape, generator=generator))
        return steps + torch.log(-torch.expm1(-steps))
    if name.endswith("A_log"):
        return torch.zeros(shape)
    if name.endswith("q_norm.weight"):
        return torch.ones(
            shape
        )  # twice the unit scale, so that attention can be sharp from the start
    if len(shape) == 1:
        return torch.ones(shape) if name.endswith(ONE_AT_FIRST) else torch.zeros(shape)
    scale = 0.05 if "embed" in name else math.prod(shape[1:]) ** -0.5
    if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
        scale *= 0.5
    elif name.endswith("in_proj_a.weight"):
        scale *= 0.1  # at first the bias alone says how fast a memory fades
    return torch.randn(shape, generator=generator) * scale
