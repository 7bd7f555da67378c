"""The short causal convolution in front of a recurrence, and the state that it leaves behind.

Every channel is convolved by itself over the last K inputs, the newest included. What a later chunk
needs of the past are therefore the last K - 1 *inputs*: that is the conv state. It belongs to the
same token boundary as the recurrent state beside it, and is as wrong as that one if it comes from
any other.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def causal_conv(x: Tensor, weight: Tensor, state: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolve `x` [B, T, D] with `weight` [D, 1, K], continuing from `state` [B, K - 1, D];
    return silu of it [B, T, D].
    """
    inputs = torch.cat([state.type_as(x), x], dim=1).transpose(1, 2)
    return F.silu(F.conv1d(inputs, weight, bias, groups=weight.shape[0])).transpose(1, 2)


def conv_state_after(x: Tensor, state: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Return the state [B, K - 1, D] after the inputs `x` [B, T, D] that followed `state`, or
    after `lengths` [B] of them.
    """
    inputs = torch.cat([state.type_as(x), x], dim=1)
    if lengths is None:
        return inputs[:, x.shape[1] :]
    taken = lengths[:, None] + torch.arange(state.shape[1], device=x.device)
    return inputs.gather(1, taken[..., None].expand(-1, -1, x.shape[2]))
