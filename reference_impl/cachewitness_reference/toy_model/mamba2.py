"""The recurrence of Mamba2, token by token and chunk by chunk.

A head keeps a matrix S [P, N]. For each token, with time step dt >= 0 and log decay g = dt A <= 0::

    S <- exp(g) S + dt x B^T     forget a little, write
    y  = S C                     read

`recurrent` is this definition. `chunked` computes the same for a chunk of tokens at once: as
nothing stored is ever corrected, a token's output is a masked, decayed attention over the chunk
plus what the state at its start contributes. Both return the state after the last token. A token
with dt = g = 0 leaves the state as it was.

Source: Dao, Gu, "Transformers are SSMs" (arXiv 2405.21060), section 6; `mamba2_chunk_scan`
(transformers 5.23) computes in float32 whatever it is given, here float64 stays float64.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from cachewitness_reference.toy_model.norms import widened


def recurrent(
    x: Tensor, dt: Tensor, g: Tensor, b: Tensor, c: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Apply the rule token by token.

    x [B, T, H, P]; dt, g [B, T, H]; b, c [B, T, G, N], one for H / G heads; state [B, H, P, N].
    Returns the outputs [B, T, H, P], in float32 at least, and the state after the last token.
    """
    x, dt, g, b, c, state = _prepared(x, dt, g, b, c, state)
    outputs = []
    for t in range(x.shape[2]):
        write = (x[:, :, t] * dt[:, :, t, None])[..., None] * b[:, :, t, None, :]
        state = state * g[:, :, t].exp()[..., None, None] + write
        outputs.append((state * c[:, :, t, None, :]).sum(-1))
    return torch.stack(outputs, dim=1), state


def chunked(
    x: Tensor, dt: Tensor, g: Tensor, b: Tensor, c: Tensor, state: Tensor, chunk_size: int
) -> tuple[Tensor, Tensor]:
    """Apply the rule `chunk_size` tokens at a time; shapes as in `recurrent`. Tokens that do
    nothing fill the last chunk.
    """
    length = x.shape[1]
    x, dt, g, b, c, state = _prepared(x, dt, g, b, c, state)
    padding = -length % chunk_size
    x, b, c = (F.pad(y, (0, 0, 0, padding)).unflatten(2, (-1, chunk_size)) for y in (x, b, c))
    dt, g = (F.pad(y, (0, padding)).unflatten(2, (-1, chunk_size)) for y in (dt, g))

    decay = g.cumsum(-1)  # log of the decay from the start of the chunk to each token, inclusive
    later = torch.ones(chunk_size, chunk_size, dtype=torch.bool, device=x.device).triu(1)
    between = (decay[..., :, None] - decay[..., None, :]).masked_fill(later, float("-inf")).exp()
    values = x * dt[..., None]
    inside = (c @ b.transpose(-1, -2) * between) @ values

    from_start = c * decay.exp()[..., None]
    to_end = b * (decay[..., -1:] - decay).exp()[..., None]
    written = values.transpose(-1, -2) @ to_end
    whole = decay[..., -1].exp()[..., None, None]
    outputs = []
    for n in range(x.shape[2]):
        outputs.append(inside[:, :, n] + from_start[:, :, n] @ state.transpose(-1, -2))
        state = state * whole[:, :, n] + written[:, :, n]
    return torch.stack(outputs, dim=2).flatten(2, 3)[:, :, :length].transpose(1, 2), state


def _prepared(
    x: Tensor, dt: Tensor, g: Tensor, b: Tensor, c: Tensor, state: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Widen, repeat B and C for the heads that share them, bring heads to the front."""
    repeats = x.shape[2] // b.shape[2]
    if repeats > 1:
        b, c = b.repeat_interleave(repeats, dim=2), c.repeat_interleave(repeats, dim=2)
    x, dt, g, b, c = (widened(y).transpose(1, 2).contiguous() for y in (x, dt, g, b, c))
    return x, dt, g, b, c, state.to(x)
