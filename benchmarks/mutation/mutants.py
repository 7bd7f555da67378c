"""A mutant of a source file, and its code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import msgspec

from benchmarks.mutation.source import Place, SourceFile, flagged, statement_at


class Mutant(msgspec.Struct, frozen=True):
    """One mutated function. `function` is its place, `line` that of the change in the file, and
    `change` the lines that differ, each behind `-` or `+`. `body` is the function's text, from its
    `def` on, with the change.
    """

    number: int
    file: str
    function: str
    first_line: int
    operator: str
    line: int
    column: int
    change: str
    body: str

    @property
    def place(self) -> Place:
        """The mutated function's."""
        return Place(self.file, self.function, self.first_line)


def code_of(mutant: Mutant, folder: Path) -> CodeType:
    """Return the code of the mutated function, which calls `REACHED` in front of the changed
    statement.
    """
    file = SourceFile(folder, mutant.file)
    node = file.functions[mutant.place]
    lines = file.text.splitlines(keepends=True)
    text = "".join([*lines[: node.lineno - 1], mutant.body, *lines[node.end_lineno :]])
    text = flagged(text, statement_at(node, mutant.line, mutant.column))
    path = str(folder / mutant.file)
    module = compile(text, path, "exec", dont_inherit=True)
    return next(code for code in _codes(module) if _is_of(code, mutant))


def _is_of(code: CodeType, mutant: Mutant) -> bool:
    return (code.co_qualname, code.co_firstlineno) == (mutant.function, mutant.first_line)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
