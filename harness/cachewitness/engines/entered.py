"""Which statements of an engine's source its process enters, of those that somebody asks about.

Asked for by the environment of the process: `ENTERED` names a file of `Asked`. A module that is
asked about is imported with a call in front of each such statement, which notes that it was
reached; everything else of the engine runs as it is, at its speed. Lines keep their numbers.
"""

from __future__ import annotations

import ast
import builtins
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Literal

import msgspec

from cachewitness._util.statements import Function, blocks, first_line, has_docstring

ENTERED = "CACHEWITNESS_ENTERED"
"""The environment variable that names the file of what is asked."""
REACHED = "__cachewitness_entered__"
"""What is called in front of a statement, with its number."""
Kind = Literal["call", "line", "import"]
Place = tuple[int, int, Kind]
"""The line and the column of a statement, and what entering it is: in a function, or by whatever
imports the module. Or the first line of a function (a decorator's, if it has one) and its column,
and that it is called."""
Seen = tuple[str, int, int, Kind]
"""A file, and a place in it."""


class Asked(msgspec.Struct, frozen=True):
    """The places that are asked about, by the file, whose path has no links in it."""

    places: dict[str, list[Place]]


class Watch:
    """Notes what this process enters of what is asked, from `start` on."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked.places
        self._all: list[Seen] = []
        self._seen: set[int] = set()
        self._new: list[int] = []

    def start(self) -> None:
        """Have the modules that are imported from now on say what of them is entered."""
        setattr(builtins, REACHED, self._reached)
        sys.meta_path.insert(0, _Finder(self))

    def _reached(self, number: int) -> None:
        if number not in self._seen:
            self._seen.add(number)
            self._new.append(number)

    def begin(self) -> None:
        """Begin with another trace: forget what was entered, but for what importing ran since
        somebody asked last.
        """
        self._new = [number for number in self._new if self._all[number][3] == "import"]
        self._seen = set(self._new)

    def taken(self) -> list[Seen]:
        """Return what was entered since somebody asked last."""
        new = self._new
        self._new = []
        return [self._all[number] for number in new]

    def asks_about(self, path: str) -> bool:
        """Whether something of a file is asked."""
        return os.path.realpath(path) in self._asked

    def code(self, source: bytes, path: str) -> CodeType:
        """Return the code of a module that says what of it is entered. Raises SyntaxError."""
        tree = ast.parse(source, path)
        name = os.path.realpath(path)
        _Noting(set(self._asked[name]), lambda place: self._number((name, *place))).block(
            tree.body, "import"
        )
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    def _number(self, seen: Seen) -> int:
        self._all.append(seen)
        return len(self._all) - 1


class _Noting:
    """Puts a call in front of each statement at one of `places`."""

    def __init__(self, places: set[Place], number: Any) -> None:
        self._places = places
        self._number = number

    def block(self, body: list[ast.stmt], kind: Kind) -> None:
        """Change a block, all that is inside it included."""
        for node in list(body):
            if isinstance(node, Function):
                for inside in blocks(node):
                    self.block(inside, "line")
                # A docstring stays the first statement of its function.
                at = int(has_docstring(node.body))
                node.body[at:at] = self._calls((first_line(node), node.col_offset, "call"), node)
                continue
            for inside in blocks(node):
                self.block(inside, "import" if isinstance(node, ast.ClassDef) else kind)
            at = body.index(node)
            if not (at == 0 and has_docstring(body)) and not _of_the_future(node):
                body[at:at] = self._calls((first_line(node), node.col_offset, kind), node)

    def _calls(self, place: Place, node: ast.stmt) -> list[ast.stmt]:
        if place not in self._places:
            return []
        name = ast.Name(REACHED, ast.Load())
        call = ast.Expr(ast.Call(name, [ast.Constant(self._number(place))], []))
        for part in ast.walk(call):
            ast.copy_location(part, node)
        return [call]


def _of_the_future(node: ast.stmt) -> bool:
    """Whether nothing may stand in front of a statement."""
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


class _Finder:
    """Finds modules as everybody else in `sys.meta_path` does, in front of them."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module is, with a loader of ours if it is asked about."""
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in others)
        found = next((spec for spec in specs if spec is not None), None)
        loader = found.loader if found else None
        if type(loader) is SourceFileLoader and self._watch.asks_about(loader.path):
            assert found is not None
            found.loader = _Loader(name, loader.path, self._watch)
        return found


class _Loader(SourceFileLoader):
    """Loads a module that is asked about, from its source and never from a cache."""

    def __init__(self, name: str, path: str, watch: Watch) -> None:
        super().__init__(name, path)
        self._watch = watch

    def get_code(self, fullname: str) -> CodeType | None:
        """Return its code."""
        path = self.get_filename(fullname)
        return self._watch.code(self.get_data(path), path)


_watch: Watch | None = None


def watch() -> Watch | None:
    """Return what notes for this process, started; None if nothing is asked."""
    global _watch
    if _watch is None and (path := os.environ.get(ENTERED)):
        _watch = Watch(msgspec.json.decode(Path(path).read_bytes(), type=Asked))
        _watch.start()
    return _watch


@contextmanager
def asked_in(path: Path, places: Mapping[str, Iterable[Place]]) -> Iterator[None]:
    """Have the processes of engines that are started in the block asked about places, by the file;
    `path` is the file that tells them.
    """
    asked = Asked({file: sorted(of) for file, of in places.items()})
    path.write_bytes(msgspec.json.encode(asked))
    os.environ[ENTERED] = str(path)
    try:
        yield
    finally:
        del os.environ[ENTERED]
