"""Draws mutants of source files by seed: first a function, then an operator, then a place and a
variant.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from random import Random

from benchmarks.mutation.mutants import Mutant
from benchmarks.mutation.operators import changes, placed
from benchmarks.mutation.source import Place, SourceFile
from cachewitness._util.statements import Function


def draw(files: Iterable[SourceFile], number: int, seed: int) -> list[Mutant]:
    """Return so many mutants, evenly over functions: every function has one before any has two.

    A function of which nothing can be changed any more is passed over; fewer are returned if none
    is left.
    """
    random = Random(seed)
    left = {place: (file, node) for file in files for place, node in sorted_functions(file)}
    drawn: list[Mutant] = []
    bodies = dict[Place, set[str]]()
    while left and len(drawn) < number:
        for place in random.sample(list(left), len(left)):
            file, node = left[place]
            seen = bodies.setdefault(place, {_body(file, node)})
            mutant = next(_mutants(file, place, node, seen, random, len(drawn)), None)
            if mutant is None:
                del left[place]
                continue
            seen.add(mutant.body)
            drawn.append(mutant)
            if len(drawn) == number:
                break
    return drawn


def sorted_functions(file: SourceFile) -> list[tuple[Place, Function]]:
    """Return a file's functions by their lines."""
    return sorted(file.functions.items(), key=lambda item: item[0].line)


def _body(file: SourceFile, node: Function) -> str:
    lines = file.text.splitlines(keepends=True)
    return "".join(lines[node.lineno - 1 : node.end_lineno])


def _mutants(
    file: SourceFile, place: Place, node: Function, seen: set[str], random: Random, number: int
) -> Iterator[Mutant]:
    """Yield the mutants of a function that were not seen, in random order."""
    before = _body(file, node)
    offered = changes(before)
    while offered:
        name = random.choice(sorted(offered))
        change = offered[name].pop(random.randrange(len(offered[name])))
        if not offered[name]:
            del offered[name]
        body = change.text()
        if body not in seen and _compiles(body):
            yield Mutant(
                number,
                place.file,
                place.name,
                place.line,
                name,
                node.lineno + change.line - 1,
                change.column,
                _difference(before, body),
                body,
            )


def _compiles(body: str) -> bool:
    try:
        compile(placed(body), "", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def _difference(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return "\n".join(
        f"{line[0]} {line[1:].strip()}" for line in list(lines)[2:] if line[:2] != "@@"
    )
