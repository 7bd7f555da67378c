"""Compiles every kernel that a prefill and a decode step launch, for a GPU that need not be there.
Run by itself.

    python -m suites.support.compile_kernels float32 90

The steps run on the CPU up to each launch, which is compiled for the given compute capability
instead; nothing is computed. Kernels compile only where Triton's interpreter is off, which is
decided when Triton is imported: hence a process of its own.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from cachewitness_reference.toy_model.kernels import named
from cachewitness_reference.toy_model.triton_kernels import (
    attention,
    convolution,
    gated_delta,
    norms,
    state,
)
from suites.support.paged_by_hand import WITHOUT_MAMBA, Hand

POINTERS = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
}
COMPILED: dict[str, int] = {}
"""Variants of each kernel that were compiled."""
NARROWED: set[str] = set()
"""Kernels over float64 that are given, or make, a number of float32 and widen it."""


def compiling(target: GPUTarget) -> Any:
    """Return a stand-in for `operation.launch` that compiles what it is given."""
    known = set()

    def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        signature = {
            name: _type(value) for name, value in zip(kernel.arg_names, arguments, strict=False)
        }
        signature |= dict.fromkeys(constants, "constexpr")
        key = (
            kernel.__name__,
            *signature.items(),
            *((name, str(value)) for name, value in constants.items()),
        )
        if key not in known:
            known.add(key)
            places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
            compiled = triton.compile(
                ASTSource(fn=kernel, signature=signature, constexprs=places), target=target
            )
            if "*fp64" in signature.values():
                NARROWED.update({kernel.__name__} if "cvt.f64.f32" in compiled.asm["ptx"] else ())
            COMPILED[kernel.__name__] = COMPILED.get(kernel.__name__, 0) + 1

    return launch


def _type(value: Any) -> str:
    return (
        POINTERS[value.dtype]
        if isinstance(value, torch.Tensor)
        else "fp32"
        if isinstance(value, float)
        else "i32"
    )


def main(dtype: str, capability: str) -> None:
    """Compile, and print how many variants of each kernel there were; stop if one over float64
    widens float32.
    """
    for module in (attention, convolution, gated_delta, norms, state):
        module.launch = compiling(GPUTarget("cuda", int(capability), 32))  # type: ignore[attr-defined]
    hand = Hand(getattr(torch, dtype), layers=WITHOUT_MAMBA, kernels=named("triton"))
    text = hand.tokens(50)
    tables = hand.deal(50)
    hand.run((text, 0, 17, tables))
    hand.run((text, 17, 18, tables))
    long = hand.tokens(200)  # of which the keys are split
    tables = hand.deal(200)  # of which the keys are split
    hand.run((long, 0, 199, tables))
    hand.run((long, 199, 200, tables))
    if NARROWED:
        sys.exit(f"over float64, but with numbers of float32: {sorted(NARROWED)}")
    print(*(f"{name}={count}" for name, count in sorted(COMPILED.items())))


if __name__ == "__main__":
    main(*sys.argv[1:])
