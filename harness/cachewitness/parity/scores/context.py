"""A server's context and tokens: what is too long for it is said before anything is asked, and
prompts are sent as tokens.

`/v1/models` tells the length of the context (`max_model_len`) and `/tokenize` the tokens of a text,
on vLLM's server and those that follow it. Without them prompts are sent as texts, and the server
says itself which one is too long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.engines.answers import Ask, BackendError
from cachewitness.engines.server_key import NO_KEY, ServerKey

TIMEOUT_S = 300
"""How long an answer may take, in seconds."""
Post = Callable[[str, Mapping[str, Any], str], Any]
"""Sends a body to a path and returns what comes back; what it is for is named in the BackendError
that it raises."""


class _Tokenized(msgspec.Struct, frozen=True):
    tokens: list[int]


class Context:
    """What one server knows of lengths; `limit` is that of prompt and answer together, 0 if it
    does not say.
    """

    def __init__(self, post: Post, model: str, limit: int, concurrent: int) -> None:
        self._post = post
        self._model = model
        self.limit = limit
        self._concurrent = concurrent
        self._tokens: dict[str, list[int]] = {}
        self._offered: bool | None = None

    def prepare(self, asks: Sequence[Ask]) -> None:
        """Learn the tokens of prompts. Raises UsageError if one leaves no room for an answer."""
        unknown = list(dict.fromkeys(ask.prompt for ask in asks if ask.prompt not in self._tokens))
        if self._offered is None and unknown:
            self._offered = self._learn(unknown[0])
        if self._offered:
            with ThreadPoolExecutor(self._concurrent) as pool:
                list(pool.map(self._learn, unknown))
        for ask in asks:
            self._check(ask)

    def prompt(self, ask: Ask) -> str | list[int]:
        """Return a prompt as it is sent."""
        return self._tokens.get(ask.prompt) or ask.prompt

    def _learn(self, prompt: str) -> bool:
        """Ask for the tokens of a prompt, and return whether they came; after one that did not,
        none is asked for.
        """
        if self._offered is False:
            return False
        try:
            found = self._post("/tokenize", {"model": self._model, "prompt": prompt}, "tokenize")
            self._tokens[prompt] = msgspec.convert(found, _Tokenized).tokens
        except (BackendError, msgspec.ValidationError):
            self._offered = False
            return False
        return True

    def _check(self, ask: Ask) -> None:
        length = len(self._tokens.get(ask.prompt, ()))
        if self.limit and length and length + ask.max_tokens > self.limit:
            raise UsageError(
                f"question {ask.id}: its prompt has {length:,} tokens and its answer may have"
                f" {ask.max_tokens:,}, and the server's context is {self.limit:,} long"
                " (max_model_len in /v1/models); give fewer --shots or --max-tokens, or it a"
                " longer context"
            )


@dataclass
class Offer:
    """What a server is asked in all arms alike; it `tells_tokens` until it has refused to."""

    model: str
    concurrent: int
    timeout: int
    context: Context
    key: ServerKey = NO_KEY
    tells_tokens: bool = True
