"""How the reference of OpenVINO GenAI answers test vectors: through its own sizing and its
own orchestrator.
"""

from __future__ import annotations

from collections.abc import Mapping

from cachewitness._util.errors import UsageError
from cachewitness.engines.kind import Answer, Derived
from cachewitness.vectors.case import PolicyAnswers, rules_alone
from cachewitness.vectors.form import (
    LookupExpected,
    LookupInput,
    SizingExpected,
    SizingInput,
    SplitExpected,
    SplitInput,
)
from cachewitness_reference.openvino_genai.block_manager import BlockManager
from cachewitness_reference.openvino_genai.config import ConfigError, SchedulerConfig
from cachewitness_reference.openvino_genai.orchestrator import CacheOrchestrator
from cachewitness_reference.openvino_genai.sequence import Sequence, SequenceGroup
from cachewitness_reference.openvino_genai.sizing import Capacity, LayoutBytes, derive
from cachewitness_reference.openvino_genai.spec import NEWEST
from cachewitness_reference.primitives import Position

BYTES = ("kv_block_bytes", "la_block_bytes", "kv_block_size")
VALUES = ("kv_blocks", "la_blocks", "kv_bytes", "la_bytes", "multiplier", "interval", "dynamic")
ROOM = 64
"""Blocks of each pool where a look-up is asked: enough for any of them."""


def answer_sizing(question: SizingInput) -> SizingExpected:
    """Return the capacity of both pools."""
    given = dict(question.config)
    release = given.pop("release", NEWEST)
    memory = given.pop("total_memory_bytes", None)
    weights = {name: given.pop(name) for name in BYTES if name in given}
    try:
        capacity = derive(SchedulerConfig(**given), LayoutBytes(**weights), release, memory)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    return SizingExpected({name: getattr(capacity, name) for name in VALUES})


def answer_lookup(question: LookupInput) -> LookupExpected:
    """Key blocks as the prefixes that are cached, and restore a prompt."""
    cache = _orchestrator(question, ROOM, ROOM)
    size = question.groups[0].block_size
    longest = max((length for lengths in question.cached for length in lengths), default=0)
    tokens = list(range(1, max(longest, question.tokens) + 1))
    writer = Sequence("writer", tokens, size)
    for manager, lengths in zip(cache.managers.values(), question.cached, strict=True):
        for length in lengths:
            _key(manager, writer, Position(length))
    restored = cache.restore(SequenceGroup("r", tokens[: question.tokens], size))
    return LookupExpected(restored.processed)


def answer_split(question: SplitInput) -> SplitExpected:
    """Give a request what it holds, leave so many blocks free, and ask how many tokens there is
    room for.
    """
    size, interval = (group.block_size for group in question.groups)
    held = -(-question.start // size), -(-question.start // interval)
    cache = _orchestrator(
        question, held[0] + question.config["kv_free"], held[1] + question.config["la_free"]
    )
    sequence = Sequence("r", list(range(question.prompt)), size)
    if question.start:
        cache.allocate(sequence, 0, question.start)
    room = cache.available_slots(sequence, question.start)
    return SplitExpected(max(min(question.asked, question.prompt - question.start, room), 0))


def _orchestrator(
    question: LookupInput | SplitInput, kv_blocks: int, la_blocks: int
) -> CacheOrchestrator:
    size = question.groups[0].block_size
    interval = question.groups[1].block_size if len(question.groups) > 1 else None
    multiplier = None if interval is None else interval // size
    capacity = Capacity(
        kv_blocks, la_blocks if interval else 0, 0, 0, multiplier, interval, dynamic=False
    )
    return CacheOrchestrator(capacity, size, hybrid=interval is not None, caching=True)


def _key(manager: BlockManager, writer: Sequence, length: Position) -> None:
    block = manager.pool.allocate(writer.sequence_id)
    manager.pool.register(
        block, writer.hash_of(length), writer.parent_of(length), length, writer.sequence_id
    )
    manager.pool.release(block)


def answers(options: Mapping[str, str]) -> Mapping[str, Answer]:
    """Return who answers each kind of question."""
    known: dict[str, Answer] = {
        "sizing": answer_sizing,
        "lookup": answer_lookup,
        "split": answer_split,
    }
    return rules_alone(known, options, by_release=("sizing",))


def answers_derived(derived: Derived) -> Mapping[str, Answer]:
    """Return who answers for an engine that says what it derives from a configuration."""

    def answered(question: SizingInput) -> SizingExpected:
        return SizingExpected(dict(derived(question.config)))

    return {"sizing": answered}


ANSWERS = PolicyAnswers(reference=answers, derived=answers_derived)
