"""How the reference of Furiosa-LLM answers test vectors: through its own split and its own
cache manager.
"""

from __future__ import annotations

from collections.abc import Mapping

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import GroupSpec
from cachewitness.engines.kind import Answer
from cachewitness.vectors.case import PolicyAnswers, rules_alone
from cachewitness.vectors.form import (
    LookupExpected,
    LookupInput,
    RetentionExpected,
    RetentionInput,
    SizingExpected,
    SizingInput,
)
from cachewitness_reference.furiosa.config import CacheConfig, Layers, Options
from cachewitness_reference.furiosa.hybrid_match import NO_HIT
from cachewitness_reference.furiosa.manager import HybridCacheManager
from cachewitness_reference.furiosa.partition import ConfigError, expected_length_from, split
from cachewitness_reference.furiosa.request import Request
from cachewitness_reference.furiosa.spec import VARIABLE

BLOCKS = 64
"""Blocks of each pool where a match or a cleanup is asked: enough for any of them."""
VALUES = (
    "seq_length",
    "global_blocks",
    "sliding_blocks",
    "global_blocks_per_seq",
    "sliding_blocks_per_seq",
    "used_bytes",
    "sequences",
)


def answer_sizing(question: SizingInput) -> SizingExpected:
    """Return the split of memory."""
    config = dict(question.config)
    environment = {VARIABLE: config.pop("environment")} if "environment" in config else {}
    try:
        shares = split(expected_average_seq_length=expected_length_from(environment), **config)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    return SizingExpected({name: getattr(shares, name) for name in VALUES})


def answer_lookup(question: LookupInput) -> LookupExpected:
    """Store a sequence, take the sliding blocks away that are gone, and match a request."""
    manager = _manager(question.groups, question.config)
    tokens = list(range(1, BLOCKS * 16))
    (stored, sliding) = question.cached
    if stored:
        _compute(
            manager, Request("writer", tokens[: stored[-1]]), stored[-1], stored[-1], free=True
        )
    for entry in list(manager.tree.entries()):
        if entry.stop not in sliding:
            manager.tree.open_hole(entry)
    hit = manager.match(Request("r", tokens[: question.tokens]))
    global_blocks, sliding_blocks = manager.columns(hit)
    columns = [
        list(range(len(global_blocks))),
        list(range(len(global_blocks) - len(sliding_blocks), len(global_blocks))),
    ]
    return LookupExpected(hit.length, columns=columns if hit.length else [])


def answer_retention(question: RetentionInput) -> RetentionExpected:
    """Compute a request's tokens chunk by chunk, and say which sliding blocks it holds."""
    config = dict(question.config)
    chunk = config.pop("chunk", question.tokens)
    manager = _manager(question.groups, config)
    request = Request("r", list(range(1, question.tokens + 1)))
    _compute(manager, request, question.tokens, chunk)
    return RetentionExpected(
        [column for column, block in enumerate(request.sliding_blocks) if block is not None]
    )


def _manager(groups: list[GroupSpec], config: Mapping[str, object]) -> HybridCacheManager:
    layers = Layers(groups[0].block_size, groups[1].window)
    return HybridCacheManager(CacheConfig(layers, Options.parse(dict(config)), BLOCKS, BLOCKS))


def _compute(
    manager: HybridCacheManager, request: Request, tokens: int, chunk: int, *, free: bool = False
) -> None:
    while request.num_computed < tokens:
        count = min(chunk, tokens - request.num_computed)
        if request.global_blocks:
            manager.extend(request, count)
        else:
            manager.prefill(request, NO_HIT, count)
        manager.complete(request, count)
    if free:
        manager.free(request)


def answers(options: Mapping[str, str]) -> Mapping[str, Answer]:
    """Return who answers each kind of question."""
    return rules_alone(
        {"sizing": answer_sizing, "lookup": answer_lookup, "retention": answer_retention}, options
    )


ANSWERS = PolicyAnswers(reference=answers)
