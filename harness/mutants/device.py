"""Faults of a device: tables, keys and counts are silent about them, and only numbers show them.

They are planted into an engine that computes, and are the positive controls of the rule that ledger and tensors must agree: the
policy is right, so the ledger finds nothing, and the logits are wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from harness.history import StepBegin
from harness.mutants import Mutant
from harness.mutants.tools import wrap

TOY = ("toy",)


def copies_left_out(engine: Any) -> None:
    """Run steps without the copies that come before them."""
    _rewrite(engine, lambda begin: msgspec.structs.replace(begin, copies=[]))


def device_rows_grow(engine: Any) -> None:
    """Keep a request's rows of the block table from one step to the next, and add what is new in them."""
    rows: dict[str, list[list[int]]] = {}

    def grown(begin: StepBegin) -> StepBegin:
        runs = []
        for run in begin.runs:
            old = rows.get(run.r, [[] for _ in run.tables])
            rows[run.r] = [row + new[len(row) :] for row, new in zip(old, run.tables, strict=True)]
            runs.append(msgspec.structs.replace(run, tables=[list(row) for row in rows[run.r]]))
        return msgspec.structs.replace(begin, runs=runs)

    _rewrite(engine, grown)


def conv_state_lost(engine: Any) -> None:
    """Restore recurrent memories without the convolutions' states beside them."""
    pools, seen = engine.tensors.pools, set[str]()

    def execute(original: Any, begin: StepBegin, *args: Any) -> Any:
        for run in begin.runs:
            if run.start and run.r not in seen:
                for group, view, table in zip(pools.groups, pools.views, engine.tensors.tables(run), strict=False):
                    slot = table[-(-run.start // group.block_size) - 1]
                    if len(view) > 1 and pools.writable(slot):
                        view[0][:, slot] = 0.0
            seen.add(run.r)
        return original(begin, *args)

    wrap(engine.tensors, "execute", execute)


def _rewrite(engine: Any, change: Callable[[StepBegin], StepBegin]) -> None:
    wrap(engine.tensors, "execute", lambda original, begin, *args: original(change(begin), *args))


MUTANTS = (
    Mutant(
        "device-skips-copies",
        "the device runs a step without the copies that come before it",
        "vllm-project/vllm#55112",
        "silent-divergence",
        "tensors",
        copies_left_out,
        TOY,
        group="K",
    ),
    Mutant(
        "device-rows-grow",
        "the device's row of a request is not rewritten when it comes back",
        "vllm-project/vllm#42273",
        "silent-divergence",
        "tensors",
        device_rows_grow,
        TOY,
        group="G",
    ),
    Mutant(
        "conv-state-lost",
        "a recurrent memory is restored without the convolution's state beside it",
        "osaurus-ai/vmlx-swift#210",
        "silent-divergence",
        "tensors",
        conv_state_lost,
        TOY,
        group="J",
    ),
)
