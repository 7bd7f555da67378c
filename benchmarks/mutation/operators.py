"""The mutations of a function: mutmut's operators, and two of cosmic-ray's that mutmut has not.

mutmut makes one or two mutants of a place, and has operators for arguments and assignments, which
cosmic-ray has not; of each binary operator cosmic-ray makes eleven mutants, of which most raise a
TypeError at once. Conditions that are negated and loops that are not entered are cosmic-ray's. What
decides nothing is not mutated: annotations, defaults, decorators, docstrings, what is logged,
assertions, and what is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import libcst as cst
import parso
from cosmic_ray.plugins import get_operator
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

FURTHER = ("AddNot", "ZeroIterationForLoop")
"""Those of cosmic-ray's."""
_SILENT = (cst.Annotation, cst.Decorator, cst.Parameters, cst.Assert, cst.Raise)
_SILENT_HERE = ("tfpdef", "annassign", "decorator", "parameters", "assert_stmt", "raise_stmt")
"""The same in parso's words."""
_LOGGERS = ("logger", "logging", "warnings")


@dataclass(frozen=True)
class Change:
    """One mutation of a function's source: the line and column of what is changed, counted from 1
    and 0 in that source, and what makes the source with the change.
    """

    line: int
    column: int
    text: Callable[[], str]


def placed(function: str) -> str:
    """Return a function's source, which may be indented, behind a line that lets it be."""
    return f"{'if 1:' if function[:1].isspace() else 'pass'}\n{function}"


def _without_head(text: str) -> str:
    return text.partition("\n")[2]


def changes(function: str) -> dict[str, list[Change]]:
    """Return all mutations of a function's source, its lines as they stand in the file without
    decorators, by operator.
    """
    found: dict[str, list[Change]] = {}
    for name, change in (*_of_mutmut(placed(function)), *_of_cosmic_ray(placed(function))):
        found.setdefault(name, []).append(change)
    return found


def _of_mutmut(text: str) -> Iterator[tuple[str, Change]]:
    wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    positions = wrapper.resolve(PositionProvider)
    for node in _nodes(wrapper.module):
        for kind, operator in mutation_operators:
            if not isinstance(node, kind):
                continue
            for mutated in operator(node):
                start = positions[node].start
                if start.line == 1:
                    continue
                yield (
                    operator.__name__.removeprefix("operator_"),
                    Change(start.line - 1, start.column, _replacing(wrapper.module, node, mutated)),
                )


def _replacing(module: cst.Module, node: cst.CSTNode, mutated: cst.CSTNode) -> Callable[[], str]:
    def text() -> str:
        changed = module.deep_replace(node, mutated)
        assert isinstance(changed, cst.Module)
        return _without_head(changed.code)

    return text


def _nodes(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield what may be mutated below a node."""
    for child in node.children:
        if not isinstance(child, _SILENT) and not _is_silent(child):
            yield child
            yield from _nodes(child)


def _is_silent(node: cst.CSTNode) -> bool:
    """Whether a statement logs, or is a docstring."""
    if not isinstance(node, cst.Expr):
        return False
    called = node.value.func if isinstance(node.value, cst.Call) else None
    owner = called.value if isinstance(called, cst.Attribute) else None
    logs = isinstance(owner, cst.Name) and owner.value in _LOGGERS
    return logs or isinstance(node.value, cst.BaseString)


def _of_cosmic_ray(text: str) -> Iterator[tuple[str, Change]]:
    for name in FURTHER:
        operator = get_operator(f"core/{name}")()
        for number, node in enumerate(_parsed(text)):
            for index, (start, _) in enumerate(operator.mutation_positions(node)):
                if start[0] > 1:
                    yield (
                        name,
                        Change(start[0] - 1, start[1], _mutating(text, operator, number, index)),
                    )


def _mutating(text: str, operator: Any, number: int, index: int) -> Callable[[], str]:
    """Return what mutates the node of a number; its tree is made anew, since it is changed."""

    def changed() -> str:
        nodes = list(_parsed(text))
        node = nodes[number]
        siblings = node.parent.children
        place = siblings.index(node)
        siblings[place] = operator.mutate(node, index)
        return _without_head(str(nodes[0].get_root_node().get_code()))

    return changed


def _parsed(text: str) -> Iterator[Any]:
    yield from _parso_nodes(parso.parse(text))


def _parso_nodes(node: Any) -> Iterator[Any]:
    for child in getattr(node, "children", ()):
        if child.type not in _SILENT_HERE:
            yield child
            yield from _parso_nodes(child)
