"""The real text that prompts of a pretrained model are made of.

A model with weights of its own is at home in text: behind ids at random its distributions are as
good as flat, and a vocabulary of hundreds of thousands is mostly tokens that nobody writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from cachewitness._util.errors import UsageError
from cachewitness.engines.registry import EngineSpec
from cachewitness.toy.problems.fixture import load


def words_of(spec: EngineSpec) -> Sequence[int]:
    """Return a text in the tokens of an engine's checkpoint; nothing of an engine without one, or
    without a tokenizer here.
    """
    level = spec.kind.answers_level
    checkpoint = spec.options.get("checkpoint")
    if level is None or level.texts is None or not checkpoint:
        return ()
    return _spoken(level.texts.tokens, checkpoint)


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
