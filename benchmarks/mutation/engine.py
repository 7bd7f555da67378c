"""What is told of an engine whose source is mutated; the module of each has an `ENGINE`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.mutation.cases import Case
from benchmarks.mutation.source import SourceFile

BUDGET = 2.0


@dataclass(frozen=True)
class TestsOfItsOwn:
    """An engine's own tests. `lay_out(source, tests, work)` puts them into an empty folder, which
    is the current one afterwards, makes the engine importable, and returns the paths to collect.
    """

    lay_out: Callable[[Path, Path, Path], Sequence[str]]
    elsewhere: tuple[str, ...] = ()
    """Tests with these words in their paths do not run."""


@dataclass(frozen=True)
class MutatedEngine:
    """An engine: its files, what is run on them here, and its own tests."""

    name: str
    """Its package, and the command's first argument."""
    title: str
    """How it is written."""
    folder: str
    """Where its driven files are, below the folder that holds the package."""
    paths: tuple[str, ...]
    """The driven files, those that a release has not passed over."""
    load: Callable[[str], object]
    """Imports what is driven, of the package in a folder."""
    cases: Callable[[str, int], list[Case]]
    """Returns all cases, for the folder that holds the package and a seed, those of each kind in
    turn.
    """
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By file: the functions and classes that are driven; of a file that is not named all are."""
    tests: TestsOfItsOwn | None = None
    """None: it has none that run here."""
    budget: float = BUDGET
    """Of the cases that enter a function those are run that come first, until they take so many
    CPU seconds on the engine as it is."""
    forks_warm: bool = True
    """Whether a fork can go on with what its parent has run: a library with threads of its own
    cannot, so of such a one the parent has imported the files and run nothing."""

    @property
    def page(self) -> str:
        """The page's name, and its template's."""
        return "mutation" if self.name == "vllm" else f"mutation-{self.name}"

    def within(self, source: Path) -> Path:
        """Return the folder of the driven files."""
        return source / self.folder

    def files(self, source: Path) -> list[SourceFile]:
        """Return the driven files that a release has."""
        folder = self.within(source)
        return [
            SourceFile(folder, name, self.parts.get(name, ()))
            for name in self.paths
            if (folder / name).is_file()
        ]

    def imported(self, source: Path) -> None:
        """Import what is driven, and if nothing is run before the forks the driven files, whose
        functions are replaced.
        """
        self.load(str(source))
        for file in () if self.forks_warm else self.files(source):
            whole = Path(self.folder, file.name).with_suffix("")
            importlib.import_module(".".join(part for part in whole.parts if part != "__init__"))
