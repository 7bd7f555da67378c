"""Names that people gave: messages about unknown ones, and what they are called in Python."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

NAMED_MAX = 12
"""Of more names, a message names the nearest ones alone."""


def identifier(name: str) -> str:
    """Return a name as a part of Python's names and of file names: ASCII letters, digits and
    underscores.
    """
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_").lower()


def fits(name: str, pattern: str) -> bool:
    """Whether a pattern fits an id: `*` and `?` stand for anything, brackets for themselves."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))


def nearest(name: str, known: Iterable[str], listing: str = "") -> str:
    """Return the end of a message about an unknown name: the nearest known one, or all of them if
    they are few.

    Of many, the nearest three and `listing`, the command that lists them all.
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    if len(names) <= NAMED_MAX:
        return f"; known are {', '.join(names) or 'none'}"
    some = ", ".join(difflib.get_close_matches(name, names, n=3, cutoff=0.0))
    return f"; {len(names)} are known, {some} among them" + (
        f" (`cachewitness {listing}` lists all)" if listing else ""
    )
