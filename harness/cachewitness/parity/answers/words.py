"""The real text that prompts of a pretrained model are made of.

A model with weights of its own is at home in text: behind ids at random its distributions are as
good as flat, and a vocabulary of hundreds of thousands is mostly tokens that nobody writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from cachewitness._util.errors import UsageError
from cachewitness.core.events import Answering
from cachewitness.engines.registry import EngineSpec
from cachewitness.toy.problems.fixture import load
from cachewitness.workloads.spelling import Spelling

VARIED = 40
"""A tokenizer that makes fewer different tokens of the text knows none of it, as one that a library
makes up does where a folder has none."""


def spelling_of(spec: EngineSpec, answering: Answering) -> Spelling:
    """Return what spells the prompts of an engine that declares `answering`."""
    words = words_of(spec, answering.vocabulary)
    return Spelling(answering.vocabulary, answering.texts, words)


def words_of(spec: EngineSpec, vocabulary: int) -> Sequence[int]:
    """Return a text in the tokens of an engine's checkpoint, which are less than `vocabulary`;
    nothing of an engine without one, or without a tokenizer here.
    """
    level = spec.kind.answers_level
    checkpoint = spec.options.get("checkpoint")
    if level is None or level.texts is None or not checkpoint:
        return ()
    found = _spoken(level.texts.tokens, checkpoint)
    fits = len({*found}) >= VARIED and max(found) < vocabulary
    return found if fits else ()


@lru_cache(maxsize=2)
def _spoken(
    tokens_of: Callable[[Mapping[str, str]], Callable[[str], list[int]]], checkpoint: str
) -> tuple[int, ...]:
    contexts = dict.fromkeys(item.context for item in load())
    try:
        tokens = tokens_of({"checkpoint": checkpoint})
        return tuple(token for context in contexts for token in tokens(context))
    except UsageError:
        return ()
