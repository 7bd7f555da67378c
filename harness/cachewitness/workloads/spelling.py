"""Spells prompts in the token ids of a model: at answers level a text is made of ids that the
model knows.

A vocabulary is small, so two texts may have the same token at a place; they part within a token or
two. The text `@r` of a request that was submitted is what it really generated, so a conversation
continues from the engine's own answers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from zlib import crc32

from cachewitness.core.trace_format import segments


def continues(prompt: str, submitted: Collection[str]) -> bool:
    """Whether what a request generated is part of a prompt."""
    return any(text[:1] == "@" and text[1:] in submitted for text, _, _ in segments(prompt))


PIECE = 16
"""Tokens of a real text that stay together in a prompt."""


class Spelling:
    """Spells prompts over ids from 0 to `vocabulary` − 1; with other `among` every text is
    another one. `words`: the tokens of a real text, and then prompts are made of pieces of it.
    """

    def __init__(self, vocabulary: int, among: str = "", words: Sequence[int] = ()) -> None:
        self._vocabulary = vocabulary
        self._among = among
        self._words = words

    def tokens(
        self, prompt: str, submitted: Collection[str], answers: Mapping[str, Sequence[int]]
    ) -> list[int] | None:
        """Return the ids of a prompt; None if it continues an answer that has not come, or is
        too short for it.
        """
        out: list[int] = []
        for text, start, count in segments(prompt):
            answer = answers.get(text[1:], ()) if text[:1] == "@" else ()
            if text[:1] == "@" and text[1:] in submitted:
                if start + count > len(answer):
                    return None
                out += answer[start : start + count]
            else:
                out += [self._token(text, place) for place in range(start, start + count)]
        return out

    def _token(self, text: str, place: int) -> int:
        """Return one id. Sums of names of one length differ alike at every place, so two runs'
        texts need another one.
        """
        if self._words:
            piece, within = divmod(place, PIECE)
            begins = self._digest(f"{text}:{piece}")
            return self._words[(begins + within) % len(self._words)]
        if not self._among:
            return crc32(f"{text}:{place}".encode()) % self._vocabulary
        return self._digest(f"{text}:{place}") % self._vocabulary

    def _digest(self, named: str) -> int:
        return int.from_bytes(blake2b(f"{self._among}{named}".encode(), digest_size=4).digest())
