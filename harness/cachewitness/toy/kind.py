"""How the engine `toy` is found by name, and opened for a trace or for an arm of a score.
Nothing here imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness.core.engine import Engine
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines.answers import Backend, Opening, Prompts
from cachewitness.engines.kind import EngineKind

THREADS = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
TIER_PAGES = 1 << 16
"""Enough for every prompt of a score, each under a salt of its own."""
PREEMPT_EVERY = 8
"""Steps after which the request that came last loses its place, in an arm under preemption."""
BATCH = 16
"""Requests that run at a time."""
DRAFTS = 3
"""Tokens that are guessed with each one, in an arm with drafts."""
SCARCE_PAGES = 256
"""Room for the blocks of a few contexts of the problems, not of all, in an arm where space is
scarce."""


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    """Build the engine for a trace.

    Raises UsageError for an option that does not fit, EngineMissing without torch.
    """
    need_torch()
    from cachewitness.toy.engine import build

    return build(header, options)


def open_service(options: Mapping[str, str], opening: Opening) -> Backend:
    """Open the toy engine, with `options` as the user named it, for one arm of a score.

    Raises UsageError for an option or a checkpoint that does not fit, EngineMissing without torch
    or without a GPU asked for.
    """
    need_torch()
    from cachewitness.toy.service import PAGES, ToyService

    checkpoint = options.get("checkpoint") or opening.checkpoint
    return ToyService(
        Path(checkpoint) if checkpoint else None,
        policy=opening.policy,
        caching=opening.caching,
        mutant=options.get("mutant", ""),
        release=options.get("release", ""),
        tier_pages=TIER_PAGES if opening.tier else 0,
        drafts=DRAFTS if opening.drafts else 0,
        pages=SCARCE_PAGES if opening.scarce else PAGES,
        preempt_every=PREEMPT_EVERY if opening.preempt else 0,
        dtype=options.get("dtype") or opening.dtype or "float32",
        device=options.get("device") or opening.device,
        kernels=options.get("kernels", "torch"),
        batch=_batch(options),
    )


def _batch(options: Mapping[str, str]) -> int:
    text = options.get("batch", str(BATCH))
    if not text.isdecimal() or not int(text):
        raise UsageError(f"--engine: batch {text!r} is not a whole number, at least 1")
    return int(text)


def _bit_exact(options: Mapping[str, str]) -> bool:
    """Whether answers after a hit are those without one: on a CPU, in numbers that are wide
    enough.
    """
    return options.get("device", "cpu") == "cpu" and options.get("dtype", "float32") in (
        "float32",
        "float64",
    )


def need_torch() -> None:
    """Import torch, with one thread unless the user chose otherwise.

    At this size a second thread brings nothing, and threads that spin while they wait cost a busy
    machine most of its time. Raises EngineMissing without torch.
    """
    for name, value in THREADS.items():
        os.environ.setdefault(name, value)
    try:
        import torch
    except ImportError:
        mend = "pip install 'cachewitness[toy]'"
        raise EngineMissing(
            f"--engine toy: needs torch, which is not installed; {mend}", mend
        ) from None
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


ENGINE = EngineKind(
    name="toy",
    summary="a policy's reference over a small hybrid model's real tensors in paged pools",
    levels=("scheduler",),
    open=open_engine,
    policies=None,
    prompts=Prompts(open_service, _bit_exact),
    computes=True,
    is_reference=True,
    options={
        "mutant": "a seeded fault (see `ls mutants`)",
        "release": "the release of the policy's system whose rules apply",
        "dtype": (
            "float64 (default; for prompts float32), float32, bfloat16, or bf16-state: recurrent"
            " memories in bfloat16"
        ),
        "batch": "for prompts: at most so many run at a time; default 16",
        "device": "cpu (default) or cuda",
        "kernels": (
            "torch (default), or triton: kernels over block tables; on the CPU in Triton's"
            " interpreter, which is slow"
        ),
        "checkpoint": "a folder with a trained model; default: a random one made to fit the layout",
        "seed": "of the random model; default 0",
        "pad_rows": "batches are filled up to a multiple of so many rows; default 4",
    },
)
