"""A Mamba2 layer: one projection, the causal convolution, the recurrence, a norm of the gated
outputs.

Its state is a pair like GatedDeltaNet's: the convolution's last inputs and the memory, both of
exactly the same token.

Source: `Mamba2Mixer` (transformers 5.23); Bamba's and GraniteMoeHybrid's mixers compute the same.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from cachewitness_reference.toy_model.attention import Weights
from cachewitness_reference.toy_model.causal_conv import conv_state_after
from cachewitness_reference.toy_model.config import ToyConfig
from cachewitness_reference.toy_model.kernels import PLAIN, Kernels
from cachewitness_reference.toy_model.norms import rms_norm_of_gated, widened
from cachewitness_reference.toy_model.recurrent_state import RecurrentState, counted


def empty_state(batch: int, config: ToyConfig, like: Tensor) -> RecurrentState:
    """Return the state before the first token."""
    c = config
    conv = like.new_zeros(batch, c.mamba_conv_kernel_dim - 1, c.mamba_conv_dim)
    memory = like.new_zeros(batch, c.mamba_num_heads, c.mamba_head_dim, c.mamba_state_dim)
    return RecurrentState(conv, widened(memory))


def mamba2_layer(
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
    sizes = [c.mamba_inner_dim, c.mamba_conv_dim, c.mamba_num_heads]
    gate, mixed, dt = (x @ w[f"{name}.in_proj.weight"].T).split(sizes, dim=-1)
    convolved = kernels.conv(
        mixed, w[f"{name}.conv1d.weight"], state.conv, w[f"{name}.conv1d.bias"]
    )
    shared = c.mamba_num_groups * c.mamba_state_dim
    values, b_in, c_out = convolved.split([c.mamba_inner_dim, shared, shared], dim=-1)
    values = values.unflatten(-1, (-1, c.mamba_head_dim))
    b_in, c_out = (y.unflatten(-1, (-1, c.mamba_state_dim)) for y in (b_in, c_out))
    dt = F.softplus(widened(dt) + w[f"{name}.dt_bias"])
    if lengths is not None:
        dt = torch.where(real, dt, 0)
    g = -widened(w[f"{name}.A_log"]).exp() * dt
    if x.shape[1] == 1:
        out, memory = kernels.mamba2_by_token(values, dt, g, b_in, c_out, state.memory)
    else:
        out, memory = kernels.mamba2_by_chunk(
            values, dt, g, b_in, c_out, state.memory, c.chunk_size
        )
    out = (out + w[f"{name}.D"][:, None] * widened(values)).flatten(-2)
    out = rms_norm_of_gated(out, gate, w[f"{name}.norm.weight"], c.mamba_num_groups, c.rms_norm_eps)
    after = RecurrentState(conv_state_after(mixed, state.conv, lengths), memory)
    return out.type_as(x) @ w[f"{name}.out_proj.weight"].T, after
