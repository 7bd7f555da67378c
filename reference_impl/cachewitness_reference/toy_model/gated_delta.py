"""The gated delta rule, token by token and chunk by chunk.

A head keeps a matrix S [K, V], a memory from keys to values. For each token, with decay exp(g) <= 1
and write strength beta::

    S <- exp(g) S                       forget a little
    S <- S + beta k (v - S^T k)^T       replace what the memory holds under k by v
    o  = S^T q / sqrt(K)                read

`recurrent` is this definition. `chunked` computes the same for a chunk of C tokens at once: within
a chunk the corrections v - S^T k depend on one another through a unit lower triangular system,
whose solution turns the loop over tokens into matrix products and leaves a loop over chunks. Both
return the state after the last token, so that a later call can go on from it.

Source: Yang, Kautz, Hatamizadeh, "Gated Delta Networks" (arXiv 2412.06464), section 3; order of
operations as in `torch_chunk_gated_delta_rule` (transformers 5.23), which computes in float32
whatever it is given; here float64 stays float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cachewitness_reference.toy_model.norms import widened


def unit_keys(x: Tensor) -> Tensor:
    """Return `x` [..., D] scaled to length 1."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def recurrent(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Apply the rule token by token.

    q, k [B, T, H, K] (not normalised); v [B, T, H, V]; g, beta [B, T, H]; state [B, H, K, V].
    Returns the outputs [B, T, H, V] and the state after the last token.
    """
    dtype = v.dtype
    q, k, v, g, beta, state = _prepared(q, k, v, g, beta, state)
    outputs = []
    for t in range(v.shape[2]):
        key = k[:, :, t]
        state = state * g[:, :, t].exp()[..., None, None]
        known = (state * key[..., None]).sum(-2)
        correction = (v[:, :, t] - known) * beta[:, :, t, None]
        state = state + key[..., None] * correction[..., None, :]
        outputs.append((state * q[:, :, t, :, None]).sum(-2))
    return torch.stack(outputs, dim=1).to(dtype), state


def chunked(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, chunk_size: int
) -> tuple[Tensor, Tensor]:
    """Apply the rule `chunk_size` tokens at a time; shapes as in `recurrent`. Tokens that do
    nothing fill the last chunk.
    """
    dtype = v.dtype
    length = v.shape[1]
    q, k, v, g, beta, state = _prepared(q, k, v, g, beta, state)
    padding = -length % chunk_size
    q, k, v = (
        torch.nn.functional.pad(x, (0, 0, 0, padding)).unflatten(2, (-1, chunk_size))
        for x in (q, k, v)
    )
    g, beta = (
        torch.nn.functional.pad(x, (0, padding)).unflatten(2, (-1, chunk_size)) for x in (g, beta)
    )

    decay = g.cumsum(-1)  # log of the decay from the start of the chunk to each token, inclusive
    later = torch.ones(chunk_size, chunk_size, dtype=torch.bool, device=q.device).triu(1)
    between = (decay[..., :, None] - decay[..., None, :]).masked_fill(later, float("-inf")).exp()
    system = (k * beta[..., None]) @ k.transpose(-1, -2) * between
    within = q @ k.transpose(-1, -2) * between
    values = _solve(system, v * beta[..., None])
    reads = _solve(system, k * beta[..., None] * decay.exp()[..., None])

    from_start = q * decay.exp()[..., None]
    to_end = k * (decay[..., -1:] - decay).exp()[..., None]
    whole = decay[..., -1].exp()[..., None, None]
    outputs = []
    for c in range(q.shape[2]):
        corrections = values[:, :, c] - reads[:, :, c] @ state
        outputs.append(from_start[:, :, c] @ state + within[:, :, c] @ corrections)
        state = state * whole[:, :, c] + to_end[:, :, c].transpose(-1, -2) @ corrections
    out = torch.stack(outputs, dim=2).flatten(2, 3)[:, :, :length]
    return out.transpose(1, 2).to(dtype), state


def _solve(system: Tensor, right: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)


def _prepared(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Widen, bring heads to the front, repeat keys for grouped values, normalise queries and
    keys.
    """
    repeats = v.shape[2] // k.shape[2]
    if repeats > 1:
        q, k = q.repeat_interleave(repeats, dim=2), k.repeat_interleave(repeats, dim=2)
    q, k, v, g, beta = (widened(x).transpose(1, 2).contiguous() for x in (q, k, v, g, beta))
    return unit_keys(q) * q.shape[-1] ** -0.5, unit_keys(k), v, g, beta, state.to(v)
