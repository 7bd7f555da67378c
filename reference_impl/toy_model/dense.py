"""The model without a cache: fast, differentiable, in any dtype, for training and for a cold run's speed.

Every token attends over all tokens before it and every recurrence starts at the first token; nothing is kept, split, paged or
reused. It shares its kernels with the paged execution, so it is no judge of them: `definition` is.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from reference_impl.toy_model import attention, recurrent
from reference_impl.toy_model.attention import Weights
from reference_impl.toy_model.config import ToyConfig
from reference_impl.toy_model.norms import rms_norm


def forward(
    tokens: Tensor, w: Weights, config: ToyConfig, *, hidden: Tensor | None = None, forget: Tensor | None = None
) -> Tensor:
    """Return the logits [B, T, vocab] of `tokens` [B, T].

    For training on chosen paths: `hidden` [B, T, T] are keys that full attention must do without, `forget` [B, T] the tokens
    before which recurrent memories are dropped.
    """
    x = w["model.embed_tokens.weight"][tokens]
    for index, layer_type in enumerate(config.layer_types):
        name = f"model.layers.{index}"
        normed = rms_norm(x, w[f"{name}.input_layernorm.weight"], config.rms_norm_eps)
        if recurrent.is_recurrent(layer_type):
            state = recurrent.empty_state(layer_type, x.shape[0], config, x)
            mixed, _ = recurrent.run(layer_type, normed, state, w, name, config, forget=forget)
        elif layer_type == "full_attention":
            mixed = _attention(normed, w, f"{name}.self_attn", config, 0, hidden)
        else:
            mixed = _attention(normed, w, f"{name}.self_attn", config, config.sliding_window, None)
        x = x + mixed
        x = x + feed_forward(rms_norm(x, w[f"{name}.post_attention_layernorm.weight"], config.rms_norm_eps), w, f"{name}.mlp")
    return unembed(x, w, config)


def feed_forward(x: Tensor, w: Weights, name: str) -> Tensor:
    """Apply SwiGLU to `x` [..., hidden]."""
    inner = F.silu(x @ w[f"{name}.gate_proj.weight"].T) * (x @ w[f"{name}.up_proj.weight"].T)
    return inner @ w[f"{name}.down_proj.weight"].T


def unembed(x: Tensor, w: Weights, config: ToyConfig) -> Tensor:
    """Return the logits of the last layer's `x` [..., hidden]; the embedding is tied."""
    return rms_norm(x, w["model.norm.weight"], config.rms_norm_eps) @ w["model.embed_tokens.weight"].T


def _attention(x: Tensor, w: Weights, name: str, config: ToyConfig, window: int, hidden: Tensor | None) -> Tensor:
    positions = torch.arange(x.shape[1], device=x.device)
    query, key, value, gate = attention.project(x, positions, w, name, config)
    visible = attention.sees(positions, positions, window)[None]
    if hidden is not None:
        visible = visible & ~hidden
    return attention.output(attention.attend(query, key, value, visible), gate, w, name)
