"""How a server is asked for likelihoods, and what it proves first.

It must count the tokens that it restores (`usage.prompt_tokens_details.cached_tokens`, or
llama.cpp's `timings.cache_n`), and there must be a way to ask it cold: a second server, a salt that
nobody used (`cache_salt`), or `cache_prompt` false, as llama.cpp's server has it. The count of
every cold request is checked as well.

Likelihoods come as continuations: a prompt of token ids is answered by one token, with the
logarithms of the best ones. `echo` and `prompt_logprobs`, by which lm-eval asks, are no way to ask
a cached arm: vLLM computes the whole prompt anew for them, so a damaged cache passes.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.engines.answers import BackendError
from cachewitness.engines.server_errors import base_of
from cachewitness.engines.server_key import NO_KEY, ServerKey
from cachewitness.parity.likelihood.steps import Answered, answered
from cachewitness.parity.scores.context import Post
from cachewitness.parity.scores.remote import RemoteBackend, forgets, model_at

BEST = 20
"""The tokens of a position that are asked for: as many as vLLM sends by default."""
BYPASS = (
    "--ask {name}: refused for a cached arm: vLLM computes the whole prompt anew for `{name}` and"
    " reads no cached block, so even a damaged cache would pass; continuations are asked instead"
)
COUNTS = (
    "(`usage.prompt_tokens_details.cached_tokens`; vLLM's does with --enable-prompt-tokens-details)"
)
TRIES = 3
"""So often the same prompt is asked before a server counts as restoring nothing."""
Way = Literal["another server", "salts", "cache_prompt"]


class NothingRestored(Exception):
    """A server restores nothing of a prompt that it just computed, so there is nothing to check."""


class Subject(Protocol):
    """Who is asked: a server, or an engine. `url` names it in messages. `zero_left_out`: it counts
    restored tokens, and leaves a count of 0 out. `uncounted` says where the count would stand,
    `warm` what there is to do about one that cannot be asked cold.
    """

    url: str
    name: str
    zero_left_out: bool
    uncounted: str
    warm: str

    def tokens(self, text: str) -> list[int]:
        """Return a text as tokens of the model."""

    def ask(self, prompt: list[int], tokens: int, what: str, **fields: Any) -> Answered:
        """Return the likeliest tokens behind a prompt. Raises BackendError if none come."""


class _Tokenized(msgspec.Struct, frozen=True):
    tokens: list[int]


class Served:
    """One server and its model; `post` sends it something."""

    uncounted = COUNTS
    warm = (
        "it heeds neither a new `cache_salt` nor `cache_prompt` false; start a second server of the"
        " same model without prefix caching, --cold-url URL"
    )

    def __init__(self, url: str, model: str, post: Post, key: ServerKey = NO_KEY) -> None:
        self.url = url
        self.key = key
        self.model = model
        self.name = f"{model} at {url}"
        self.zero_left_out = False
        self._post = post

    @classmethod
    def at(cls, url: str, model: str, option: str, timeout: int, key: ServerKey = NO_KEY) -> Served:
        """Return the server of an address. `option` is how the user named it.

        Raises UsageError if it does not answer, or has not got the model.
        """
        base = base_of(url, option)
        name, _ = model_at(base, model, option, key)
        return cls(base, name, RemoteBackend(base, name, timeout=timeout, key=key).post, key)

    def tokens(self, text: str) -> list[int]:
        """Return a text as tokens of the model. Raises UsageError if the server does not tell."""
        body = {"model": self.model, "prompt": text, "content": text, "add_special": True}
        try:
            return msgspec.convert(self._post("/tokenize", body, "tokenize"), _Tokenized).tokens
        except (BackendError, msgspec.ValidationError) as error:
            raise UsageError(
                f"{self.url} does not tokenize ({error}); --likelihood asks by token ids, as"
                " /tokenize of vLLM's server and of llama.cpp's gives them"
            ) from None

    def send(self, body: Mapping[str, Any], what: str) -> Any:
        """Send a request as it is, and return the body of its answer. Raises BackendError if none
        comes.
        """
        return self._post("/v1/completions", body, what)

    def ask(self, prompt: list[int], tokens: int, what: str, **fields: Any) -> Answered:
        """Return the likeliest tokens behind a prompt. Raises BackendError if none come, or more
        than were asked for, UsageError if they cannot be read.
        """
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0.0,
            "logprobs": BEST,
            "return_tokens_as_token_ids": True,
            "ignore_eos": True,
            **fields,
        }
        found = self.send(body, what)
        answer = answered(found, zero_left_out=self.zero_left_out)
        if not 1 <= len(answer.steps) <= tokens:
            count = len(answer.steps)
            raise BackendError(
                f"{what}: {self.url} answers with {count} tokens, {tokens} were asked for"
            )
        return answer

    def forget(self) -> None:
        """Make the server forget what lies in its own pools. Raises BackendError if it does not."""
        if not forgets(self._post):
            raise BackendError(f"{self.url} did not forget its cached prefixes when it was told to")


@dataclass(frozen=True)
class Manner:
    """How cold requests are asked, and whether the server keeps salts apart."""

    way: Way
    salted: bool

    def cold(self) -> dict[str, Any]:
        """Return what a cold request has beside its prompt."""
        fields: dict[str, Any] = {"cache_salt": new_salt()} if self.way != "cache_prompt" else {}
        return fields if self.way == "salts" else fields | {"cache_prompt": False}

    def warm(self, salt: str) -> dict[str, Any]:
        """Return the same for a request that may hit what others of this salt wrote."""
        return {"cache_salt": salt} if self.salted else {}


def new_salt() -> str:
    """Return a salt that nobody used."""
    return f"cachewitness-{secrets.token_hex(8)}"


def prove(server: Subject, cold: Subject | None, prompt: list[int]) -> Manner:
    """Ask one prompt until it is proven how the server is asked cold.

    Raises UsageError if it is not, or the server does not count what it restores; NothingRestored
    if it restores nothing.
    """
    salt = new_salt()
    counts = [_restored(server, prompt, cache_salt=salt) for _ in range(2)]
    while counts[-1] == 0 and len(counts) < TRIES:
        counts.append(_restored(server, prompt, cache_salt=salt))
    if counts[-1] < 0:
        raise UsageError(
            f"{server.url} does not say how many tokens it restored {server.uncounted}"
        )
    if counts[-1] == 0:
        raise NothingRestored(
            f"{server.url} restores nothing of {len(prompt):,} tokens that it just computed; is"
            " its prefix caching on?"
        )
    server.zero_left_out = counts[0] < 0
    salted = _restored(server, prompt, cache_salt=new_salt()) == 0
    if cold is not None:
        _check_cold(cold, prompt)
        return Manner("another server", salted)
    if salted:
        return Manner("salts", salted)
    if _restored(server, prompt, cache_prompt=False) == 0:
        return Manner("cache_prompt", salted)
    raise UsageError(f"{server.url} cannot be asked cold: {server.warm}")


def check_tier(server: Subject, manner: Manner) -> None:
    """Raise UsageError if nothing shows what comes from a second tier: the server must forget its
    own pools when it is told to, and keep salts apart, since what another question brought back
    lies in those pools again.
    """
    if not isinstance(server, Served) or not manner.salted:
        raise UsageError(
            f"--arms tier: {server.url} keeps no salts apart, by which to tell what comes from its"
            " second tier"
        )
    try:
        server.forget()
    except BackendError as error:
        raise UsageError(
            f"--arms tier: {error}; vLLM's server resets its pools if it is started with"
            " VLLM_SERVER_DEV_MODE=1"
        ) from None


def _check_cold(cold: Subject, prompt: list[int]) -> None:
    for _ in range(2):
        count = _restored(cold, prompt, **Manner("another server", salted=False).cold())
        if count > 0:
            raise UsageError(
                f"{cold.url}, asked cold, restores tokens as well; switch its cache off"
            )
        if count < 0:
            raise UsageError(
                f"{cold.url}, asked cold, does not say what it restored {cold.uncounted}"
            )


def _restored(server: Subject, prompt: list[int], **fields: Any) -> int:
    return server.ask(prompt, 1, "the first prompt", **fields).restored
