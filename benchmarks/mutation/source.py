"""The functions of a source file by name, and the statement that a place in it belongs to."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cachewitness._util.statements import Function, blocks, first_line

REACHED = "__a_mutated_statement_was_reached__"
"""What a mutated function calls in front of the statement that was changed."""


@dataclass(frozen=True)
class Place:
    """Where a function stands: its file below the source's folder, its qualified name, and its
    first line, that of a decorator if it has one. A getter and its setter differ in the line alone.
    """

    file: str
    name: str
    line: int


@dataclass(frozen=True)
class SourceFile:
    """A file of the engine's source, `name` below `folder`; of it the functions and classes
    `parts`, all without any.
    """

    folder: Path
    name: str
    parts: tuple[str, ...] = ()

    @cached_property
    def text(self) -> str:
        """Its text."""
        return (self.folder / self.name).read_text(encoding="utf-8")

    @cached_property
    def functions(self) -> dict[Place, Function]:
        """Its functions and its classes' methods, those of its parts; functions inside functions
        belong to the outer one, and what has no body of its own (a signature, a docstring) is left
        out.
        """
        return {
            Place(self.name, name, first_line(node)): node
            for name, node in _functions(ast.parse(self.text), "")
            if not _is_empty(node) and (not self.parts or name.partition(".")[0] in self.parts)
        }


def release_of(package: str, folder: Path) -> str:
    """Return the number of the release that a folder holds of a package."""
    (named,) = folder.glob(f"{package}-*.dist-info")
    return named.name.removesuffix(".dist-info").removeprefix(f"{package}-")


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield f"{prefix}{child.name}", child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.If | ast.Try):
            yield from _functions(child, prefix)


def _is_empty(node: Function) -> bool:
    """Whether a function does nothing: it is a signature, or raises that it is not there."""
    return all(
        isinstance(statement, ast.Pass | ast.Raise)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in node.body
    )


def statement_at(function: Function, line: int, column: int) -> ast.stmt:
    """Return the innermost statement around a place in front of which another can stand: of an
    `elif`, the `if` that it belongs to.
    """
    innermost = function.body[0]
    inside = [function.body]
    while inside:
        for statement in inside.pop():
            if _holds(statement, line, column):
                innermost = statement
                inside = _blocks(statement)
                break
    return innermost


def _holds(statement: ast.stmt, line: int, column: int) -> bool:
    begins = (statement.lineno, statement.col_offset)
    ends = (statement.end_lineno or 0, statement.end_col_offset or 0)
    return begins <= (line, column) < ends


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """Return the blocks inside a statement; that of an `elif` is looked into, as it is none."""
    inside = [*blocks(statement)]
    if isinstance(statement, ast.If) and _is_elif(statement):
        inside.remove(statement.orelse)
        inside += _blocks(statement.orelse[0])
    return inside


def _is_elif(statement: ast.If) -> bool:
    """Whether what else is done is an `elif`: it stands in the column of the `if`."""
    return (
        len(statement.orelse) == 1
        and isinstance(statement.orelse[0], ast.If)
        and statement.orelse[0].col_offset == statement.col_offset
    )


def flagged(text: str, statement: ast.stmt) -> str:
    """Return a source with a call of `REACHED` in front of a statement, a line above it."""
    lines = text.splitlines(keepends=True)
    lines.insert(first_line(statement) - 1, f"{' ' * statement.col_offset}{REACHED}()\n")
    return "".join(lines)
