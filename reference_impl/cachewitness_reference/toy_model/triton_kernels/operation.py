"""How a Triton kernel becomes an operation of torch: once registered, counted like any other,
launched where there is data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])

INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether kernels run on the CPU, in Triton's interpreter."""
_LIBRARY = torch.library.Library("cachewitness", "DEF")
DOT_LEAST = 16
"""The fewest rows or columns of a matrix that Triton multiplies."""


def operation(schema: str) -> Callable[[Function], Function]:
    """Register a function as an operation of torch, for all devices; `schema` names it and says
    what it writes.
    """

    def register(function: Function) -> Function:
        _LIBRARY.define(schema)
        for device in ("CPU", "CUDA", "Meta"):
            _LIBRARY.impl(schema.split("(")[0], function, device)
        registered: Function = getattr(torch.ops.cachewitness, schema.split("(")[0])
        return registered

    return register


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Run a kernel, unless its first argument, a tensor, has no data."""
    if not arguments[0].is_meta and all(grid):
        kernel[grid](*arguments, **constants)


def accumulator(x: Tensor) -> Any:
    """Return the dtype that kernels compute in for `x`: float32, or float64 if `x` is."""
    return tl.float64 if x.dtype == torch.float64 else tl.float32


def multiplied(x: Tensor) -> Any:
    """Return the dtype in which matrices of what `x` holds are multiplied, sums in that of
    `accumulator`.

    Products of two numbers in bfloat16 are exact in float32; the interpreter, which cannot multiply
    bfloat16, makes them there.
    """
    return tl.bfloat16 if x.dtype == torch.bfloat16 and not INTERPRETED else accumulator(x)


def precision(x: Tensor) -> str:
    """Return how matrices of what `x` holds are multiplied: of float32 as three products of
    shorter numbers, 21 bits exact.
    """
    return "tf32x3" if x.dtype == torch.float32 else "ieee"


def tile(size: int) -> int:
    """Return the width of a tile that holds `size` elements."""
    return max(DOT_LEAST, int(triton.next_power_of_2(size)))
