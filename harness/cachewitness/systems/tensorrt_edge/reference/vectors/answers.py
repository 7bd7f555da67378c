"""How the reference of TensorRT-Edge-LLM answers test vectors: through its own manager's
books and its own runtime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.engines.kind import Answer
from cachewitness.vectors.case import PolicyAnswers, rules_alone
from cachewitness.vectors.form import (
    CompactionExpected,
    CompactionInput,
    LookupExpected,
    LookupInput,
    SizingExpected,
    SizingInput,
)
from cachewitness_reference.primitives import Position
from cachewitness_reference.tensorrt_edge.capture import Captured, Kind
from cachewitness_reference.tensorrt_edge.compaction import RowMove
from cachewitness_reference.tensorrt_edge.config import (
    CacheError,
    Config,
    DataType,
    KVConfig,
    KVLayerConfig,
    LayerType,
    MambaConfig,
)
from cachewitness_reference.tensorrt_edge.policy import HybridCachePolicy
from cachewitness_reference.tensorrt_edge.runtime import Request, Runtime, RuntimeOptions
from cachewitness_reference.tensorrt_edge.system_prompts import Snapshot

LETTERS = {"A": LayerType.ATTENTION, "M": LayerType.MAMBA}
ROOM = 8
"""Captures that are kept where a look-up is asked: enough for any of them."""


def answer_sizing(question: SizingInput) -> SizingExpected:
    """Build the manager's books, and say what they know of layers."""
    try:
        policy = HybridCachePolicy(_configured(**question.config))
    except CacheError as error:
        raise UsageError(str(error)) from None
    routes = [[route.kind.value, route.local] for route in policy.routing.routes]
    views = policy.get_kv_head_dim_groups()
    groups = [
        {"head_dim": v.head_dim, "layers": list(v.layers), "max_kv_heads": v.max_kv_heads}
        for v in views
    ]
    return SizingExpected({"routes": routes, "head_dim_groups": groups})


def _configured(
    *,
    layer_types: str,
    kv_layers: list[list[int]],
    max_batch_size: int,
    max_sequence_length: int,
    state: list[int],
    recurrent_layers: int | None = None,
    kv_max_batch_size: int | None = None,
    kv_cache_type: str = "kHALF",
) -> Config:
    rows = max_batch_size
    layers = tuple(KVLayerConfig(heads, dim) for heads, dim in kv_layers)
    recurrent = layer_types.count("M") if recurrent_layers is None else recurrent_layers
    kv = KVConfig(
        len(layers), kv_max_batch_size or rows, max_sequence_length, layers, DataType(kv_cache_type)
    )
    heads, head_dim, size, conv_dim, conv_kernel = state
    mamba = MambaConfig(recurrent, rows, heads, head_dim, size, conv_dim, conv_kernel)
    return Config(tuple(LETTERS[letter] for letter in layer_types), kv, mamba, rows)


def _policy(rows: int, length: int) -> HybridCachePolicy:
    return HybridCachePolicy(
        _configured(
            layer_types="AM",
            kv_layers=[[1, 64]],
            max_batch_size=rows,
            max_sequence_length=length,
            state=[1, 64, 16, 64, 4],
        )
    )


def answer_compaction(question: CompactionInput) -> CompactionExpected:
    """Give the batch its lengths, compact it, and say who is where."""
    policy = _policy(question.max_batch, max([1, *question.lengths]))
    for page in range(len(question.lengths)):
        policy.zero_recurrent_states(page)
    policy.reset_for_new_sequences([0] * len(question.lengths))
    try:
        if question.lengths:
            policy.commit_sequence_length(question.lengths)
        moves = policy.compact_batch(question.mapping, len(question.lengths), question.new_batch)
    except CacheError as error:
        raise UsageError(str(error)) from None
    policy.set_active_batch_size(question.new_batch)
    lengths = [int(length) for length in policy.get_kv_cache_lengths()]
    return CompactionExpected(
        _rows(moves.kv, question.new_batch), _rows(moves.states, question.new_batch), lengths
    )


def _rows(moves: Sequence[RowMove], batch: int) -> list[int]:
    """Return of which row each of the batch now has the content."""
    rows = list(range(batch))
    for move in moves:
        rows[move.dst] = move.src
    return rows


def answer_lookup(question: LookupInput) -> LookupExpected:
    """Keep the captures that there are, let a request join, and see from where it computes."""
    config = question.config
    runtime = Runtime(
        _policy(1, question.groups[0].block_size),
        RuntimeOptions(ROOM, replay_last_token=config.get("replay_last_token", False)),
    )
    longest = max([question.tokens, *question.cached[0]])
    writer = Request("writer", list(range(1, longest + 1)))
    for length in question.cached[0]:
        place = runtime.prompts.reserve(writer.key_at(length))
        assert place is not None
        runtime.prompts.save(place, _snapshot(length))
    runtime.add(Request("r", writer.tokens[: question.tokens], config["system_prompt"]))
    step = runtime.begin_step([("r", question.tokens)])
    return LookupExpected(int(step.chunks["r"][0]))


def _snapshot(length: int) -> Snapshot:
    kv, recurrent, conv = (
        Captured(kind, Position(length), (None,)) for kind in (Kind.KV, Kind.RECURRENT, Kind.CONV)
    )
    return Snapshot(kv, recurrent, conv)


def answers(options: Mapping[str, str]) -> Mapping[str, Answer]:
    """Return who answers each kind of question."""
    known: dict[str, Any] = {
        "sizing": answer_sizing,
        "lookup": answer_lookup,
        "compaction": answer_compaction,
    }
    return rules_alone(known, options)


ANSWERS = PolicyAnswers(reference=answers)
