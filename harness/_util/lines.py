"""Text of others, on a line of ours."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return a line with its control characters spelt out, so that whoever wrote it cannot write on the terminal."""
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def shortened(text: str, most: int) -> str:
    """Return the beginning of a text, so many characters at most, as `printable`; with its length if there is more."""
    return printable(text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)")
