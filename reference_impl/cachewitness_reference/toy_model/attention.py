"""Softmax attention with rotary positions, normalised queries and keys, and an output gate; full or
sliding.

A sliding window of W tokens counts the query: the query at position p sees keys at p - W + 1 ... p.
Keys are cached after rotation, so a cached block is bound to its positions, and full attention over
blocks is a function of the *set* of its keys.

Source: `Qwen3_5Attention`, `LagunaAttention` and `Gemma3Attention` (transformers 5.23).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from cachewitness_reference.toy_model.config import ToyConfig
from cachewitness_reference.toy_model.norms import rms_norm, widened

Weights = Mapping[str, Tensor]
"""Parameters by name, as in a Hugging Face checkpoint."""


def inverse_frequencies(config: ToyConfig, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return by how much each pair of dimensions turns from one position to the next [rotary_dim
    / 2], in float32 at least.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    exponents = (
        torch.arange(0, config.rotary_dim, 2, dtype=torch.float32, device=device)
        / config.rotary_dim
    )
    return (1.0 / config.rope_theta**exponents).to(wide)


def rotary(positions: Tensor, config: ToyConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [..., rotary_dim] for positions [...]."""
    frequencies = inverse_frequencies(config, dtype, positions.device)
    angles = positions[..., None].to(frequencies.dtype) * frequencies
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first dimensions of `x` [..., H, D] by cos, sin [..., R]."""
    cos, sin = cos[..., None, :], sin[..., None, :]
    turned = x[..., : cos.shape[-1]]
    rest = x[..., cos.shape[-1] :]
    first, second = turned.chunk(2, dim=-1)
    return torch.cat([turned * cos + torch.cat([-second, first], dim=-1) * sin, rest], dim=-1)


def project(
    x: Tensor, positions: Tensor, w: Weights, name: str, config: ToyConfig
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return query [..., H, D], key and value [..., KV, D] (what the cache holds) and the output
    gate [..., H * D] for `x`.
    """
    query, gate = (
        (x @ w[f"{name}.q_proj.weight"].T).unflatten(-1, (-1, 2 * config.head_dim)).chunk(2, dim=-1)
    )
    key = (x @ w[f"{name}.k_proj.weight"].T).unflatten(-1, (-1, config.head_dim))
    value = (x @ w[f"{name}.v_proj.weight"].T).unflatten(-1, (-1, config.head_dim))
    cos, sin = rotary(positions, config, x.dtype)
    query = rotate(rms_norm(query, w[f"{name}.q_norm.weight"], config.rms_norm_eps), cos, sin)
    key = rotate(rms_norm(key, w[f"{name}.k_norm.weight"], config.rms_norm_eps), cos, sin)
    return query, key, value, gate.flatten(-2)


def attend(query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
    """Return the attention outputs [B, T, H * D].

    query [B, T, H, D]; key, value [B, S, KV, D]; visible [B or 1, T, S] says which keys a query
    sees (at least one).
    """
    repeats = query.shape[-2] // key.shape[-2]
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    scores = scores.masked_fill(~visible[:, None], float("-inf"))
    weights = torch.softmax(widened(scores), dim=-1).type_as(query)
    return (weights @ value).transpose(1, 2).flatten(-2)


def output(attended: Tensor, gate: Tensor, w: Weights, name: str, config: ToyConfig) -> Tensor:
    """Gate the attention outputs [..., H * D] and project them back to the hidden size."""
    opened = torch.sigmoid(gate) if config.attention_gate == "sigmoid" else F.softplus(gate)
    return attended * opened @ w[f"{name}.o_proj.weight"].T


def sees(queries: Tensor, keys: Tensor, window: int = 0) -> Tensor:
    """Return which keys at positions `keys` [..., S] queries at `queries` [..., T] see: [..., T,
    S]. Window 0 is unbounded.
    """
    distance = queries[..., :, None] - keys[..., None, :]
    return (distance >= 0) & (distance < window) if window else distance >= 0
