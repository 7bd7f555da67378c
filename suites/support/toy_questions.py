"""Prompts that share most of their words, for a toy model with random weights."""

from __future__ import annotations

from cachewitness.engines.answers import Answer, Ask

SHARED = "the cat sat on the mat the dog ran on the cat the mat sat " * 6
ENDS = ("the cat ran", "the dog sat on the mat", "on on on", "the", "the mat ran the cat")


def asks(max_tokens: int = 6, salt: str = "", ends: tuple[str, ...] = ENDS) -> list[Ask]:
    """Return a question for each end, after the shared words."""
    return [
        Ask(id=f"{i}", prompt=SHARED + end, max_tokens=max_tokens, salt=salt)
        for i, end in enumerate(ends)
    ]


def tokens(answers: list[Answer]) -> list[tuple[int, ...]]:
    """Return the tokens of each answer."""
    return [answer.tokens for answer in answers]
