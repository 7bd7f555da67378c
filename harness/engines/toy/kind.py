"""How the engine `toy` is found by name. Nothing here imports torch."""

from __future__ import annotations

import os
from collections.abc import Mapping

from harness._util.errors import EngineMissing
from harness.engines.kind import EngineKind
from harness.engines.protocol import Engine
from harness.engines.toy.answers import open_service
from harness.trace.format import TraceHeader

THREADS = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    """Build the engine for a trace.

    Raises UsageError for an option that does not fit, EngineMissing without torch.
    """
    need_torch()
    from harness.engines.toy.engine import build

    return build(header, options)


def need_torch() -> None:
    """Import torch, with one thread unless the user chose otherwise.

    At this size a second thread brings nothing, and threads that spin while they wait cost a busy machine most of its time.
    Raises EngineMissing without torch.
    """
    for name, value in THREADS.items():
        os.environ.setdefault(name, value)
    try:
        import torch
    except ImportError:
        raise EngineMissing("--engine toy: needs torch, which is not installed; pip install 'cachewitness[toy]'") from None
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


ENGINE = EngineKind(
    name="toy",
    summary="a policy's reference over a small hybrid model's real tensors in paged pools",
    heights=("scheduler",),
    open=open_engine,
    policies=None,
    answerer=open_service,
    computes=True,
    options={
        "mutant": "a seeded fault (see `ls mutants`)",
        "release": "the release of the policy's system whose rules apply",
        "dtype": "float64 (default; for prompts float32), float32, or bf16-state: recurrent memories in bfloat16",
        "device": "cpu (default) or cuda",
        "checkpoint": "a folder with a trained model; default: a random one made to fit the layout",
        "seed": "of the random model; default 0",
        "pad_rows": "batches are filled up to a multiple of so many rows; default 1",
    },
)
