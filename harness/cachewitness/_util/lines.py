"""Text of others, on a line of ours."""

from __future__ import annotations

WORD_MAX, WORD_SHOWN, LINE_MAX = 400, 60, 8_000
"""A longer word of a message, as a name or a number of the user's may be, is cut to its beginning,
and so is a longer line."""


def printable(text: str) -> str:
    """Return a line with its control characters spelt out, so that whoever wrote it cannot write
    on the terminal.
    """
    return (
        text
        if text.isprintable()
        else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
    )


def one_line(message: str) -> str:
    """Return a message as one line that steers no terminal; a long word of it, as a name of
    others may be, by its beginning.
    """
    words = [
        word if len(word) <= WORD_MAX else f"{word[:WORD_SHOWN]}… ({len(word):,} characters)"
        for word in message.split()
    ]
    return shortened(" ".join(words), LINE_MAX)


def shortened(text: str, most: int) -> str:
    """Return the beginning of a text, so many characters at most, as `printable`; with its
    length if there is more.
    """
    return printable(text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)")


def beginning(text: str, most: int) -> str:
    """Return a text, or as much of it as so many characters hold, with a mark where it is cut."""
    return text if len(text) <= most else text[: most - 1] + "…"
