"""Attention over pages: full or sliding, heads in groups that share keys, prefill and decode in one
kernel.

A program takes some tokens of one request, for all query heads of one key head: its rows are
(token, head of the group). It goes through the keys that any of its rows sees, finds each through
the block table, and keeps the softmax as a running maximum and sum. A decode step is the case of
one token a request; too few programs to keep a GPU busy, so the keys are split between several, and
`_combine` puts together what each of them found.

Keys and values in bfloat16 are multiplied as such, with sums in float32: products of two such
numbers are exact there. Shares, which are float32, are multiplied as the sum of two numbers in
bfloat16, so that 16 of their 24 bits count.

Source: Dao, "FlashAttention-2" (arXiv 2307.08691), algorithm 1, for the running softmax; Kwon et
al., "PagedAttention" (arXiv 2309.06180), section 4.1, for keys behind a block table; Dao et al.,
"Flash-Decoding" (PyTorch blog, October 2023) for keys that are split. What is computed is
`attention.attend`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cachewitness_reference.toy_model.triton_kernels.operation import (
    accumulator,
    launch,
    multiplied,
    operation,
    precision,
    tile,
)

BYTES_AT_ONCE = 128
"""Keys, and rows, that a program takes at once, times the bytes of a number: what an H100 reads
fastest, by measurement."""
TOKENS_AT_ONCE = 32
PROGRAMS = 512
"""So many programs keep a large GPU busy: keys of a decode step are split until there are about as
many."""
SPLITS_MOST = 64


@triton.jit
def _weighted(shares, v, DOT: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr):
    """Return shares [ROWS, KEYS] times v [KEYS, D]."""
    if v.dtype == tl.bfloat16:
        high = shares.to(tl.bfloat16)
        low = (shares - high.to(ACC)).to(tl.bfloat16)
        v = v.to(DOT)
        found = tl.dot(high.to(DOT), v, input_precision=PRECISION, out_dtype=ACC)
        found += tl.dot(low.to(DOT), v, input_precision=PRECISION, out_dtype=ACC)
    else:
        found = tl.dot(shares, v, input_precision=PRECISION, out_dtype=ACC)
    return found


@triton.jit
def _attend(
    out, most_of, total_of, query, projected, kept, table, first, starts, pages, columns, tokens,
    WINDOW: tl.constexpr, BLOCK: tl.constexpr, KV: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr,  # noqa: E501
    ROWS: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr, WIDE: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Grid (requests, tiles of rows * SPLITS, KV). query [N, KV * GROUP, DIM]; the gate is the
    second half of `projected`.

    With one split, out [N, KV * GROUP, DIM] is the result; with more, out [SPLITS, N, KV * GROUP,
    DIM] are sums of values, and most_of and total_of [SPLITS, N, KV * GROUP] what `_combine` needs
    to weigh them.
    """
    request = tl.program_id(0)
    tile = tl.program_id(1) // SPLITS
    split = tl.program_id(1) % SPLITS
    kv = tl.program_id(2)
    rows = tile * ROWS + tl.arange(0, ROWS)
    begin = tl.load(first + request)
    start = tl.load(starts + request)
    length = tl.load(first + request + 1) - begin
    token = rows // GROUP
    dim = tl.arange(0, WIDE)
    if tile * ROWS // GROUP >= length:
        return
    real = token < length
    here = real[:, None] & (dim < DIM)[None, :]
    head = (begin + token) * (KV * GROUP) + kv * GROUP + rows % GROUP
    q = tl.load(query + head[:, None] * DIM + dim[None, :], mask=here, other=0.0).to(DOT)

    position = start + token
    oldest = tl.maximum(start + tile * ROWS // GROUP - WINDOW + 1, 0) if WINDOW else 0
    newest = start + tl.minimum((tile * ROWS + ROWS - 1) // GROUP, length - 1)
    low = oldest // KEYS * KEYS
    share = tl.cdiv(tl.cdiv(newest + 1 - low, SPLITS), KEYS) * KEYS
    low += split * share
    high = tl.minimum(low + share, newest + 1)
    most = tl.full([ROWS], float("-inf"), ACC)
    total = tl.zeros([ROWS], ACC)
    sums = tl.zeros([ROWS, WIDE], ACC)
    for tile_first in range(low, high, KEYS):
        key = tile_first + tl.arange(0, KEYS)
        there = (key >= oldest) & (key < high)
        page = tl.load(
            table + request * columns + key // BLOCK, mask=there & (key // BLOCK < columns), other=0
        )
        page = tl.where((page < 0) | (page >= pages), 0, page).to(tl.int64)
        place = kept + ((page * BLOCK + key % BLOCK) * 2 * KV + kv) * DIM
        full = there[:, None] & (dim < DIM)[None, :]
        k = tl.load(place[:, None] + dim[None, :], mask=full, other=0.0)
        v = tl.load(place[:, None] + KV * DIM + dim[None, :], mask=full, other=0.0)

        seen = there[None, :] & (key[None, :] <= position[:, None])
        if WINDOW:
            seen &= position[:, None] - key[None, :] < WINDOW
        scores = (
            tl.dot(q, tl.trans(k.to(DOT)), input_precision=PRECISION, out_dtype=ACC) * DIM**-0.5
        )
        scores = tl.where(seen, scores, float("-inf"))
        new_most = tl.maximum(
            most, tl.max(tl.where(scores == scores, scores, float("-inf")), 1)
        )  # poison is no maximum
        level = tl.where(new_most == float("-inf"), 0.0, new_most)
        shares = tl.exp(scores - level[:, None])
        rescale = tl.exp(most - level)
        total = total * rescale + tl.sum(shares, 1)
        sums = sums * rescale[:, None] + _weighted(shares, v, DOT, PRECISION, ACC)
        most = new_most
    if SPLITS == 1:
        gate = tl.load(
            projected + head[:, None] * 2 * DIM + DIM + dim[None, :], mask=here, other=0.0
        ).to(ACC)
        gated = sums / tl.where(real, total, 1.0)[:, None] * tl.sigmoid(gate)
        tl.store(
            out + head[:, None] * DIM + dim[None, :], gated.to(out.dtype.element_ty), mask=here
        )
    else:
        part = split * tokens * KV * GROUP + head
        tl.store(out + part[:, None] * DIM + dim[None, :], sums, mask=here)
        tl.store(most_of + part, most, mask=real)
        tl.store(total_of + part, total, mask=real)


@triton.jit
def _combine(
    out, sums_of, most_of, total_of, projected, heads,
    DIM: tl.constexpr, SPLITS: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Grid (N * heads,), called `heads` here: one row of out [N * heads, DIM] out of what each
    split found.
    """
    head = tl.program_id(0)
    split = tl.arange(0, SPLITS)
    dim = tl.arange(0, WIDE)
    part = split * heads + head
    most = tl.load(most_of + part)
    top = tl.max(most, 0)
    weight = tl.exp(most - tl.where(top == float("-inf"), 0.0, top))
    sums = tl.load(
        sums_of + part[:, None] * DIM + dim[None, :], mask=(dim < DIM)[None, :], other=0.0
    )
    found = tl.sum(sums * weight[:, None], 0) / tl.sum(tl.load(total_of + part) * weight, 0)
    gate = tl.load(projected + head * 2 * DIM + DIM + dim, mask=dim < DIM, other=0.0).to(ACC)
    tl.store(
        out + head * DIM + dim, (found * tl.sigmoid(gate)).to(out.dtype.element_ty), mask=dim < DIM
    )


@operation(
    "paged_attention(Tensor query, Tensor projected, Tensor kept, int layer, Tensor table, Tensor"
    " first, Tensor starts, int longest, int window) -> Tensor"
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

    query [N, H, D]; projected [N, H * 2 * D], of which the second half of each head is the gate;
    kept [layers, pages, block, 2, KV, D]; table [R * columns]; first [R + 1]; starts [R], the
    position of a request's first token; `longest` bounds the tokens of a request. A window of W
    tokens counts the query, 0 is unbounded.
    """
    tokens, heads, dim = query.shape
    _, pages, block, _, kv, _ = kept.shape
    requests = starts.shape[0]
    group = heads // kv
    at_once = BYTES_AT_ONCE // kept.element_size()
    acc = accumulator(query)
    rows = tile(min(longest * group, at_once))
    columns = table.shape[0] // requests
    tiles_of_keys = min(columns * block, window or columns * block) // at_once
    splits = _splits(requests * kv, tiles_of_keys) if longest == 1 else 1
    out = torch.empty((tokens, heads * dim), dtype=query.dtype, device=query.device)
    found = out
    most = out
    total = out
    if splits > 1:
        stored = torch.promote_types(query.dtype, torch.float32)
        found = torch.empty((splits, tokens, heads, dim), dtype=stored, device=query.device)
        most, total = (
            torch.empty((splits, tokens, heads), dtype=stored, device=query.device)
            for _ in range(2)
        )
    sizes = {"WINDOW": window, "BLOCK": block, "KV": kv, "GROUP": group, "DIM": dim}
    cuts = {"ROWS": rows, "KEYS": at_once, "SPLITS": splits, "WIDE": tile(dim)}
    cuts |= {"DOT": multiplied(query), "PRECISION": precision(query), "ACC": acc}
    tensors = (found, most, total, query, projected, kept[layer], table, first, starts)
    launch(
        _attend,
        (requests, triton.cdiv(longest * group, rows) * splits, kv),
        *tensors,
        pages,
        columns,
        tokens,
        **sizes,
        **cuts,
    )
    if splits > 1:
        shape = {"DIM": dim, "SPLITS": splits, "WIDE": tile(dim), "ACC": acc}
        launch(
            _combine, (tokens * heads,), out, found, most, total, projected, tokens * heads, **shape
        )
    return out


def _splits(programs: int, tiles: int) -> int:
    """Return between how many programs the keys of a request are split: a power of 2, of at
    least two tiles of keys each.
    """
    wanted = min(PROGRAMS // programs, tiles // 2, SPLITS_MOST)
    return 1 << max(wanted, 1).bit_length() - 1


@triton.jit
def _keep(
    query, projected, keys, values, query_scale, key_scale, cos, sin, places,
    kept, tokens,
    EPS: tl.constexpr, HEADS: tl.constexpr, KV: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr,
    TOKENS: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of N, HEADS + KV): a query head goes to `query`, a key head and its value to
    the pages.
    """
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    dim = tl.arange(0, WIDE)
    real = token < tokens
    turned = dim < 2 * HALF
    kv = head - HEADS
    inside = real[:, None] & (dim < DIM)[None, :]
    partner = tl.where(turned, tl.where(dim < HALF, dim + HALF, dim - HALF), dim)
    if head < HEADS:
        source = projected + (token * HEADS + head)[:, None] * 2 * DIM
        scale = query_scale
    else:
        source = keys + (token * KV + kv)[:, None] * DIM
        scale = key_scale
    x = tl.load(source + dim[None, :], mask=inside, other=0.0).to(ACC)
    rms = tl.rsqrt(tl.sum(x * x, 1) / DIM + EPS)[:, None]
    x = x * rms * (1.0 + tl.load(scale + dim, mask=dim < DIM, other=0.0).to(ACC))[None, :]
    other = tl.load(source + partner[None, :], mask=inside, other=0.0).to(ACC) * rms
    other = other * (1.0 + tl.load(scale + partner, mask=dim < DIM, other=0.0).to(ACC))[None, :]
    angle = token[:, None] * HALF + (dim % HALF)[None, :]
    known = real[:, None] & turned[None, :]
    c = tl.load(cos + angle, mask=known, other=1.0).to(ACC)
    s = tl.load(sin + angle, mask=known, other=0.0).to(ACC)
    rotated = x * c + tl.where((dim < HALF)[None, :], -other, other) * s
    if head < HEADS:
        target = query + (token * HEADS + head)[:, None] * DIM + dim[None, :]
        tl.store(target, rotated.to(query.dtype.element_ty), mask=inside)
    else:
        place = tl.load(places + token, mask=real, other=-1).to(tl.int64)
        value = tl.load(
            values + (token * KV + kv)[:, None] * DIM + dim[None, :], mask=inside, other=0.0
        )
        target = kept + (place * 2 * KV + kv)[:, None] * DIM + dim[None, :]
        written = inside & (place >= 0)[:, None]
        tl.store(target, rotated.to(kept.dtype.element_ty), mask=written)
        tl.store(target + KV * DIM, value.to(kept.dtype.element_ty), mask=written)


@operation(
    "keep_keys(Tensor projected, Tensor keys, Tensor values, Tensor query_scale, Tensor key_scale,"
    " Tensor cos, Tensor sin, Tensor places, Tensor(a!) kept, int layer, float eps) -> Tensor"
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
    """Normalise and rotate queries and keys, write keys and values to their pages, and return the
    queries [N, H, D].

    projected [N, H * 2 * D], keys and values [N, KV * D], scales [D], cos and sin [N, rotary
    dimensions / 2]; places [N] count tokens from page 0; kept [layers, pages, block, 2, KV, D].
    """
    tokens = projected.shape[0]
    (kv, dim) = kept.shape[-2:]
    heads = projected.shape[1] // (2 * dim)
    query = torch.empty((tokens, heads, dim), dtype=projected.dtype, device=projected.device)
    rows = min(tile(tokens), TOKENS_AT_ONCE)
    sizes = {"EPS": eps, "HEADS": heads, "KV": kv, "DIM": dim, "HALF": cos.shape[1]}
    tiles = {"TOKENS": rows, "WIDE": tile(dim), "ACC": accumulator(projected)}
    tensors = (
        query,
        projected,
        keys,
        values,
        query_scale,
        key_scale,
        cos,
        sin,
        places,
        kept[layer],
    )
    launch(_keep, (triton.cdiv(tokens, rows), heads + kv), *tensors, tokens, **sizes, **tiles)
    return query
