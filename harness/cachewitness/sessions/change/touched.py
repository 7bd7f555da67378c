"""Which functions of an engine's source a change touches, by the lines of its diff."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from cachewitness._util import reading
from cachewitness._util.errors import UsageError
from cachewitness.engines.entered import Place
from cachewitness.report.change import Beside
from cachewitness.sessions.change import git
from cachewitness.sessions.change.diff import FileChange, parse
from cachewitness.sessions.change.statements import Owner, PythonFile, Statement

PATCHES = (".diff", ".patch")
"""How the name of a file ends that is read as a diff."""
NATIVE = {
    *(".c", ".cc", ".cl", ".cpp", ".cu", ".cuh", ".cxx", ".go", ".h", ".hip", ".hpp", ".inl"),
    *(".metal", ".pxd", ".pyx", ".rs", ".s", ".asm", ".cmake"),
}
TEXTS = {".gif", ".jpeg", ".jpg", ".md", ".png", ".rst", ".svg", ".webp"}


@dataclass(frozen=True)
class Tree:
    """The source of an engine: the folder that holds its `package`."""

    folder: Path
    package: str


@dataclass(frozen=True)
class Touch:
    """A line that changed, or behind which lines are gone. It is entered if all of `places` are:
    where lines are gone, what stands in front of them and behind.
    """

    line: int
    places: tuple[Place, ...]


@dataclass
class Touched:
    """What a change touches of one function, or of what a module or a class runs when it is
    imported.

    `path` is the file with no links in it, `file` its path in the repository, `module` its dotted
    name. `deleted`: the function is not there any more.
    """

    module: str
    owner: Owner
    path: Path
    file: str
    touches: list[Touch] = field(default_factory=list)
    deleted: bool = False

    @property
    def name(self) -> str:
        """Its name, `module:Class.function`."""
        where = f":{self.owner.name}" if self.owner.name else ""
        what = "" if self.owner.called or self.deleted else " (what importing it runs)"
        return f"{self.module}{where}{what}"

    @property
    def asked(self) -> set[Place]:
        """The places that are asked about."""
        found = {place for touch in self.touches for place in touch.places}
        return found | ({self.owner.called} if self.owner.called else set())


@dataclass
class Touching:
    """A change: against what, what it touches of the engine, and what else."""

    base: str
    functions: list[Touched] = field(default_factory=list)
    beside: list[Beside] = field(default_factory=list)

    def aside(self, kind: str, file: str, *, code: bool = True) -> None:
        """Take in a file that no suite can enter."""
        for one in self.beside:
            if one.kind == kind:
                one.files.append(file)
                return
        self.beside.append(Beside(kind, [file], code))


def read(tree: Tree, against: str) -> Touching:
    """Return what a tree changes: since a commit, or as a file of a diff says that was applied to
    it.

    Raises UsageError for what cannot be compared, a file that is no Python among it.
    """
    if against.endswith(PATCHES):
        top = git.top_of(tree.folder) or tree.folder
        text = _patch(Path(against))
        changed = git.Changed(text, top, [], against)
    else:
        changed = git.changed(tree.folder, tree.package, against)
    found = Touching(changed.base)
    for file in parse(changed.diff):
        _take(found, tree, changed.top, file)
    for name in changed.unknown:
        if module := _module(tree, changed.top / name):
            _take_new(found, module, changed.top, name)
    return found


def _patch(path: Path) -> str:
    try:
        return reading.whole(path).decode("utf-8", "surrogateescape")
    except UsageError as error:
        raise UsageError(f"--diff: {error}") from None


def _take(found: Touching, tree: Tree, top: Path, file: FileChange) -> None:
    name = file.new or file.old
    module = _module(tree, top / name)
    if not module or file.binary:
        kind, code = _kind(tree, name)
        found.aside(kind, name, code=code)
    elif not file.new:
        found.aside("modules that are gone", name)
    elif not file.old:
        _take_new(found, module, top, name)
    else:
        content = _content(top / name, name)
        before = file.before(content.decode("utf-8", "surrogateescape"))
        touched = _InFile(PythonFile(content, name), module, top / name, name)
        touched.take_lines(line for hunk in file.hunks for line in hunk.added)
        touched.take_gone(_parsed(before), [one for hunk in file.hunks for one in hunk.gone])
        if file.moved:
            touched.take_import()
        touched.give(found)


def _take_new(found: Touching, module: str, top: Path, name: str) -> None:
    now = PythonFile(_content(top / name, name), name)
    touched = _InFile(now, module, top / name, name)
    touched.take_lines(range(1, max((one.last for one in now.statements), default=0) + 1))
    touched.give(found)


class _InFile:
    """What a change touches of one file."""

    def __init__(self, now: PythonFile, module: str, path: Path, file: str) -> None:
        self._now = now
        self._module = module
        self._path = path.resolve()
        self._file = file
        self._found: dict[tuple[Owner, bool], Touched] = {}

    def take_lines(self, lines: Iterable[int]) -> None:
        """Take in lines that are new."""
        for line in lines:
            if statement := self._now.at(line):
                self._touch(statement.owner, line, [statement])

    def take_gone(self, before: PythonFile | None, gone: Iterable[tuple[int, int]]) -> None:
        """Take in lines that are gone, each with the line behind which it stood, and the functions
        that are.
        """
        if before is None:  # the base is no Python: nobody can say what the lines were
            self.take_lines(behind for _, behind in gone)
            return
        seen: set[tuple[Owner, int]] = set()
        for line, behind in gone:
            statement = before.at(line)
            if statement is None or (statement.owner, behind) in seen:
                continue
            seen.add((statement.owner, behind))
            if beside := self._now.beside(behind, statement.owner.name):
                self._touch(beside[0].owner, max(behind, 1), beside)
        for owner in sorted(before.owners - self._now.owners):
            self._of(Owner(owner), deleted=True)

    def take_import(self) -> None:
        """Take in that the module is another one, which whoever imports it must know."""
        for one in self._now.statements:
            if not one.owner.name:
                self._touch(one.owner, one.first, [one])

    def give(self, found: Touching) -> None:
        """Add what was taken in."""
        if not self._found:
            found.aside("comments, docstrings and blank lines", self._file, code=False)
        found.functions += self._found.values()

    def _touch(self, owner: Owner, line: int, statements: list[Statement]) -> None:
        touch = Touch(line, tuple(one.place for one in statements))
        touches = self._of(owner).touches
        if touch not in touches:
            touches.append(touch)

    def _of(self, owner: Owner, *, deleted: bool = False) -> Touched:
        touched = Touched(self._module, owner, self._path, self._file, deleted=deleted)
        return self._found.setdefault((owner, deleted), touched)


def _parsed(text: str) -> PythonFile | None:
    try:
        return PythonFile(text.encode("utf-8", "surrogateescape"), "")
    except UsageError:
        return None


def _content(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"--diff: {name} cannot be read ({error.strerror}); the diff belongs to another tree"
        ) from None


def _module(tree: Tree, path: Path) -> str:
    """Return the dotted name of a module of the engine; empty for any other file."""
    within = PurePosixPath(path.resolve().as_posix())
    root = PurePosixPath(tree.folder.resolve().as_posix())
    if within.suffix != ".py" or not within.is_relative_to(root / tree.package):
        return ""
    parts = within.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _kind(tree: Tree, name: str) -> tuple[str, bool]:
    """Return what kind of file no suite can enter, and whether it is code."""
    path = PurePosixPath(name)
    if path.suffix.lower() in NATIVE or path.name == "CMakeLists.txt":
        return "kernels and other native code", True
    if path.suffix == ".py":
        return f"Python outside of the package {tree.package}", True
    if path.suffix.lower() in TEXTS or path.parts[0] == "docs":
        return "documentation", False
    return "other files", True
