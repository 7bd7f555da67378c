"""What requests generate: texts that the trace scripts, unless an engine computes something else.

A scripted request goes on with a text of its own, so a wrong page changes nothing of what is asked
next, and one fault does not hide another.
"""

from __future__ import annotations

from typing import Protocol
from zlib import crc32

from cachewitness.core.trace_format import Vocabulary


class Sampled(Protocol):
    """A request as a sampler sees it."""

    request_id: str
    all_token_ids: list[int]

    @property
    def num_output_tokens(self) -> int:
        """How many tokens it has generated."""


class Sampler(Protocol):
    """Says which tokens a request generates, and guesses them."""

    def draft(self, request: Sampled, count: int) -> list[int]:
        """Guess at most `count` tokens that follow those known of a request."""

    def sample(self, request: Sampled, drafts: list[int]) -> list[int]:
        """Return the tokens that follow those known: the drafts that stand, in order, and one
        more.
        """


class Scripted:
    """Samples every request from a text of its own, and guesses so that a known number of drafts
    stands.

    How many of k drafts stand after n generated tokens is the checksum of the text's name and n,
    modulo k + 1: any number occurs, and the same trace gives the same numbers.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.texts: dict[str, str] = {}
        self._vocabulary = vocabulary

    def token(self, r: str, index: int) -> int:
        """Return the token that a request generates after `index` others."""
        return self._vocabulary.token(self.texts[r], index)

    def draft(self, request: Sampled, count: int) -> list[int]:
        """Guess `count` tokens, the first of them right, the rest those of another text."""
        text = self.texts[request.request_id]
        position = request.num_output_tokens
        right = crc32(f"{text} {position}".encode()) % (count + 1)
        texts = [text if index < right else f"~{text}" for index in range(count)]
        return [
            self._vocabulary.token(guess, position + index) for index, guess in enumerate(texts)
        ]

    def sample(self, request: Sampled, drafts: list[int]) -> list[int]:
        """Return the tokens of the text as far as the drafts agree with it, and one more."""
        text = self.texts[request.request_id]
        position = request.num_output_tokens
        if not drafts:
            return [self._vocabulary.token(text, position)]
        tokens: list[int] = []
        for guess in [*drafts, None]:
            tokens.append(self._vocabulary.token(text, position + len(tokens)))
            if guess != tokens[-1]:
                break
        return tokens
