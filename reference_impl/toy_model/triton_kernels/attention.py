"""Attention over pages: full or sliding, heads in groups that share keys, prefill and decode in one kernel.

A program takes some tokens of one request, for all query heads of one key head: its rows are (token, head of the group). It
goes through the keys that any of its rows sees, finds each through the block table, and keeps the softmax as a running maximum
and sum. A decode step is the case of one token a request.

Source: Dao, "FlashAttention-2" (arXiv 2307.08691), algorithm 1, for the running softmax; Kwon et al., "PagedAttention"
(arXiv 2309.06180), section 4.1, for keys behind a block table. What is computed is `attention.attend`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_impl.toy_model.triton_kernels.operation import accumulator, launch, operation, tile

KEYS_AT_ONCE = 64
TOKENS_AT_ONCE = 32


@triton.jit
def _attend(
    out, query, projected, kept, table, first, starts, pages, columns,
    WINDOW: tl.constexpr, BLOCK: tl.constexpr, KV: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Grid (requests, tiles of rows, KV). out, query [N, KV * GROUP, DIM]; the gate is the second half of `projected`."""
    request, rows, kv = tl.program_id(0), tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(2)
    begin, start = tl.load(first + request), tl.load(starts + request)
    length = tl.load(first + request + 1) - begin
    token, dim = rows // GROUP, tl.arange(0, WIDE)
    if tl.program_id(1) * ROWS // GROUP >= length:
        return
    here = (token < length)[:, None] & (dim < DIM)[None, :]
    head = (begin + token) * (KV * GROUP) + kv * GROUP + rows % GROUP
    q = tl.load(query + head[:, None] * DIM + dim[None, :], mask=here, other=0.0).to(ACC) * DIM**-0.5

    position = start + token
    oldest = tl.maximum(start + tl.program_id(1) * ROWS // GROUP - WINDOW + 1, 0) if WINDOW else 0
    newest = start + tl.minimum((tl.program_id(1) * ROWS + ROWS - 1) // GROUP, length - 1)
    most = tl.full([ROWS], float("-inf"), ACC)
    total = tl.zeros([ROWS], ACC)
    sums = tl.zeros([ROWS, WIDE], ACC)
    for tile_first in range(oldest // KEYS * KEYS, newest + 1, KEYS):
        key = tile_first + tl.arange(0, KEYS)
        there = (key >= oldest) & (key <= newest)
        page = tl.load(table + request * columns + key // BLOCK, mask=there & (key // BLOCK < columns), other=0)
        page = tl.where((page < 0) | (page >= pages), 0, page).to(tl.int64)
        place = kept + ((page * BLOCK + key % BLOCK) * 2 * KV + kv) * DIM
        full = there[:, None] & (dim < DIM)[None, :]
        k = tl.load(place[:, None] + dim[None, :], mask=full, other=0.0).to(ACC)
        v = tl.load(place[:, None] + KV * DIM + dim[None, :], mask=full, other=0.0).to(ACC)

        seen = there[None, :] & (key[None, :] <= position[:, None])
        if WINDOW:
            seen &= position[:, None] - key[None, :] < WINDOW
        scores = tl.where(seen, tl.dot(q, tl.trans(k), input_precision="ieee", out_dtype=ACC), float("-inf"))
        new_most = tl.maximum(most, tl.max(scores, 1))
        level = tl.where(new_most == float("-inf"), 0.0, new_most)
        shares, rescale = tl.exp(scores - level[:, None]), tl.exp(most - level)
        total = total * rescale + tl.sum(shares, 1)
        sums = sums * rescale[:, None] + tl.dot(shares, v, input_precision="ieee", out_dtype=ACC)
        most = new_most
    gate = projected + head[:, None] * 2 * DIM + DIM + dim[None, :]
    total = tl.where(token < length, total, 1.0)
    gated = sums / total[:, None] * tl.sigmoid(tl.load(gate, mask=here, other=0.0).to(ACC))
    tl.store(out + head[:, None] * DIM + dim[None, :], gated.to(out.dtype.element_ty), mask=here)


@operation(
    "paged_attention(Tensor query, Tensor projected, Tensor kept, int layer, Tensor table, Tensor first, Tensor starts, "
    "int longest, int window) -> Tensor"
)
def paged_attention(
    query: Tensor,
    projected: Tensor,
    kept: Tensor,
    layer: int,
    table: Tensor,
    first: Tensor,
    starts: Tensor,
    longest: int,
    window: int,
) -> Tensor:
    """Return the gated attention outputs [N, H * D] of flat tokens.

    query [N, H, D]; projected [N, H * 2 * D], of which the second half of each head is the gate; kept
    [layers, pages, block, 2, KV, D]; table [R * columns]; first [R + 1]; starts [R], the position of a request's first token;
    `longest` bounds the tokens of a request. A window of W tokens counts the query, 0 is unbounded.
    """
    tokens, heads, dim = query.shape
    _, pages, block, _, kv, _ = kept.shape
    requests, group = starts.shape[0], heads // kv
    rows = tile(min(longest, TOKENS_AT_ONCE) * group)
    out = torch.empty((tokens, heads * dim), dtype=query.dtype, device=query.device)
    grid = (requests, triton.cdiv(longest * group, rows), kv)
    numbers = (pages, table.shape[0] // requests)
    sizes = {"WINDOW": window, "BLOCK": block, "KV": kv, "GROUP": group, "DIM": dim}
    tiles = {"ROWS": rows, "KEYS": KEYS_AT_ONCE, "WIDE": tile(dim), "ACC": accumulator(query)}
    launch(_attend, grid, out, query, projected, kept[layer], table, first, starts, *numbers, **sizes, **tiles)
    return out


@triton.jit
def _keep(
    query, projected, keys, values, query_scale, key_scale, cos, sin, places,
    kept, eps, tokens,
    HEADS: tl.constexpr, KV: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr,
    TOKENS: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of N, HEADS + KV): a query head goes to `query`, a key head and its value to the pages."""
    token, head = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS), tl.program_id(1)
    dim = tl.arange(0, WIDE)
    real, turned, kv = token < tokens, dim < 2 * HALF, head - HEADS
    inside = real[:, None] & (dim < DIM)[None, :]
    partner = tl.where(turned, tl.where(dim < HALF, dim + HALF, dim - HALF), dim)
    if head < HEADS:
        source, scale = projected + (token * HEADS + head)[:, None] * 2 * DIM, query_scale
    else:
        source, scale = keys + (token * KV + kv)[:, None] * DIM, key_scale
    x = tl.load(source + dim[None, :], mask=inside, other=0.0).to(ACC)
    rms = tl.rsqrt(tl.sum(x * x, 1) / DIM + eps)[:, None]
    x = x * rms * (1.0 + tl.load(scale + dim, mask=dim < DIM, other=0.0).to(ACC))[None, :]
    other = tl.load(source + partner[None, :], mask=inside, other=0.0).to(ACC) * rms
    other = other * (1.0 + tl.load(scale + partner, mask=dim < DIM, other=0.0).to(ACC))[None, :]
    angle, known = token[:, None] * HALF + (dim % HALF)[None, :], real[:, None] & turned[None, :]
    c = tl.load(cos + angle, mask=known, other=1.0).to(ACC)
    s = tl.load(sin + angle, mask=known, other=0.0).to(ACC)
    rotated = x * c + tl.where((dim < HALF)[None, :], -other, other) * s
    if head < HEADS:
        target = query + (token * HEADS + head)[:, None] * DIM + dim[None, :]
        tl.store(target, rotated.to(query.dtype.element_ty), mask=inside)
    else:
        place = tl.load(places + token, mask=real, other=-1).to(tl.int64)
        value = tl.load(values + (token * KV + kv)[:, None] * DIM + dim[None, :], mask=inside, other=0.0)
        target, written = kept + (place * 2 * KV + kv)[:, None] * DIM + dim[None, :], inside & (place >= 0)[:, None]
        tl.store(target, rotated.to(kept.dtype.element_ty), mask=written)
        tl.store(target + KV * DIM, value.to(kept.dtype.element_ty), mask=written)


@operation(
    "keep_keys(Tensor projected, Tensor keys, Tensor values, Tensor query_scale, Tensor key_scale, Tensor cos, Tensor sin, "
    "Tensor places, Tensor(a!) kept, int layer, float eps) -> Tensor"
)
def keep_keys(
    projected: Tensor,
    keys: Tensor,
    values: Tensor,
    query_scale: Tensor,
    key_scale: Tensor,
    cos: Tensor,
    sin: Tensor,
    places: Tensor,
    kept: Tensor,
    layer: int,
    eps: float,
) -> Tensor:
    """Normalise and rotate queries and keys, write keys and values to their pages, and return the queries [N, H, D].

    projected [N, H * 2 * D], keys and values [N, KV * D], scales [D], cos and sin [N, rotary dimensions / 2]; places [N] count
    tokens from page 0; kept [layers, pages, block, 2, KV, D].
    """
    tokens, (kv, dim) = projected.shape[0], kept.shape[-2:]
    heads = projected.shape[1] // (2 * dim)
    query = torch.empty((tokens, heads, dim), dtype=projected.dtype, device=projected.device)
    rows = min(tile(tokens), TOKENS_AT_ONCE)
    sizes = {"HEADS": heads, "KV": kv, "DIM": dim, "HALF": cos.shape[1]}
    tiles = {"TOKENS": rows, "WIDE": tile(dim), "ACC": accumulator(projected)}
    tensors = (query, projected, keys, values, query_scale, key_scale, cos, sin, places, kept[layer])
    launch(_keep, (triton.cdiv(tokens, rows), heads + kv), *tensors, eps, tokens, **sizes, **tiles)
    return query
