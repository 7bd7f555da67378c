"""The model without pages: fast, differentiable, in any dtype, for training and for a cold run's
speed.

A text runs at once, or on from what an earlier part of it left behind (`Past`), which training
alters to choose what the rest may know. It shares its kernels with the paged execution, so it is no
judge of them: `definition` is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from cachewitness_reference.toy_model import attention, recurrent
from cachewitness_reference.toy_model.attention import Weights
from cachewitness_reference.toy_model.config import ToyConfig
from cachewitness_reference.toy_model.norms import rms_norm

Past = tuple[Tensor, Tensor]
"""What a layer leaves behind: key and value [B, S, KV, D] of all positions, or the convolution's
state and the memory."""


def forward(tokens: Tensor, w: Weights, config: ToyConfig) -> Tensor:
    """Return the logits [B, T, vocab] of `tokens` [B, T]."""
    return resume(tokens, w, config, 0, [None] * len(config.layer_types))[0]


def resume(
    tokens: Tensor, w: Weights, config: ToyConfig, start: int, past: Sequence[Past | None]
) -> tuple[Tensor, list[Past]]:
    """Return the logits [B, T, vocab] of `tokens` [B, T] at positions from `start` on, and what
    each layer leaves behind.

    `past` is what the layers left behind after the tokens before; None: there were none.
    """
    x = w["model.embed_tokens.weight"][tokens]
    left: list[Past] = []
    kept: Past
    for index, (layer_type, before) in enumerate(zip(config.layer_types, past, strict=True)):
        name = f"model.layers.{index}"
        normed = rms_norm(x, w[f"{name}.input_layernorm.weight"], config.rms_norm_eps)
        if recurrent.is_recurrent(layer_type):
            empty = recurrent.empty_state(layer_type, x.shape[0], config, x)
            state = empty if before is None else recurrent.RecurrentState(*before)
            mixed, kept = recurrent.run(layer_type, normed, state, w, name, config)
        else:
            window = config.sliding_window if layer_type == "sliding_attention" else 0
            mixed, kept = _attention(normed, w, f"{name}.self_attn", config, window, start, before)
        left.append(kept)
        x = x + mixed
        x = x + feed_forward(
            rms_norm(x, w[f"{name}.post_attention_layernorm.weight"], config.rms_norm_eps),
            w,
            f"{name}.mlp",
        )
    return unembed(x, w, config), left


def feed_forward(x: Tensor, w: Weights, name: str) -> Tensor:
    """Apply SwiGLU to `x` [..., hidden]."""
    inner = F.silu(x @ w[f"{name}.gate_proj.weight"].T) * (x @ w[f"{name}.up_proj.weight"].T)
    return inner @ w[f"{name}.down_proj.weight"].T


def unembed(x: Tensor, w: Weights, config: ToyConfig) -> Tensor:
    """Return the logits of the last layer's `x` [..., hidden]; the embedding is tied."""
    return (
        rms_norm(x, w["model.norm.weight"], config.rms_norm_eps) @ w["model.embed_tokens.weight"].T
    )


def _attention(
    x: Tensor,
    w: Weights,
    name: str,
    config: ToyConfig,
    window: int,
    start: int,
    before: Past | None,
) -> tuple[Tensor, Past]:
    positions = torch.arange(start, start + x.shape[1], device=x.device)
    query, key, value, gate = attention.project(x, positions, w, name, config)
    if before is not None:
        key, value = (
            torch.cat([old, new], dim=1) for old, new in zip(before, (key, value), strict=True)
        )
    keys = torch.arange(start + x.shape[1] - key.shape[1], start + x.shape[1], device=x.device)
    visible = attention.sees(positions, keys, window)[None]
    return attention.output(attention.attend(query, key, value, visible), gate, w, name, config), (
        key,
        value,
    )
