"""The causal convolution over requests of any length, and the inputs that it leaves behind for the
next chunk.

The input in front of a request's first token is the newest of its state, which is therefore read
backwards from there. What is computed is `causal_conv.causal_conv` and
`causal_conv.conv_state_after`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cachewitness_reference.toy_model.triton_kernels.operation import (
    accumulator,
    launch,
    operation,
    tile,
)

TOKENS_AT_ONCE = 32
CHANNELS_AT_ONCE = 64


@triton.jit
def _convolve(
    out, x, weight, state, first, channels,
    WIDTH: tl.constexpr, TOKENS: tl.constexpr, SIZE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Grid (requests, tiles of tokens, tiles of channels); weight [channels, 1, WIDTH]; state
    [R, WIDTH - 1, channels].
    """
    request = tl.program_id(0).to(tl.int64)
    begin = tl.load(first + request).to(tl.int64)
    length = tl.load(first + request + 1) - begin
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    channel = tl.program_id(2) * SIZE + tl.arange(0, SIZE)
    real = (token < length)[:, None] & (channel < channels)[None, :]
    total = tl.zeros([TOKENS, SIZE], ACC)
    for back in tl.static_range(WIDTH):
        source = (token - back)[:, None]
        own = tl.load(
            x + (begin + source) * channels + channel[None, :], mask=real & (source >= 0), other=0.0
        )
        before = (request * (WIDTH - 1) + WIDTH - 1 + source) * channels + channel[None, :]
        kept = tl.load(state + before, mask=real & (source < 0), other=0.0)
        w = tl.load(
            weight + channel * WIDTH + WIDTH - 1 - back, mask=channel < channels, other=0.0
        ).to(ACC)
        total += tl.where(source >= 0, own.to(ACC), kept.to(ACC)) * w[None, :]
    silu = total * tl.sigmoid(total)
    tl.store(
        out + (begin + token[:, None]) * channels + channel[None, :],
        silu.to(out.dtype.element_ty),
        mask=real,
    )


@operation(
    "causal_conv(Tensor x, Tensor weight, Tensor states, int layer, Tensor first, int longest) ->"
    " Tensor"
)
def causal_conv(
    x: Tensor, weight: Tensor, states: Tensor, layer: int, first: Tensor, longest: int
) -> Tensor:
    """Return silu of the convolution [N, channels] of flat inputs `x` [N, channels].

    weight [channels, 1, K]; states [layers, R, K - 1, channels], the inputs in front of each
    request's first token; first [R + 1]; `longest` bounds the tokens of a request.
    """
    channels = x.shape[1]
    requests = states.shape[1]
    out = torch.empty_like(x)
    tokens = min(tile(longest), TOKENS_AT_ONCE)
    size = min(tile(channels), CHANNELS_AT_ONCE)
    grid = (requests, triton.cdiv(longest, tokens), triton.cdiv(channels, size))
    sizes = {"WIDTH": weight.shape[2], "TOKENS": tokens, "SIZE": size, "ACC": accumulator(x)}
    launch(_convolve, grid, out, x, weight, states[layer], first, channels, **sizes)
    return out


@triton.jit
def _keep_inputs(
    kept, x, state, first, owners, stops, saves, channels,
    BEFORE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Grid (segments, BEFORE, tiles of channels): one input of what a segment leaves behind."""
    segment = tl.program_id(0)
    number = tl.program_id(1)
    page = tl.load(saves + segment).to(tl.int64)
    owner = tl.load(owners + segment).to(tl.int64)
    begin = tl.load(first + owner).to(tl.int64)
    stop = tl.load(stops + segment)
    channel = tl.program_id(2) * SIZE + tl.arange(0, SIZE)
    count = tl.where(page >= 0, channels, 0)
    source = stop - BEFORE + number
    own = tl.load(
        x + source * channels + channel,
        mask=channel < tl.where(source >= begin, count, 0),
        other=0.0,
    )
    before = (owner * BEFORE + BEFORE + source - begin) * channels + channel
    older = tl.load(state + before, mask=channel < tl.where(source < begin, count, 0), other=0.0)
    value = tl.where(
        source >= begin, own.to(kept.dtype.element_ty), older.to(kept.dtype.element_ty)
    )
    tl.store(kept + (page * BEFORE + number) * channels + channel, value, mask=channel < count)


@operation(
    "keep_inputs(Tensor x, Tensor states, Tensor(a!) kept, int layer, Tensor first, Tensor owners,"
    " Tensor stops, Tensor saves) -> ()"
)
def keep_inputs(
    x: Tensor,
    states: Tensor,
    kept: Tensor,
    layer: int,
    first: Tensor,
    owners: Tensor,
    stops: Tensor,
    saves: Tensor,
) -> None:
    """Write the last K - 1 inputs of each segment to its page.

    x, states, first: as in `causal_conv`; kept [layers, pages, K - 1, channels]. Segment s is
    request owners[s]'s, ends before flat token stops[s] and leaves its inputs in page saves[s].
    """
    before, channels = kept.shape[2:]
    size = min(tile(channels), 4 * CHANNELS_AT_ONCE)
    grid = (stops.shape[0], before, triton.cdiv(channels, size))
    tensors = (kept[layer], x, states[layer], first, owners, stops, saves)
    launch(_keep_inputs, grid, *tensors, channels, BEFORE=before, SIZE=size)
