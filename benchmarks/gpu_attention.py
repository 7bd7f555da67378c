"""What share of a GPU's memory bandwidth paged attention reaches when requests decode at long
context.

    python -m benchmarks.gpu_attention [--batch 64] [--write docs/results/gpu.md]

The kernel reads every key and value of every request once, through block tables whose pages are
scattered; those bytes by the time of a launch are compared with what a copy from device memory to
device memory moves, reads and writes counted.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks import sections
from cachewitness._util import pages

HEADS, KV, DIM, BLOCK = 16, 2, 256, 16
"""Query heads, key heads and their dimensions: those of Qwen3-Next's full attention."""
CONTEXTS = (1024, 4096, 16384, 65536)
COPIED = 4 << 30


def main(argv: list[str] | None = None) -> int:
    """Measure and print the section."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        sys.exit("torch sees no GPU here")
    copied = copy_rate()
    rows = []
    for dtype in (torch.bfloat16, torch.float32):
        for context in CONTEXTS:
            took, moved = decode(options.batch, context, dtype)
            rate = moved / took * 1e3
            name = str(dtype).removeprefix("torch.")
            rows.append(
                [name, f"{context:,}", f"{took:.3f}", f"{rate / 1e9:,.0f}", f"{rate / copied:.0%}"]
            )
    section = pages.render(
        "gpu-attention",
        gpu=torch.cuda.get_device_name(),
        options=options,
        rows=rows,
        copied=f"{copied / 1e9:,.0f}",
        sizes={"heads": HEADS, "kv": KV, "dim": DIM, "block": BLOCK},
    )
    sections.tell(section, options.write)
    return 0


def decode(requests: int, context: int, dtype: torch.dtype) -> tuple[float, int]:
    """Return the milliseconds of one launch, and the bytes of keys and values that it reads."""
    from cachewitness_reference.toy_model.triton_kernels.attention import paged_attention

    columns = context // BLOCK
    generator = torch.Generator("cuda").manual_seed(0)
    made: Any = {"device": "cuda", "dtype": dtype, "generator": generator}
    kept = torch.empty(
        1, 1 + requests * columns, BLOCK, 2, KV, DIM, device="cuda", dtype=dtype
    ).normal_(generator=generator)
    table = 1 + torch.randperm(requests * columns, device="cuda", generator=generator).int()
    query = torch.randn(requests, HEADS, DIM, **made)
    projected = torch.randn(requests, HEADS * 2 * DIM, **made)
    first = torch.arange(requests + 1, device="cuda", dtype=torch.int32)
    starts = torch.full((requests,), context - 1, device="cuda", dtype=torch.int32)
    took = milliseconds(
        lambda: paged_attention(query, projected, kept, 0, table, first, starts, 1, 0)
    )
    return took, requests * context * 2 * KV * DIM * kept.element_size()


def copy_rate() -> float:
    """Return the bytes that a copy within device memory reads and writes in a second."""
    source = torch.empty(COPIED, dtype=torch.int8, device="cuda").random_()
    target = torch.empty_like(source)
    return 2 * COPIED / milliseconds(lambda: target.copy_(source)) * 1e3


def milliseconds(run: Any) -> float:
    """Return the median milliseconds of a launch."""
    import triton.testing

    return float(triton.testing.do_bench(run, warmup=50, rep=200, return_mode="median"))


if __name__ == "__main__":
    sys.exit(main())
