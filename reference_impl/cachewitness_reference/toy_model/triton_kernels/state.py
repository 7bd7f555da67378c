"""States out of their pages: what the requests of a step go on from, copied before anything of the
step is written.

States go back to their pages in the kernels that make them: `gated_delta` and
`convolution.keep_inputs`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cachewitness_reference.toy_model.triton_kernels.operation import launch, operation, tile

ELEMENTS_AT_ONCE = 1024


@triton.jit
def _gather(out, pool, reads, pages, requests, elements, SIZE: tl.constexpr):
    """Grid (layers, requests, tiles of elements)."""
    layer = tl.program_id(0).to(tl.int64)
    request = tl.program_id(1)
    at = tl.program_id(2) * SIZE + tl.arange(0, SIZE)
    page = tl.load(reads + request)
    place = tl.where(page >= pages, 0, page)
    count = tl.where(page >= 0, elements, 0)
    value = tl.load(pool + (layer * pages + place) * elements + at, mask=at < count, other=0.0)
    tl.store(out + (layer * requests + request) * elements + at, value, mask=at < elements)


@operation("gather_states(Tensor pool, Tensor reads) -> Tensor")
def gather_states(pool: Tensor, reads: Tensor) -> Tensor:
    """Return the states [layers, R, ...] in pages reads [R] of `pool` [layers, pages, ...];
    zeros where a page is below 0.
    """
    layers, pages, *shape = pool.shape
    out = torch.empty((layers, reads.shape[0], *shape), dtype=pool.dtype, device=pool.device)
    elements = pool.numel() // (layers * pages)
    size = min(tile(elements), ELEMENTS_AT_ONCE)
    grid = (layers, reads.shape[0], triton.cdiv(elements, size))
    launch(_gather, grid, out, pool, reads, pages, reads.shape[0], elements, SIZE=size)
    return out
