"""The statements of a Python file, with the function that each belongs to, and what runs when it
is entered.
"""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from types import CodeType

from cachewitness._util.errors import UsageError
from cachewitness._util.statements import Function, blocks, first_line, has_docstring
from cachewitness.engines.entered import Kind, Place

NO_CODE = {
    tokenize.ENCODING,
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Owner:
    """A function by its qualified name, as Python has it, and where it begins (`called`); without a
    place: what a module or a class runs when it is imported, by the class's name.
    """

    name: str
    called: Place | None = None


@dataclass(frozen=True)
class Statement:
    """Lines `first` to `last`; of a statement with a block of its own, those in front of the block.
    It is entered where `place` is; what defines a function is entered with it.
    """

    first: int
    last: int
    owner: Owner
    place: Place


class PythonFile:
    """A file of Python, parsed. Raises UsageError, with `name` and the line, if it is none."""

    def __init__(self, content: bytes, name: str) -> None:
        self._content = content
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # who wrote the file sees them elsewhere
                self._tree = ast.parse(content)
                code = compile(content, name, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            where = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            why = error.msg if isinstance(error, SyntaxError) else error
            raise UsageError(f"--diff: {name}{where} is no Python: {why}") from None
        lines = set(_lines(code))
        self.statements = [
            one
            for one in _statements(self._tree.body, Owner(""), "")
            if one.place[2] == "call"
            or any(line in lines for line in range(one.first, one.last + 1))
        ]

    @property
    def owners(self) -> set[str]:
        """The names of its functions."""
        return {one.owner.name for one in self.statements if one.place[2] == "call"}

    def at(self, line: int) -> Statement | None:
        """Return the innermost statement at a line, or the next one: `else:` has no code of its
        own. None if no code stands at the line.
        """
        if line not in self._with_code:
            return None
        here = [one for one in self.statements if one.first <= line <= one.last]
        behind = (one for one in self.statements if one.first > line)
        return here[-1] if here else next(behind, None)

    def beside(self, line: int, owner: str) -> list[Statement]:
        """Return the last statement of a function at or above a line, and the first below it."""
        own = [one for one in self.statements if one.owner.name == owner]
        above = [one for one in own if one.first <= line][-1:]
        return above + [one for one in own if one.first > line][:1]

    @cached_property
    def _with_code(self) -> set[int]:
        """Lines on which more stands than comments and docstrings."""
        found: set[int] = set()
        for token in tokenize.tokenize(io.BytesIO(self._content).readline):
            if token.type not in NO_CODE:
                found.update(range(token.start[0], token.end[0] + 1))
        for node in ast.walk(self._tree):
            if isinstance(node, Function | ast.ClassDef | ast.Module) and has_docstring(node.body):
                first = node.body[0]
                found -= {*range(first.lineno, (first.end_lineno or first.lineno) + 1)}
        return found


def _lines(code: CodeType) -> Iterator[int]:
    """Yield the lines that have code of their own."""
    yield from (line for _, _, line in code.co_lines() if line)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _lines(constant)


def _statements(body: list[ast.stmt], owner: Owner, prefix: str) -> Iterator[Statement]:
    for node in body:
        first = first_line(node)
        last = node.end_lineno or first
        inside = list(blocks(node))
        if inside:
            last = max(node.lineno, min(first_line(block[0]) for block in inside) - 1)
        if isinstance(node, Function):
            own = Owner(f"{prefix}{node.name}", (first, node.col_offset, "call"))
            yield Statement(first, last, own, (first, node.col_offset, "call"))
            yield from _statements(node.body, own, f"{own.name}.<locals>.")
            continue
        kind: Kind = "line" if owner.called else "import"
        yield Statement(first, last, owner, (first, node.col_offset, kind))
        if isinstance(node, ast.ClassDef):
            name = f"{prefix}{node.name}"
            yield from _statements(node.body, Owner(name), f"{name}.")
            continue
        for block in inside:
            yield from _statements(block, owner, prefix)
