"""The faults of `cachewitness_faults.toy.kernels` in kernels that follow block tables
themselves (`toy:kernels=triton`).

Each function takes a kernel of `cachewitness_reference.toy_model.kernels.FlatKernels` and its
arguments, and returns what the faulty kernel would. They read the host where a kernel would not: a
fault has to be right about where it is wrong, not fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

CHUNK = 16
"""Tokens of a kernel's chunk."""
MEMORY_DIMS = 5
"""A pool of recurrent memories is [layers, pages, H, K, V], one of inputs of a convolution [layers,
pages, K - 1, channels]."""


def tail_gate(
    original: Any,
    mixed: Any,
    g: Any,
    beta: Any,
    states: Any,
    memories: Any,
    layer: int,
    *spans: Any,
) -> Any:
    """Fill each segment's last chunk up with the gate of its last token."""
    out = original(mixed, g, beta, states, memories, layer, *spans)
    for begin, stop, page in _segments(*spans):
        if stop - begin > 1:
            memories[layer, page] *= (g[stop - 1] * (-(stop - begin) % CHUNK)).exp()[:, None, None]
    return out


def last_gate(
    original: Any,
    mixed: Any,
    g: Any,
    beta: Any,
    states: Any,
    memories: Any,
    layer: int,
    *spans: Any,
) -> Any:
    """Keep each segment's memory as if its last token had not let it fade."""
    out = original(mixed, g, beta, states, memories, layer, *spans)
    for begin, stop, page in _segments(*spans):
        if stop - begin > 1:
            kept = g.clone()
            kept[stop - 1] = 0.0
            after = memories[layer].clone()
            original(mixed, kept, beta, states, after[None], 0, *spans)
            memories[layer, page] = after[page]
    return out


def value_sum(ctas: int) -> Callable[..., Any]:
    """Return attention that deals rows out to thread blocks and clears no block's sum."""

    def attend(original: Any, query: Any, *rest: Any) -> Any:
        import torch

        out = original(query, *rest)
        rows = out.reshape(-1, query.shape[-1])
        dealt = torch.nn.functional.pad(rows, (0, 0, 0, -len(rows) % ctas)).unflatten(0, (-1, ctas))
        return dealt.cumsum(0).flatten(0, 1)[: len(rows)].reshape(out.shape)

    return attend


def unwritten_values(
    original: Any,
    query: Any,
    projected: Any,
    kept: Any,
    layer: int,
    table: Any,
    first: Any,
    starts: Any,
    *rest: Any,
) -> Any:
    """Multiply what nobody wrote behind the last token of a block by zero."""
    out = original(query, projected, kept, layer, table, first, starts, *rest)
    bounds = first.tolist()
    for start, begin, end in zip(starts.tolist(), bounds[:-1], bounds[1:], strict=True):
        if (start + end - begin) % kept.shape[2]:
            out[begin:end] = float("nan")
    return out


def rounded(resumed: set[str]) -> Callable[..., Any]:
    """Return a read of states that rounds memories to bfloat16 while a request resumes."""

    def gather(original: Any, pool: Any, reads: Any) -> Any:
        import torch

        states = original(pool, reads)
        return (
            states.to(torch.bfloat16).to(states.dtype)
            if resumed and pool.dim() == MEMORY_DIMS
            else states
        )

    return gather


def first_row_only(original: Any, pool: Any, reads: Any) -> Any:
    """Read the memory of the first request alone."""
    states = original(pool, reads)
    if pool.dim() == MEMORY_DIMS:
        states[:, 1:] = 0.0
    return states


def conv_anew(
    original: Any, x: Any, weight: Any, states: Any, layer: int, first: Any, longest: int
) -> Any:
    """Take zeros for the inputs in front of a chunk of several tokens."""
    return original(x, weight, states * (longest == 1), layer, first, longest)


def _segments(
    first: Any, segments: Any, stops: Any, saves: Any, longest: int
) -> Iterator[tuple[int, int, int]]:
    """Yield begin, stop and page of the segments that are kept."""
    bounds = segments.tolist()
    ends = stops.tolist()
    pages = saves.tolist()
    for row, begin in enumerate(first.tolist()[:-1]):
        for segment in range(bounds[row], bounds[row + 1]):
            if pages[segment] >= 0:
                yield begin, ends[segment], pages[segment]
            begin = ends[segment]
