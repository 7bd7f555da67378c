"""What is told of an engine whose source is mutated; `vllm` and `lmdeploy` are such modules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from benchmarks.mutation.mutants import Mutant
from benchmarks.mutation.source import SourceFile


class MutatedEngine(Protocol):
    """An engine: its files, what is run on them here, and its own tests."""

    NAME: str
    """Its package, and the command's first argument."""
    TITLE: str
    """How it is written."""
    PAGE: str
    """The page's name, and its template's."""
    ELSEWHERE: tuple[str, ...]
    """Own tests with these words in their paths do not run."""

    def files(self, source: Path) -> list[SourceFile]:
        """Return the driven files."""

    def run_ours(self, source: Path, mutants: Sequence[Mutant], kept: Path, seed: int) -> None:
        """Run the mutants on this harness's cases."""

    def run_theirs(
        self, source: Path, tests: Path, mutants: Sequence[Mutant], kept: Path, work: Path
    ) -> None:
        """Run the mutants under the engine's own tests, in an empty folder."""
