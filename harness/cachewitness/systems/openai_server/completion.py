"""What is sent for a completion, and what is read of it: vLLM's words for it, and llama.cpp's where
they differ.

A token is named by its id: vLLM's server writes `token_id:7` for it if it is asked to
(`return_tokens_as_token_ids`), and llama.cpp's has the id beside the text. Tokens restored are
`usage.prompt_tokens_details.cached_tokens`, or llama.cpp's `timings.cache_n`.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from cachewitness.core.trace_format import Submit

_PREFIX, _DIGITS_MAX = "token_id:", 18


class Unreadable(Exception):
    """A server answers 200, and what it sends is no completion of what was asked; completes "the
    server …".
    """


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Timings(msgspec.Struct, frozen=True):
    cache_n: int | None = None


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
    usage: _Usage | None = None
    timings: _Timings | None = None
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
            details = part.usage.prompt_tokens_details
            self.restored = (
                self.restored
                if details is None or details.cached_tokens is None
                else details.cached_tokens
            )
        if part.timings is not None and part.timings.cache_n is not None:
            self.restored = part.timings.cache_n

    def _take(self, reported: _Logprobs) -> None:
        if reported.content is not None:
            ids = [token.id for token in reported.content]
            logprobs = [token.logprob for token in reported.content]
        else:
            names = reported.tokens or []
            ids = [_id(name) for name in names]
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


def _id(name: str) -> int | None:
    digits = name.removeprefix(_PREFIX)
    is_number = (
        name.startswith(_PREFIX)
        and digits.isascii()
        and digits.isdigit()
        and len(digits) <= _DIGITS_MAX
    )
    return int(digits) if is_number else None


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
