"""The gated delta rule over requests of any length: token by token for a decode step, chunk by
chunk for anything longer.

Programs share nothing: one has a request, a value head and some of the head's value dimensions, and
carries that part of the memory S [K, V] through the request's tokens. Where a segment of the
request ends, it writes S to the segment's page.

Within a chunk of 16 tokens the corrections depend on one another through a unit lower triangular
system. Its inverse is put together from those of its halves, which stays accurate however alike the
keys are. The last chunk of a segment is filled up with tokens of write strength and log decay 0,
which change nothing.

Source: Yang, Kautz, Hatamizadeh, "Gated Delta Networks" (arXiv 2412.06464), section 3. What is
computed is `gated_delta.recurrent`, and `gated_delta.chunked` with another length of chunk.
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

HALVINGS = 4
"""A chunk has 2 ** HALVINGS tokens: as many halvings find the inverse of its system."""
VALUES_AT_ONCE = 32
"""Value dimensions of one program: what it keeps of S must fit into registers."""


@triton.jit
def _unit(x):
    """Scale the rows of `x` [T, K] to length 1."""
    return x * tl.rsqrt(tl.sum(x * x, 1) + 1e-6)[:, None]


@triton.jit
def _inverse(lower, HALVINGS: tl.constexpr, ACC: tl.constexpr):
    """Return the inverse of I + `lower`, which is strictly lower triangular with 2 ** HALVINGS
    rows.

    The inverse of [[A, 0], [C, B]] is [[A', 0], [-B' C A', B']] with the inverses A' and B': blocks
    of one row first, then of twice as many, until one block is left.
    """
    row = tl.arange(0, 1 << HALVINGS)[:, None]
    column = tl.arange(0, 1 << HALVINGS)[None, :]
    found = tl.where(row == column, 1.0, 0.0).to(ACC)
    for level in tl.static_range(HALVINGS):
        joined = (row >> level + 1 == column >> level + 1) & (row >> level != column >> level)
        between = tl.dot(tl.where(joined, lower, 0.0), found, input_precision="ieee", out_dtype=ACC)
        found -= tl.dot(found, between, input_precision="ieee", out_dtype=ACC)
    return found


@triton.jit
def _by_token(
    out, mixed, g, beta, state, memory, first, saves,
    HEADS: tl.constexpr, SHARED: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    WIDE: tl.constexpr, COLUMNS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Grid (requests, HEADS, tiles of V): one token a request, of which `saves` says the page
    that S goes to.
    """
    request = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    token = tl.load(first + request).to(tl.int64)
    k_dim = tl.arange(0, WIDE)
    v_dim = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    row = mixed + token * (2 * SHARED * K + HEADS * V)
    shared = head // (HEADS // SHARED)
    q = tl.load(row + shared * K + k_dim, mask=k_dim < K, other=0.0).to(ACC)
    k = tl.load(row + (SHARED + shared) * K + k_dim, mask=k_dim < K, other=0.0).to(ACC)
    v = tl.load(row + 2 * SHARED * K + head * V + v_dim, mask=v_dim < V, other=0.0).to(ACC)
    q = q * tl.rsqrt(tl.sum(q * q) + 1e-6) * K**-0.5
    k = k * tl.rsqrt(tl.sum(k * k) + 1e-6)

    inside = (k_dim < K)[:, None] & (v_dim < V)[None, :]
    cell = k_dim[:, None] * V + v_dim[None, :]
    s = tl.load(state + (request * HEADS + head) * K * V + cell, mask=inside, other=0.0).to(ACC)
    s = s * tl.exp(tl.load(g + token * HEADS + head))
    correction = (v - tl.sum(s * k[:, None], 0)) * tl.load(beta + token * HEADS + head)
    s = s + k[:, None] * correction[None, :]
    read = tl.sum(s * q[:, None], 0)
    tl.store(
        out + (token * HEADS + head) * V + v_dim, read.to(out.dtype.element_ty), mask=v_dim < V
    )
    page = tl.load(saves + request).to(tl.int64)
    target = memory + (page * HEADS + head) * K * V + cell
    written = (k_dim < tl.where(page >= 0, K, 0))[:, None] & (v_dim < V)[None, :]
    tl.store(target, s.to(memory.dtype.element_ty), mask=written)


@triton.jit
def _by_chunk(
    out, mixed, g, beta, state, memory, first, saves, segments, stops,
    HEADS: tl.constexpr, SHARED: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    WIDE: tl.constexpr, COLUMNS: tl.constexpr, HALVINGS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Grid (requests, HEADS, tiles of V). Request r has the segments segments[r] ... segments[r
    + 1] - 1.
    """
    request = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    begin = tl.load(first + request)
    k_dim = tl.arange(0, WIDE)
    v_dim = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (k_dim < K)[:, None] & (v_dim < V)[None, :]
    cell = k_dim[:, None] * V + v_dim[None, :]
    shared = head // (HEADS // SHARED)
    width = 2 * SHARED * K + HEADS * V
    CHUNK: tl.constexpr = 1 << HALVINGS
    at = tl.arange(0, CHUNK)
    s = tl.load(state + (request * HEADS + head) * K * V + cell, mask=inside, other=0.0).to(ACC)
    for segment in range(tl.load(segments + request), tl.load(segments + request + 1)):
        stop = tl.load(stops + segment)
        for chunk in range(begin, stop, CHUNK):
            token = (chunk + at).to(tl.int64)
            real = token < stop
            row = mixed + token[:, None] * width
            keyed = real[:, None] & (k_dim < K)[None, :]
            valued = real[:, None] & (v_dim < V)[None, :]
            q = tl.load(row + shared * K + k_dim[None, :], mask=keyed, other=0.0).to(ACC)
            k = tl.load(row + (SHARED + shared) * K + k_dim[None, :], mask=keyed, other=0.0).to(ACC)
            v = tl.load(
                row + 2 * SHARED * K + head * V + v_dim[None, :], mask=valued, other=0.0
            ).to(ACC)
            strength = tl.load(beta + token * HEADS + head, mask=real, other=0.0)[:, None]
            step = tl.load(g + token * HEADS + head, mask=real, other=0.0)
            q, k, faded = _unit(q) * K**-0.5, _unit(k), tl.cumsum(step, 0)
            between = tl.where(
                at[:, None] >= at[None, :], faded[:, None] - faded[None, :], float("-inf")
            )
            within = tl.dot(q, tl.trans(k), input_precision="ieee", out_dtype=ACC) * tl.exp(between)
            alike = tl.dot(
                k * strength, tl.trans(k), input_precision="ieee", out_dtype=ACC
            ) * tl.exp(between)
            solve = _inverse(tl.where(at[:, None] > at[None, :], alike, 0.0), HALVINGS, ACC)
            # corrections [T, V]: what each token writes under its key, given S before the chunk and
            # the tokens before it
            known = tl.dot(k * tl.exp(faded)[:, None], s, input_precision="ieee", out_dtype=ACC)
            corrections = tl.dot(
                solve, strength * (v - known), input_precision="ieee", out_dtype=ACC
            )
            read = tl.dot(q * tl.exp(faded)[:, None], s, input_precision="ieee", out_dtype=ACC)
            read += tl.dot(within, corrections, input_precision="ieee", out_dtype=ACC)
            target = out + (token * HEADS + head)[:, None] * V + v_dim[None, :]
            tl.store(target, read.to(out.dtype.element_ty), mask=valued)
            whole = tl.sum(step, 0)
            written = tl.trans(k * tl.exp(whole - faded)[:, None])
            s = s * tl.exp(whole) + tl.dot(
                written, corrections, input_precision="ieee", out_dtype=ACC
            )
        page = tl.load(saves + segment).to(tl.int64)
        kept = memory + (page * HEADS + head) * K * V + cell
        saved = (k_dim < tl.where(page >= 0, K, 0))[:, None] & (v_dim < V)[None, :]
        tl.store(kept, s.to(memory.dtype.element_ty), mask=saved)
        begin = stop


@operation(
    "gated_delta(Tensor mixed, Tensor g, Tensor beta, Tensor states, Tensor(a!) memories, int"
    " layer, Tensor first, Tensor segments, Tensor stops, Tensor saves, int longest) -> Tensor"
)
def gated_delta(
    mixed: Tensor,
    g: Tensor,
    beta: Tensor,
    states: Tensor,
    memories: Tensor,
    layer: int,
    first: Tensor,
    segments: Tensor,
    stops: Tensor,
    saves: Tensor,
    longest: int,
) -> Tensor:
    """Apply the rule to flat tokens, write memories to their pages, and return the outputs [N, H,
    V].

    mixed [N, 2 * shared * K + H * V] are queries, keys (`shared` heads, not normalised) and values;
    g, beta [N, H]; states [layers, R, H, K, V] those that requests go on from; memories [layers,
    pages, H, K, V]. Request r has the segments segments[r] ... segments[r + 1] - 1; segment s ends
    before flat token stops[s] and leaves its memory in page saves[s].
    """
    _, requests, heads, k, v = states.shape
    shared = (mixed.shape[1] - heads * v) // (2 * k)
    out = torch.empty((mixed.shape[0], heads, v), dtype=mixed.dtype, device=mixed.device)
    columns = min(tile(v), VALUES_AT_ONCE)
    grid = (requests, heads, triton.cdiv(v, columns))
    sizes = {
        "HEADS": heads,
        "SHARED": shared,
        "K": k,
        "V": v,
        "WIDE": tile(k),
        "COLUMNS": columns,
        "ACC": accumulator(mixed),
    }
    tensors = (out, mixed, g, beta, states[layer], memories[layer], first, saves)
    if longest == 1:
        launch(_by_token, grid, *tensors, **sizes)
    else:
        launch(_by_chunk, grid, *tensors, segments, stops, HALVINGS=HALVINGS, **sizes)
    return out


@triton.jit
def _log_of_1_plus(x):
    """Return log(1 + x) of 0 <= x <= 1, accurate also where 1 + x is rounded (Goldberg 1991,
    theorem 4).
    """
    rounded = 1.0 + x
    return tl.where(
        rounded == 1.0, x, tl.log(rounded) * x / tl.where(rounded == 1.0, 1.0, rounded - 1.0)
    )


@triton.jit
def _gates(g, beta, a, b, a_log, dt_bias, count, HEADS: tl.constexpr, SIZE: tl.constexpr,
           ACC: tl.constexpr):  # fmt: skip
    """Grid (tiles of N * HEADS,)."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = at < count
    head = at % HEADS
    x = tl.load(a + at, mask=inside, other=0.0).to(ACC) + tl.load(dt_bias + head).to(ACC)
    rate = tl.maximum(x, 0.0) + _log_of_1_plus(tl.exp(-tl.abs(x)))
    tl.store(g + at, -tl.exp(tl.load(a_log + head).to(ACC)) * rate, mask=inside)
    tl.store(beta + at, tl.sigmoid(tl.load(b + at, mask=inside, other=0.0).to(ACC)), mask=inside)


@operation("delta_gates(Tensor a, Tensor b, Tensor a_log, Tensor dt_bias) -> (Tensor, Tensor)")
def delta_gates(a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return log decays -exp(a_log) * softplus(a + dt_bias) and write strengths sigmoid(b), both
    [N, H]; a, b [N, H].
    """
    wide = torch.promote_types(a.dtype, torch.float32)
    g, beta = (torch.empty(a.shape, dtype=wide, device=a.device) for _ in range(2))
    size = 256
    grid = (triton.cdiv(a.numel(), size),)
    launch(
        _gates,
        grid,
        g,
        beta,
        a,
        b,
        a_log,
        dt_bias,
        a.numel(),
        HEADS=a.shape[1],
        SIZE=size,
        ACC=accumulator(a),
    )
    return g, beta
