"""How the engine `toy` is found by name. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping

from harness.engines.protocol import Engine
from harness.engines.registry import EngineKind
from harness.errors import EngineMissing
from harness.trace import TraceHeader


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    """Build the engine for a trace.

    Raises UsageError for an option that does not fit, EngineMissing without torch.
    """
    _need_torch()
    from harness.toy.engine import build

    return build(header, options)


def _need_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise EngineMissing("--engine toy: needs torch, which is not installed; pip install 'cachewitness[toy]'") from None


ENGINE = EngineKind(
    name="toy",
    summary="the reference's scheduler over a small hybrid model's real tensors in paged pools",
    heights=("scheduler",),
    open=open_engine,
    options={
        "mutant": "a seeded fault (see `ls mutants`)",
        "release": "the vLLM release whose defaults apply",
        "dtype": "float64 (default), float32, or bf16-state: float32 with recurrent memories in bfloat16",
        "device": "cpu (default) or cuda",
        "checkpoint": "a folder with a trained model; default: a random one made to fit the layout",
        "seed": "of the random model; default 0",
        "pad_rows": "batches are filled up to a multiple of so many rows; default 1",
    },
)
