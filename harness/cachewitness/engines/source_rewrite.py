"""Changes a piece of a function's source and compiles the whole anew, as if it stood where the
function stands in its file.

The compiled code takes the place of the function's own, so every name that the function was
imported by is changed with it, and a traceback still shows the right file and nearly the right
line.
"""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

BLANK = r"(?:\s|#.*)*"
"""Blanks, line ends and comments, or nothing."""


@functools.cache
def original_source(function: Callable[..., Any]) -> str:
    """Return a function's source, as far to the left as it goes."""
    return textwrap.dedent(inspect.getsource(function))


def places(source: str, piece: str) -> list[tuple[int, int]]:
    """Return where a piece begins and ends in a source, each time; its blanks stand for any,
    none, line ends and comments.
    """
    return [
        found.span() for found in re.finditer(BLANK.join(map(re.escape, piece.split())), source)
    ]


def replaced(source: str, place: tuple[int, int], new: str) -> str:
    """Return the source with something else at a place; its lines after the first are indented
    like the first line there.
    """
    start, stop = place
    line = source[source.rfind("\n", 0, start) + 1 : start]
    indent = line[: len(line) - len(line.lstrip())]
    return source[:start] + new.replace("\n", f"\n{indent}") + source[stop:]


@functools.cache
def compiled(code: CodeType, source: str) -> CodeType:
    """Return the code of the function that `source` defines, to take the place of `code`.

    A method that calls `super()` looks its class up outside, so the definition stands inside a
    function that has that name. Raises SyntaxError for what is no function.
    """
    above = "\n" * max(code.co_firstlineno - 2, 0)
    whole = compile(
        f"{above}def made(__class__):\n{textwrap.indent(source, ' ')}",
        code.co_filename,
        "exec",
        dont_inherit=True,
    )
    found = next(one for one in _codes(whole) if one.co_name == code.co_name)
    return found.replace(co_qualname=code.co_qualname)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
