"""What is sent for a completion and what is read of its body, as OpenAI's interface has it and
vLLM's extends it.

A server is asked for the two best tokens of every step, by their numbers (`logprobs`,
`return_tokens_as_token_ids`): where answers part, they say whether rounding can have done it. One
that does not offer this answers without, or says no, and is then asked without; its answers are
compared as texts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from cachewitness.engines.answers import Answer, BackendError
from cachewitness.engines.completion_fields import Details, token_of

EXTRAS: Mapping[str, Any] = {"logprobs": 2, "return_tokens_as_token_ids": True}
"""What a request asks for beside its text."""
ANSWER_MAX = 1 << 26
"""Bytes of an answer that are read."""
_NO_TIE = 1e9


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: Details | None = None


class _Logprobs(msgspec.Struct, frozen=True):
    """By step: the token that was chosen, and the best ones with their logarithms."""

    tokens: list[str] = []
    top_logprobs: list[dict[str, float | None] | None] | None = None


class _Choice(msgspec.Struct, frozen=True):
    text: str
    logprobs: _Logprobs | None = None


class Completion(msgspec.Struct, frozen=True):
    """The parts of a completion that are read."""

    choices: list[_Choice]
    usage: _Usage | None = None

    def answer(self, name: str) -> Answer:
        """Return the answer to one prompt."""
        usage = self.usage or _Usage()
        choice = self.choices[0]
        cached = (
            usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else 0
        ) or 0
        tokens, margins = steps(choice.logprobs) if choice.logprobs else ((), ())
        return Answer(
            id=name,
            text=choice.text,
            tokens=tokens,
            prompt_tokens=usage.prompt_tokens,
            restored={"": cached},
            margins=margins,
            generated=usage.completion_tokens,
        )


def steps(found: _Logprobs) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the chosen tokens and how far each was ahead of the next one; nothing if the server
    names them by their text.

    The logarithms of two tokens of one step differ as their logits do. Of a step with one token
    alone nothing is near.
    """
    ids = [token_of(name) for name in found.tokens]
    tokens = tuple(token for token in ids if token is not None)
    if len(tokens) < len(ids):
        return (), ()
    tops = found.top_logprobs or []
    return tokens, tuple(_margin(top) for top in tops) if len(tops) == len(tokens) else ()


def _margin(top: Mapping[str, float | None] | None) -> float:
    best = sorted((value for value in (top or {}).values() if value is not None), reverse=True)
    ahead = best[0] - best[1] if len(best) > 1 else _NO_TIE
    return ahead if math.isfinite(ahead) else _NO_TIE


def read(content: Any, name: str) -> Answer:
    """Return the answer to a question from a decoded body.

    Raises BackendError if the body is empty or no completion.
    """
    try:
        found = msgspec.convert(content, Completion)
    except msgspec.ValidationError as error:
        why = (
            "with an empty body" if content is None else f"but its body is no completion ({error})"
        )
        raise BackendError(f"question {name}: the server answered 200 {why}") from None
    if len(found.choices) != 1:
        raise BackendError(
            f"question {name}: the server answered 200 with {len(found.choices)} choices, not 1"
        )
    return found.answer(name)
