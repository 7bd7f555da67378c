"""A GatedDeltaNet layer: projections, the causal convolution, the gated delta rule, a gated norm.

Its state after a token is a pair: the convolution's last inputs and the memory of the delta rule.
Either both are of exactly that token or the layer goes on from something that never was.

Source: `Qwen3_5GatedDeltaNet` (transformers 5.23).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from cachewitness_reference.toy_model.attention import Weights
from cachewitness_reference.toy_model.causal_conv import conv_state_after
from cachewitness_reference.toy_model.config import ToyConfig
from cachewitness_reference.toy_model.kernels import PLAIN, Kernels
from cachewitness_reference.toy_model.norms import gated_rms_norm, widened
from cachewitness_reference.toy_model.recurrent_state import RecurrentState, counted


def empty_state(batch: int, config: ToyConfig, like: Tensor) -> RecurrentState:
    """Return the state before the first token."""
    c = config
    conv = like.new_zeros(batch, c.linear_conv_kernel_dim - 1, c.linear_conv_dim)
    memory = like.new_zeros(
        batch, c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim
    )
    return RecurrentState(conv, widened(memory))


def linear_attention(
    x: Tensor,
    state: RecurrentState,
    w: Weights,
    name: str,
    config: ToyConfig,
    lengths: Tensor | None = None,
    kernels: Kernels = PLAIN,
) -> tuple[Tensor, RecurrentState]:
    """Run the layer over `x` [B, T, hidden] from `state`; return the outputs and the state after
    the last token.

    One token runs by the recurrent form, more by the chunked one. Of row b only the first
    `lengths[b]` tokens count.
    """
    c = config
    if lengths is not None:
        real = counted(x.shape[1], lengths)[..., None]
        x = torch.where(real, x, 0)
    mixed = x @ w[f"{name}.in_proj_qkv.weight"].T
    convolved = kernels.conv(mixed, w[f"{name}.conv1d.weight"], state.conv)
    keys = c.linear_num_key_heads * c.linear_key_head_dim
    q, k, v = convolved.split([keys, keys, convolved.shape[-1] - 2 * keys], dim=-1)
    q, k = (y.unflatten(-1, (-1, c.linear_key_head_dim)) for y in (q, k))
    v = v.unflatten(-1, (-1, c.linear_value_head_dim))
    beta = torch.sigmoid(x @ w[f"{name}.in_proj_b.weight"].T)
    rate = F.softplus(widened(x @ w[f"{name}.in_proj_a.weight"].T) + w[f"{name}.dt_bias"])
    g = -widened(w[f"{name}.A_log"]).exp() * rate
    if lengths is not None:
        g, beta = torch.where(real, g, 0), torch.where(real, beta, 0)
    if x.shape[1] == 1:
        out, memory = kernels.delta_by_token(q, k, v, g, beta, state.memory)
    else:
        out, memory = kernels.delta_by_chunk(q, k, v, g, beta, state.memory, c.chunk_size)
    z = (x @ w[f"{name}.in_proj_z.weight"].T).unflatten(-1, (-1, c.linear_value_head_dim))
    out = gated_rms_norm(out, z, w[f"{name}.norm.weight"], c.rms_norm_eps)
    after = RecurrentState(conv_state_after(mixed, state.conv, lengths), memory)
    return out.flatten(-2) @ w[f"{name}.out_proj.weight"].T, after
