"""What answers prompts: an engine in this process or a server behind HTTP.

A score is a property of answers, so a backend is judged from outside: prompts go in, texts come out, and with each answer the
backend says how many of the prompt's tokens it took from a cache, per cache group if it knows. Without that last number an
equal score proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec


class Ask(msgspec.Struct, frozen=True):
    """One prompt. Generation is greedy, ends before any of `stop`, and has at most `max_tokens` tokens.

    `salt` is part of the identity of everything cached for it: requests with different salts share nothing.
    """

    id: str
    prompt: str
    stop: tuple[str, ...] = ()
    max_tokens: int = 64
    salt: str = ""


class Answer(msgspec.Struct, frozen=True):
    """What came back for one prompt.

    `restored` counts prompt tokens that were not computed: under `""` as the backend reports them for the whole request, and
    under a cache group's name what that group resumed from (a recurrent group: the position of the state it was given).
    `margins[i]` is how far (in logits) the token chosen at step i was ahead of the next one; empty if the backend cannot say.
    """

    id: str
    text: str
    tokens: tuple[int, ...] = ()
    prompt_tokens: int = 0
    restored: Mapping[str, int] = {}
    margins: tuple[float, ...] = ()


class Backend(Protocol):
    """An engine that answers batches of prompts."""

    name: str

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        """Answer every prompt, in the order asked.

        Raises BackendError if an answer cannot be had; the message names the prompt and says what came instead.
        """

    def reset(self) -> bool:
        """Forget every cached prefix; return whether that was done."""

    def versions(self) -> Mapping[str, str]:
        """Return what a result must name to be repeated: engine, checkpoint hash, device, precision, packages."""

    def close(self) -> None:
        """Let go of everything."""


class BackendError(RuntimeError):
    """A backend that did not answer; the message is one line."""
