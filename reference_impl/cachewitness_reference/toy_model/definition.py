"""The model by its published definition: one plain forward pass in float64, written apart from
everything that it judges.

It shares no function with `dense` or `paged`: no kernel, norm, convolution or rotation. Recurrences
run token by token as their papers state them, attention is a softmax over all pairs of positions,
and nothing is kept, split, paged or resumed. Texts of unequal length run side by side, filled up on
the right; every layer is causal, so what fills up changes nothing before it.

The same pass in a narrower format, with memories rounded whenever they would be stored, says how
far rounding alone moves a right computation. It is the only thing here that does not run in
float64.

Sources: Yang, Kautz, Hatamizadeh (arXiv 2412.06464), equation 10, for GatedDeltaNet; Dao, Gu (arXiv
2405.21060), equations 1 and 3, for Mamba2; Su et al. (arXiv 2104.09864), equation 34, for rotary
positions; Qwen3.5 for the blocks around them. Inverse frequencies are published in float32 and stay
rounded to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from cachewitness_reference.toy_model.config import ToyConfig

Weights = Mapping[str, Tensor]
Kept = dict[str, Tensor]
"""What a layer leaves in a cache: `key` and `value` [B, T, KV, D] for each position, or `conv` and
`memory` after some tokens.
"""


class Rounding(NamedTuple):
    """How a computation is rounded: everything to `dtype`, memories to `stored` once in `every`
    tokens if that is given.
    """

    dtype: torch.dtype
    stored: torch.dtype | None = None
    every: int = 1


EXACT = Rounding(torch.float64)


@dataclass
class Computed:
    """What the definition says of texts: logits [B, T, vocab], outputs [B, T, hidden] of each
    layer, and what each keeps.

    The states of recurrent layers [B, ...] are those after as many tokens of each text as was asked
    for.
    """

    logits: Tensor
    outputs: list[Tensor] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)


def compute(
    texts: Sequence[Sequence[int]],
    weights: Weights,
    config: ToyConfig,
    *,
    after: Sequence[int] = (),
    rounding: Rounding = EXACT,
) -> Computed:
    """Compute texts on the CPU. `after[b]` says after how many tokens of text b states are wanted
    (0: before the first).

    By default states are those after the last token of each text.
    """
    longest = max(len(text) for text in texts)
    tokens = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
    ends = torch.tensor(list(after) or [len(text) for text in texts])
    w = {name: tensor.detach().to("cpu", rounding.dtype) for name, tensor in weights.items()}
    with torch.inference_mode():
        return _compute(tokens, ends, w, config, rounding)


def _compute(
    tokens: Tensor, ends: Tensor, w: Weights, config: ToyConfig, rounding: Rounding
) -> Computed:
    embedding = w["model.embed_tokens.weight"]
    eps = config.rms_norm_eps
    stream = embedding[tokens]
    found = Computed(stream)
    for number, layer_type in enumerate(config.layer_types):
        layer = {name.removeprefix(f"model.layers.{number}."): tensor for name, tensor in w.items()}
        normed = _normalised(stream, eps) * (1 + layer["input_layernorm.weight"])
        if layer_type == "linear_attention":
            mixed, kept = _gated_delta_net(normed, ends, layer, config, rounding)
        elif layer_type == "mamba2":
            mixed, kept = _mamba2(normed, ends, layer, config, rounding)
        else:
            window = config.sliding_window if layer_type == "sliding_attention" else tokens.shape[1]
            mixed, kept = _attention(normed, window, layer, config)
        stream = stream + mixed
        normed = _normalised(stream, eps) * (1 + layer["post_attention_layernorm.weight"])
        inner = _silu(_linear(normed, layer["mlp.gate_proj.weight"])) * _linear(
            normed, layer["mlp.up_proj.weight"]
        )
        stream = stream + _linear(inner, layer["mlp.down_proj.weight"])
        found.outputs.append(stream)
        found.kept.append(kept)
    found.logits = _linear(_normalised(stream, eps) * (1 + w["model.norm.weight"]), embedding)
    return found


# --- recurrent layers -----------------------------------------------------------------------------


def _gated_delta_net(
    x: Tensor, ends: Tensor, w: Weights, c: ToyConfig, rounding: Rounding
) -> tuple[Tensor, Kept]:
    """S <- a S (I - b k k^T) + b v k^T and o = S q, for each head and token, S [V, K]; here S is
    kept as its transpose.
    """
    heads = c.linear_num_value_heads
    groups = c.linear_num_key_heads
    size = c.linear_key_head_dim
    inputs = _linear(x, w["linear_attn.in_proj_qkv.weight"])
    mixed = _silu(_convolved(inputs, w["linear_attn.conv1d.weight"]))
    q = mixed[..., : groups * size].unflatten(-1, (groups, size))
    k = mixed[..., groups * size : 2 * groups * size].unflatten(-1, (groups, size))
    v = mixed[..., 2 * groups * size :].unflatten(-1, (heads, c.linear_value_head_dim))
    q, k = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
    q, k = (part[:, :, torch.arange(heads) * groups // heads] for part in (q, k))
    write = 1 / (1 + torch.exp(-_linear(x, w["linear_attn.in_proj_b.weight"])))
    rate = torch.nn.functional.softplus(
        _linear(x, w["linear_attn.in_proj_a.weight"]) + w["linear_attn.dt_bias"]
    )
    keep = torch.exp(-torch.exp(w["linear_attn.A_log"]) * rate)

    scan = _Scan(x.new_zeros(x.shape[0], heads, size, c.linear_value_head_dim), ends, rounding)
    out = []
    for t in range(x.shape[1]):
        key = k[:, t, :, None]
        memory = scan.memory * keep[:, t, :, None, None]
        correction = write[:, t, :, None, None] * (v[:, t, :, None] - key @ memory)
        memory = memory + key.mT @ correction
        out.append((q[:, t, :, None] @ memory)[:, :, 0])
        scan.after(memory)
    read = torch.stack(out, dim=1) / size**0.5
    gate = _linear(x, w["linear_attn.in_proj_z.weight"]).unflatten(-1, (heads, -1))
    read = w["linear_attn.norm.weight"] * _normalised(read, c.rms_norm_eps) * _silu(gate)
    kept = {"conv": _last_inputs(inputs, ends, c.linear_conv_kernel_dim), "memory": scan.wanted}
    return _linear(read.flatten(-2), w["linear_attn.out_proj.weight"]), kept


def _mamba2(
    x: Tensor, ends: Tensor, w: Weights, c: ToyConfig, rounding: Rounding
) -> tuple[Tensor, Kept]:
    """S <- exp(dt A) S + dt x B^T and y = S C + D x, for each head and token, S [P, N]."""
    heads = c.mamba_num_heads
    groups = c.mamba_num_groups
    inner = c.mamba_inner_dim
    size = c.mamba_state_dim
    projected = _linear(x, w["mamba.in_proj.weight"])
    gate = projected[..., :inner]
    inputs = projected[..., inner:-heads]
    time = projected[..., -heads:]
    mixed = _silu(_convolved(inputs, w["mamba.conv1d.weight"]) + w["mamba.conv1d.bias"])
    value = mixed[..., :inner].unflatten(-1, (heads, -1))
    of_head = torch.arange(heads) * groups // heads
    b = mixed[..., inner : inner + groups * size].unflatten(-1, (groups, size))[:, :, of_head]
    c_out = mixed[..., inner + groups * size :].unflatten(-1, (groups, size))[:, :, of_head]
    dt = torch.nn.functional.softplus(time + w["mamba.dt_bias"])
    keep = torch.exp(-torch.exp(w["mamba.A_log"]) * dt)

    scan = _Scan(x.new_zeros(x.shape[0], heads, c.mamba_head_dim, size), ends, rounding)
    out = []
    for t in range(x.shape[1]):
        step = (dt[:, t, :, None] * value[:, t])[..., None] * b[:, t, :, None]
        memory = keep[:, t, :, None, None] * scan.memory + step
        out.append((memory @ c_out[:, t, :, :, None])[..., 0])
        scan.after(memory)
    y = torch.stack(out, dim=1) + w["mamba.D"][:, None] * value
    gated = (y.flatten(-2) * _silu(gate)).unflatten(-1, (groups, -1))
    y = w["mamba.norm.weight"] * _normalised(gated, c.rms_norm_eps).flatten(-2)
    kept = {"conv": _last_inputs(inputs, ends, c.mamba_conv_kernel_dim), "memory": scan.wanted}
    return _linear(y, w["mamba.out_proj.weight"]), kept


class _Scan:
    """A memory from token to token, rounded as it would be stored, and what it was after the
    tokens asked for.
    """

    def __init__(self, empty: Tensor, ends: Tensor, rounding: Rounding) -> None:
        self.memory = empty
        self.wanted = empty.clone()
        self._ends = ends
        self._rounding = rounding
        self._tokens = 0

    def after(self, memory: Tensor) -> None:
        """Take in the memory after one token more."""
        self._tokens += 1
        stored = self._rounding.stored
        every = self._rounding.every
        self.memory = (
            memory.to(stored).to(memory.dtype)
            if stored is not None and self._tokens % every == 0
            else memory
        )
        here = self._ends == self._tokens
        if bool(here.any()):
            self.wanted[here] = self.memory[here]


def _convolved(x: Tensor, weight: Tensor) -> Tensor:
    """Return for each token the sum of the last K inputs, the newest under the last weight;
    `weight` [D, 1, K].
    """
    width = weight.shape[-1]
    out = torch.zeros_like(x)
    for back in range(min(width, x.shape[1])):
        out[:, back:] += x[:, : x.shape[1] - back] * weight[:, 0, width - 1 - back]
    return out


def _last_inputs(x: Tensor, ends: Tensor, width: int) -> Tensor:
    """Return the K - 1 inputs [B, K - 1, D] in front of each end; what lies before the text is
    0.
    """
    padded = torch.cat([x.new_zeros(x.shape[0], width - 1, x.shape[2]), x], dim=1)
    return torch.stack(
        [padded[row, end : end + width - 1] for row, end in enumerate(ends.tolist())]
    )


# --- attention ------------------------------------------------------------------------------------


def _attention(x: Tensor, window: int, w: Weights, c: ToyConfig) -> tuple[Tensor, Kept]:
    heads = c.num_attention_heads
    groups = c.num_key_value_heads
    size = c.head_dim
    both = _linear(x, w["self_attn.q_proj.weight"]).unflatten(-1, (heads, 2, size))
    query = both[..., 0, :]
    gate = both[..., 1, :]
    key = _linear(x, w["self_attn.k_proj.weight"]).unflatten(-1, (groups, size))
    value = _linear(x, w["self_attn.v_proj.weight"]).unflatten(-1, (groups, size))
    query = _placed(_normalised(query, c.rms_norm_eps) * (1 + w["self_attn.q_norm.weight"]), c)
    key = _placed(_normalised(key, c.rms_norm_eps) * (1 + w["self_attn.k_norm.weight"]), c)
    of_head = torch.arange(heads) * groups // heads
    at = torch.arange(x.shape[1])
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key[:, :, of_head]) / size**0.5
    back = at[:, None] - at[None, :]
    scores = torch.where((back >= 0) & (back < window), scores, float("-inf"))
    shares = torch.exp(scores - scores.amax(-1, keepdim=True))
    shares = shares / shares.sum(-1, keepdim=True)
    mixed = torch.einsum("bhqk,bkhd->bqhd", shares, value[:, :, of_head])
    opened = (
        1 / (1 + torch.exp(-gate))
        if c.attention_gate == "sigmoid"
        else torch.logaddexp(gate, torch.zeros_like(gate))
    )
    mixed = (mixed * opened).flatten(-2)
    return _linear(mixed, w["self_attn.o_proj.weight"]), {"key": key, "value": value}


def _placed(x: Tensor, c: ToyConfig) -> Tensor:
    """Turn each pair (i, i + R / 2) of the first R dimensions of `x` [B, T, H, D] by the
    position times its frequency.
    """
    half = c.rotary_dim // 2
    frequencies = 1 / c.rope_theta ** (torch.arange(half, dtype=torch.float32) * 2 / c.rotary_dim)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    angles = (torch.arange(x.shape[1], dtype=wide)[:, None] * frequencies.to(wide))[:, None]
    cos = torch.cos(angles).to(x.dtype)
    sin = torch.sin(angles).to(x.dtype)
    real = x[..., :half]
    imaginary = x[..., half : 2 * half]
    turned = [real * cos - imaginary * sin, imaginary * cos + real * sin, x[..., 2 * half :]]
    return torch.cat(turned, dim=-1)


# --- what all layers use --------------------------------------------------------------------------


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return weight times x for each vector of `x` [..., in]; `weight` [out, in]."""
    return torch.einsum("...i,oi->...o", x, weight)


def _normalised(x: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def _silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))
