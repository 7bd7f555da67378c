"""What is sent for a completion, and what is read of it: vLLM's words for it, and llama.cpp's where
they differ.

A token is named by its id, which vLLM's server writes for its text if it is asked to
(`return_tokens_as_token_ids`), and llama.cpp's has beside the text.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from cachewitness.core.trace_format import Submit
from cachewitness.engines.completion_fields import Timings, Usage, restored_of, token_of


class Unreadable(Exception):
    """A server answers 200, and what it sends is no completion of what was asked; completes "the
    server …".
    """


class _Token(msgspec.Struct, frozen=True):
    id: int | None = None
    logprob: float | None = None


class _Logprobs(msgspec.Struct, frozen=True):
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    content: list[_Token] | None = None


class _Choice(msgspec.Struct, frozen=True):
    index: int = 0
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class Part(msgspec.Struct, frozen=True):
    """What is read of a part of an answer, or of one that comes whole."""

    choices: list[_Choice] = []
    model: str | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    error: Any = None


class PartialAnswer:
    """An answer as far as it has come. `restored` is −1 and `prompt_tokens` 0 until the server
    says them.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[float | None] = []
        self.finished = ""
        self.model = ""
        self.restored = -1
        self.prompt_tokens = 0

    def take(self, part: Part) -> None:
        """Take a part in. Raises Unreadable if it has no tokens by id, or several answers."""
        self.model = part.model or self.model
        for choice in part.choices:
            if choice.index or len(part.choices) > 1:
                raise Unreadable("sends several answers for one that was asked for")
            if choice.logprobs is not None:
                self._take(choice.logprobs)
            self.finished = choice.finish_reason or self.finished
        if part.usage is not None:
            self.prompt_tokens = part.usage.prompt_tokens or 0
        restored = restored_of(part.usage, part.timings)
        self.restored = self.restored if restored is None else restored

    def _take(self, reported: _Logprobs) -> None:
        if reported.content is not None:
            ids = [token.id for token in reported.content]
            logprobs = [token.logprob for token in reported.content]
        else:
            names = reported.tokens or []
            ids = [token_of(name) for name in names]
            logprobs = reported.token_logprobs or []
            if len(logprobs) != len(names):
                raise Unreadable(f"sends {len(logprobs)} logprobs for {len(names)} tokens")
        self.logprobs += logprobs
        for number in ids:
            if number is None:
                raise Unreadable(
                    "names tokens by their text, not by id (`return_tokens_as_token_ids` of vLLM's"
                    " server)"
                )
            self.tokens.append(number)


def body(model: str, asked: Submit, *, stream: bool, **fields: Any) -> bytes:
    """Return a request for the likeliest tokens with their logprobs, which no token ends, as
    JSON.
    """
    content = {
        "model": model,
        "prompt": asked.tokens,
        "max_tokens": asked.generate,
        "temperature": 0.0,
        "logprobs": 1,
        "return_tokens_as_token_ids": True,
        "ignore_eos": True,
        "stream": stream,
        **({"stream_options": {"include_usage": True}} if stream else {}),
        **fields,
    }
    return json.dumps(content).encode()


def part_of(content: bytes) -> Part:
    """Read a part. Raises Unreadable if it is none."""
    try:
        found = msgspec.convert(json.loads(content.decode(errors="replace")), Part)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        why = error if isinstance(error, msgspec.ValidationError) else "it is no JSON"
        raise Unreadable(f"sends what is no completion ({why})") from None
    return found
