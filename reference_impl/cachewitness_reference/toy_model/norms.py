"""RMS normalisation: with zero-centred weights, gated behind a GatedDeltaNet layer, and gated
behind a Mamba2 layer.

Source: `Qwen3_5RMSNorm`, `Qwen3_5RMSNormGated` and Mamba2's `MambaRMSNormGated` (transformers
5.23). They compute in float32 at least, and so do these. The two gated forms differ: GatedDeltaNet
gates what is normalised, Mamba2 normalises what is gated.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def widened(x: Tensor) -> Tensor:
    """Return `x` in float32, or unchanged if it is wider."""
    return x if x.dtype == torch.float64 else x.float()


def unit_rms(x: Tensor, eps: float) -> Tensor:
    """Return `x` [..., D] scaled to root mean square 1."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise `x` [..., D]; a weight of 0 [D] leaves the unit scale."""
    return (unit_rms(widened(x), eps) * (1.0 + widened(weight))).type_as(x)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise `x` [..., D], then multiply it with silu(gate)."""
    normed = weight * unit_rms(widened(x), eps).type_as(x)
    return (normed * F.silu(widened(gate))).type_as(x)


def rms_norm_of_gated(x: Tensor, gate: Tensor, weight: Tensor, groups: int, eps: float) -> Tensor:
    """Multiply `x` [..., D] with silu(gate), then normalise it in `groups` equal parts."""
    gated = (widened(x) * F.silu(widened(gate))).unflatten(-1, (groups, -1))
    return weight * unit_rms(gated, eps).flatten(-2).type_as(x)
