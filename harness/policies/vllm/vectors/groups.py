"""The groups that vLLM's vectors are about, small enough to be followed by hand."""

from __future__ import annotations

from harness.trace.format import GroupSpec

B = 16
"""Tokens in a block, unless said otherwise."""


def full(block_size: int = B) -> GroupSpec:
    """Return a full-attention group."""
    return GroupSpec("full", block_size)


def sliding(window: int, block_size: int = B) -> GroupSpec:
    """Return a sliding-window group; the window counts the query."""
    return GroupSpec("sliding", block_size, window=window)


def recurrent(block_size: int = B) -> GroupSpec:
    """Return a recurrent group."""
    return GroupSpec("recurrent", block_size)


def upto(tokens: int, block_size: int = B) -> list[int]:
    """Return every prefix of whole blocks up to so many tokens."""
    return list(range(block_size, tokens + 1, block_size))
