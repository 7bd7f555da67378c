"""Requests of unequal lengths, flat behind one another, over scattered pages that are poison
wherever nothing may be read.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

NAN = float("nan")
STARTS = (37, 3, 0, 20)
LENGTHS = (1, 20, 5, 1)
"""Chunks of a decode step, of a prefill that goes on, of one that begins, and of a decode step
again."""


def numbers(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def firsts(lengths: Sequence[int]) -> Tensor:
    return numbers(0, *itertools.accumulate(lengths))


class Keys(NamedTuple):
    """Keys and values of requests: in pages, and each request's own [1, stop, KV, D]."""

    kept: Tensor
    table: Tensor
    own: list[tuple[Tensor, Tensor]]


def paged_keys(
    starts: Sequence[int],
    lengths: Sequence[int],
    *,
    kv: int,
    dim: int,
    block: int = 8,
    window: int = 0,
    dtype: torch.dtype = torch.float64,
    columns: int = 8,
) -> Keys:
    """Deal pages of two layers; layer 1 holds the keys that queries see, and no others."""
    generator = torch.Generator().manual_seed(1)
    pages = 1 + len(starts) * columns
    free = list(range(1, pages))
    random.Random(2).shuffle(free)
    kept = torch.full((2, pages, block, 2, kv, dim), NAN, dtype=dtype)
    table = torch.zeros(len(starts), columns, dtype=torch.int32)
    own = []
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        stop = start + length
        key, value = (
            torch.randn(1, stop, kv, dim, generator=generator, dtype=torch.float64).to(dtype)
            for _ in range(2)
        )
        for column in range(-(-stop // block)):
            table[row, column] = free.pop()
        for position in range(max(0, start - window + 1) if window else 0, stop):
            kept[1, table[row, position // block], position % block] = torch.stack(
                [key[0, position], value[0, position]]
            )
        own.append((key, value))
    return Keys(kept, table, own)
