"""Where statements of Python stand: their first lines, and the blocks inside them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef


def first_line(node: ast.stmt) -> int:
    """Return the first line of a statement, that of a decorator if it has one."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of a statement, in the order in which they stand."""
    for name in ("body", "handlers", "cases", "orelse", "finalbody"):
        part = getattr(node, name, [])
        if name in ("handlers", "cases"):
            yield from (one.body for one in part)
        elif part:
            yield part


def has_docstring(body: list[ast.stmt]) -> bool:
    """Whether a block begins with a text that stands for itself."""
    return (
        bool(body)
        and isinstance(body[0], ast.Expr)
        and isinstance(body[0].value, ast.Constant)
        and isinstance(body[0].value.value, str)
    )
