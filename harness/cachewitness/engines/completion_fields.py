"""What servers of OpenAI's kind say beside an answer: how many tokens they restored, and which
token a name stands for.

Tokens restored are `usage.prompt_tokens_details.cached_tokens`, or llama.cpp's `timings.cache_n`. A
token is named by its id: vLLM's server writes `token_id:7` for it if it is asked to
(`return_tokens_as_token_ids`).
"""

from __future__ import annotations

import re

import msgspec

_NUMBERED = re.compile(r"token_id:([0-9]{1,18})")


class Details(msgspec.Struct, frozen=True):
    """`usage.prompt_tokens_details`."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """`usage`."""

    prompt_tokens: int | None = None
    prompt_tokens_details: Details | None = None


class Timings(msgspec.Struct, frozen=True):
    """llama.cpp's `timings`."""

    cache_n: int | None = None


def restored_of(usage: Usage | None, timings: Timings | None) -> int | None:
    """Return how many tokens of a prompt were restored, None if nobody says."""
    if timings is not None and timings.cache_n is not None:
        return timings.cache_n
    details = usage.prompt_tokens_details if usage else None
    return details.cached_tokens if details else None


def token_of(name: str) -> int | None:
    """Return the id by which a token is named, None if it is named by its text."""
    found = _NUMBERED.fullmatch(name)
    return int(found[1]) if found else None
