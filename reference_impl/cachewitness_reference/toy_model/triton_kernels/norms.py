"""The norms between the kernels that mix tokens, each with what stands next to it: a residual
sum, a gate.
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

ELEMENTS_AT_ONCE = 2048


@triton.jit
def _add_and_normalise(
    out, stream, added, weight, rows, dim,
    EPS: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of rows,); `stream` [rows, dim] is updated in place."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, WIDE)
    inside = (row < rows)[:, None] & (at < dim)[None, :]
    place = row[:, None] * dim + at[None, :]
    x = tl.load(stream + place, mask=inside, other=0.0).to(ACC) + tl.load(
        added + place, mask=inside, other=0.0
    ).to(ACC)
    x = x.to(stream.dtype.element_ty)
    tl.store(stream + place, x, mask=inside)
    scale = tl.rsqrt(tl.sum(x.to(ACC) * x.to(ACC), 1) / dim + EPS)
    normed = (
        x.to(ACC)
        * scale[:, None]
        * (1.0 + tl.load(weight + at, mask=at < dim, other=0.0).to(ACC))[None, :]
    )
    tl.store(out + place, normed.to(out.dtype.element_ty), mask=inside)


@operation("add_and_normalise(Tensor(a!) stream, Tensor added, Tensor weight, float eps) -> Tensor")
def add_and_normalise(stream: Tensor, added: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add `added` to `stream` in place and return `norms.rms_norm` of the sum, all [N, D];
    weight [D].
    """
    out = torch.empty_like(stream)
    (rows, dim) = stream.shape
    at_once = _rows(rows, dim)
    sizes = {"EPS": eps, "ROWS": at_once, "WIDE": tile(dim), "ACC": accumulator(stream)}
    launch(
        _add_and_normalise,
        (triton.cdiv(rows, at_once),),
        out,
        stream,
        added,
        weight,
        rows,
        dim,
        **sizes,
    )
    return out


@triton.jit
def _normalise_and_gate(
    out, x, gate, weight, rows, dim,
    EPS: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of rows,); a row is one head of one token."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, WIDE)
    inside = (row < rows)[:, None] & (at < dim)[None, :]
    place = row[:, None] * dim + at[None, :]
    value = tl.load(x + place, mask=inside, other=0.0).to(ACC)
    z = tl.load(gate + place, mask=inside, other=0.0).to(ACC)
    scale = tl.rsqrt(tl.sum(value * value, 1) / dim + EPS)
    normed = (
        value * scale[:, None] * tl.load(weight + at, mask=at < dim, other=0.0).to(ACC)[None, :]
    )
    tl.store(out + place, (normed * z / (1.0 + tl.exp(-z))).to(out.dtype.element_ty), mask=inside)


@operation("normalise_and_gate(Tensor x, Tensor gate, Tensor weight, float eps) -> Tensor")
def normalise_and_gate(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return `norms.gated_rms_norm` [N, H * D] of `x` [N, H, D] by gate [N, H * D]; weight [D]."""
    out = torch.empty_like(gate)
    dim = x.shape[2]
    rows = x.shape[0] * x.shape[1]
    at_once = _rows(rows, dim)
    sizes = {"EPS": eps, "ROWS": at_once, "WIDE": tile(dim), "ACC": accumulator(x)}
    launch(
        _normalise_and_gate, (triton.cdiv(rows, at_once),), out, x, gate, weight, rows, dim, **sizes
    )
    return out


def _rows(rows: int, dim: int) -> int:
    """Return how many rows of so many elements a program takes."""
    return min(tile(rows), max(1, ELEMENTS_AT_ONCE // tile(dim)))
