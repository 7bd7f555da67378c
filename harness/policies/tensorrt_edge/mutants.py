"""Faults in batch rows that move, and in captured system prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.engines.fault_tools import wrap
from harness.engines.mutant import Mutant
from harness.engines.policy_height import PolicyHeight
from harness.history.events import Move
from reference_impl.tensorrt_edge.compaction import RowMove

EDGE = ("tensorrt_edge",)


def rows_copied_one_by_one(engine: PolicyHeight) -> None:
    """Copy rows one after another, the last one first, into rows that are still to be read."""

    def compact_batch(original: Any, *args: Any) -> Any:
        moves = original(*args)
        return type(moves)(*[_one_by_one(kind) for kind in moves])

    wrap(_runtime(engine).cache, "compact_batch", compact_batch)


def _one_by_one(moves: Sequence[RowMove]) -> tuple[RowMove, ...]:
    content: dict[int, int] = {}
    for move in sorted(moves, reverse=True):
        content[move.dst] = content.get(move.src, move.src)
    return tuple(RowMove(src, dst) for dst, src in content.items() if src != dst)


def states_left_behind(engine: PolicyHeight) -> None:
    """Move keys and values to the rows of the smaller batch, and leave the states where they are."""

    def compact_batch(original: Any, *args: Any) -> Any:
        return original(*args)._replace(states=())

    wrap(_runtime(engine).cache, "compact_batch", compact_batch)


def last_token_of_a_capture_again(engine: PolicyHeight) -> None:
    """Restore a state, and compute its last token once more, for the logits."""
    runtime = _runtime(engine)

    def join(original: Any, wanted: Any, step: Any) -> None:
        original(wanted, step)
        for _, request in step.restores:
            request.computed -= 1
            row = runtime.cache.rows.rows[request.slot]
            row.kv = row.recurrent = row.conv = request.computed
        if step.joined:
            runtime.cache.reset_for_new_sequences([request.computed for request in runtime.running()])

    wrap(runtime, "_join", join)


def capture_rewritten(engine: PolicyHeight) -> None:
    """Store a request's row over its capture again after every further step."""
    runtime, captured = _runtime(engine), dict[str, Any]()

    def schedule(original: Any, *args: Any) -> Any:
        scheduled, aside = original(*args), _adapter(engine)._aside
        for request in runtime.running():
            saved = captured.get(request.request_id)
            if saved is not None and runtime.prompts.saved.get(saved.key) is saved and request.request_id in scheduled.chunks:
                groups = _adapter(engine)._groups
                scheduled.stores += [Move(request.slot, saved.place, g.pool, aside[g.id].pool) for g in groups]
        captured.update((request.request_id, saved) for request, saved in _adapter(engine)._step.saves)
        return scheduled

    wrap(_adapter(engine), "schedule", schedule)


def capture_without_weights(engine: PolicyHeight) -> None:
    """Find captures by their tokens alone."""

    def add(original: Any, request: Any) -> None:
        request.lora = request.salt = ""
        original(request)

    wrap(_runtime(engine), "add", add)


def captures_survive_new_weights(engine: PolicyHeight) -> None:
    """Load new weights, and keep what the old ones captured."""
    wrap(_adapter(engine), "renew", lambda original: None)


def _adapter(engine: PolicyHeight) -> Any:
    return engine.adapter


def _runtime(engine: PolicyHeight) -> Any:
    return _adapter(engine).runtime


MUTANTS = (
    Mutant(
        "edge-rows-copied-one-by-one",
        "a compaction overwrites rows that it has yet to read",
        "the contract of TensorRT-Edge-LLM's compactBatch, which says nothing of an order",
        "stale-hit",
        "safety-law",
        rows_copied_one_by_one,
        EDGE,
        group="F",
    ),
    Mutant(
        "edge-states-left-behind",
        "a compaction moves keys and values, and not the states",
        "NVIDIA/TensorRT-LLM#13151, EricLBuehler/mistral.rs#2017",
        "stale-hit",
        "safety-law",
        states_left_behind,
        EDGE,
        group="F",
    ),
    Mutant(
        "edge-last-token-of-a-capture-again",
        "a restored state takes its last token in a second time",
        "TensorRT-Edge-LLM 0.7.1, prefill from N - 1 behind a system prompt of N tokens",
        "state-position-skew",
        "safety-law",
        last_token_of_a_capture_again,
        EDGE,
        group="A",
    ),
    Mutant(
        "edge-capture-rewritten",
        "a capture is written again while its request goes on",
        "alibaba/MNN#4495",
        "state-position-skew",
        "safety-law",
        capture_rewritten,
        EDGE,
        group="A",
    ),
    Mutant(
        "edge-capture-without-weights",
        "a capture is found by its tokens alone, whatever the LoRA weights and the salt",
        "vllm-project/vllm#53495",
        "cross-identity-hit",
        "identity",
        capture_without_weights,
        EDGE,
        group="I",
    ),
    Mutant(
        "edge-captures-survive-new-weights",
        "new weights do not end the captures of the old ones",
        "NVIDIA-NeMo/RL#4018",
        "cross-identity-hit",
        "identity",
        captures_survive_new_weights,
        EDGE,
        group="L",
    ),
)
