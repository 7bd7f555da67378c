"""Spells prompts in the token ids of a model: at answers height a text is made of ids that the model knows.

A vocabulary is small, so two texts may have the same token at a place; they part within a token or two. The text `@r` of a
request that was submitted is what it really generated, so a conversation continues from the engine's own answers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from zlib import crc32

from harness.trace.format import segments


class Spelling:
    """Spells prompts over ids from 0 to `vocabulary` − 1; with other `among` every text is another one."""

    def __init__(self, vocabulary: int, among: str = "") -> None:
        self._vocabulary, self._among = vocabulary, among

    def tokens(self, prompt: str, submitted: Collection[str], answers: Mapping[str, Sequence[int]]) -> list[int] | None:
        """Return the ids of a prompt; None if it continues an answer that has not come, or is too short for it."""
        out: list[int] = []
        for text, start, count in segments(prompt):
            said = answers.get(text[1:], ()) if text[:1] == "@" else ()
            if text[:1] == "@" and text[1:] in submitted:
                if start + count > len(said):
                    return None
                out += said[start : start + count]
            else:
                spelled, places = f"{self._among}{text}", range(start, start + count)
                out += [crc32(f"{spelled}:{place}".encode()) % self._vocabulary for place in places]
        return out
