"""The faults in TensorRT-Edge-LLM's policy that the documentation shows.

All others are in `cachewitness_faults.tensorrt_edge`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import adapter, wrap
from cachewitness.engines.mutant import declared, mutant
from cachewitness_reference.tensorrt_edge.compaction import RowMove

fault = partial(mutant, engines=("tensorrt_edge",))


@fault(
    name="edge-rows-copied-one-by-one",
    mirrors="the contract of TensorRT-Edge-LLM's compactBatch, which says nothing of an order",
    anomaly="stale-hit",
    checker="safety-law",
    group="F",
)
def rows_copied_one_by_one(engine: Driver) -> None:
    """A compaction overwrites rows that it has yet to read."""

    def compact_batch(original: Any, *args: Any) -> Any:
        moves = original(*args)
        return type(moves)(*[_one_by_one(kind) for kind in moves])

    wrap(adapter(engine).runtime.cache, "compact_batch", compact_batch)


def _one_by_one(moves: Sequence[RowMove]) -> tuple[RowMove, ...]:
    content: dict[int, int] = {}
    for move in sorted(moves, reverse=True):
        content[move.dst] = content.get(move.src, move.src)
    return tuple(RowMove(src, dst) for dst, src in content.items() if src != dst)


@fault(
    name="edge-last-token-of-a-capture-again",
    mirrors="TensorRT-Edge-LLM 0.7.1, prefill from N - 1 behind a system prompt of N tokens",
    anomaly="state-position-skew",
    checker="safety-law",
    group="A",
)
def last_token_of_a_capture_again(engine: Driver) -> None:
    """A restored state takes its last token in a second time."""
    runtime = adapter(engine).runtime

    def join(original: Any, wanted: Any, step: Any) -> None:
        original(wanted, step)
        for _, request in step.restores:
            request.computed -= 1
            row = runtime.cache.rows.rows[request.slot]
            row.kv = row.recurrent = row.conv = request.computed
        if step.joined:
            runtime.cache.reset_for_new_sequences(
                [request.computed for request in runtime.running()]
            )

    wrap(runtime, "_join", join)


MUTANTS = declared(globals())
