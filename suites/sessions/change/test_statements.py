"""Each line of a Python file belongs to one function by its qualified name, and a module that is
asked about says which of its statements were entered.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.engines.entered import REACHED, Asked, Place, Watch
from cachewitness.sessions.change.statements import PythonFile

SOURCE = '''"""A module."""
from __future__ import annotations
import functools

LIMIT = [
    1,  # the first
    2,
]


@functools.cache
def outer(x, y=1):
    """What it does.

    More.
    """

    def inner(z):
        return z + x

    if x: return 0
    elif y:
        total = sum(
            k
            for k in range(y)
        )
    else:
        # nothing
        total = inner(y)
    return total


class Box:
    size: int = 3

    def __init__(self):
        try:
            self.x = outer(0, 1)
        except ValueError:
            self.x = None

    class Lid:
        async def shut(self): pass
'''


def line_of(text: str) -> int:
    return 1 + next(number for number, line in enumerate(SOURCE.split("\n")) if text in line)


@pytest.fixture(scope="module")
def file() -> PythonFile:
    return PythonFile(SOURCE.encode(), "x.py")


@pytest.mark.parametrize(
    ("text", "owner", "kind", "first"),
    [
        ("import functools", "", "import", "import functools"),
        ("    2,", "", "import", "LIMIT"),
        ("@functools", "outer", "call", "@functools"),
        ("def outer", "outer", "call", "@functools"),
        ("def inner", "outer.<locals>.inner", "call", "def inner"),
        ("return z", "outer.<locals>.inner", "line", "return z"),
        ("if x: return", "outer", "line", "if x: return"),
        ("elif y", "outer", "line", "elif y"),
        ("for k in", "outer", "line", "total = sum("),
        ("else:", "outer", "line", "total = inner"),
        ("class Box", "", "import", "class Box"),
        ("size: int", "Box", "import", "size: int"),
        ("def __init__", "Box.__init__", "call", "def __init__"),
        ("except ValueError", "Box.__init__", "line", "self.x = None"),
        ("async def shut", "Box.Lid.shut", "line", "async def shut"),
    ],
)
def test_a_line_belongs_to_a_statement_of_a_function(
    file: PythonFile, text: str, owner: str, kind: str, first: str
) -> None:
    """The function as `__qualname__` has it; a statement of several lines is one, and a function
    begins with its decorators.
    """
    found = file.at(line_of(text))
    assert found is not None
    assert (found.owner.name, found.place[2], found.first) == (owner, kind, line_of(first))


@pytest.mark.parametrize("text", ['"""A module', "    More.", "# nothing", "\n"])
def test_comments_and_docstrings_are_no_code(file: PythonFile, text: str) -> None:
    line = 4 if text == "\n" else line_of(text)
    assert file.at(line) is None


def test_lines_that_are_gone_lie_between_two_statements_of_their_function(file: PythonFile) -> None:
    beside = file.beside(line_of("total = inner"), "outer")
    assert [one.first for one in beside] == [line_of("total = inner"), line_of("return total")]
    first = file.beside(line_of("import functools"), "outer")
    assert [one.place[2] for one in first] == ["call"]


def test_what_is_no_python_is_refused_with_its_line() -> None:
    with pytest.raises(UsageError, match=r"--diff: x\.py:2 is no Python"):
        PythonFile(b"x = 1\ndef f(:\n", "x.py")
    with pytest.raises(UsageError, match="is no Python"):
        PythonFile(b"x = '\x00'\n", "x.py")


def place_of(file: PythonFile, text: str) -> Place:
    found = file.at(line_of(text))
    assert found is not None
    return found.place


def entered(tmp_path: Path, file: PythonFile, use: str) -> set[Place]:
    """Run the module with everything asked about, then a line that uses it; return what the line
    entered.
    """
    path = str(tmp_path.resolve() / "x.py")
    watch = Watch(Asked({path: [one.place for one in file.statements]}))
    names = {REACHED: watch._reached, "__name__": "x"}
    exec(watch.code(SOURCE.encode(), path), names)
    imported = {place[1] for place in watch.taken() if place[3] == "import"}
    assert imported == {
        one.first for one in file.statements if one.place[2] == "import" and one.first > 2
    }
    assert names["outer"].__doc__.startswith("What it does")  # type: ignore[attr-defined]
    watch.begin()
    exec(use, names)
    return {place[1:] for place in watch.taken()}


def test_a_statement_that_is_not_reached_is_not_entered(tmp_path: Path, file: PythonFile) -> None:
    """Of `if` and its block in one line the block alone is not reached; what a call defines and
    nobody calls is not entered.
    """
    found = entered(tmp_path, file, "outer(0, 2)")
    reached = ("@functools", "elif y", "total = sum", "return total")
    condition = (line_of("if x: return"), 4, "line")
    assert found == {condition, *(place_of(file, text) for text in reached)}
    assert place_of(file, "if x: return") == (line_of("if x: return"), 10, "line")


def test_each_trace_begins_anew(tmp_path: Path, file: PythonFile) -> None:
    """What a later trace enters again is told again, though each of them once."""
    assert place_of(file, "return z") in entered(tmp_path, file, "outer(0, 0); outer(0, 0)")
    assert place_of(file, "self.x = outer") in entered(tmp_path, file, "Box()")
