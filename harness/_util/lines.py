"""Text of others, on a line of ours."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return a line with its control characters spelt out, so that whoever wrote it cannot write on the terminal."""
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
