"""The guide for authors of allocators: its classes run, and its failure reads as it says."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cachewitness
from cachewitness.sessions.fuzz.allocator import find
from suites.support.block_pools import FAULTS, BlockPool

PAGE = (Path(__file__).parents[2] / "docs" / "allocators.md").read_text(encoding="utf-8")
WORDS_MAX = 1_200


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def defined(code: str, **names: Any) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "guide", "cachewitness": cachewitness, **names}
    exec(compile(code, "allocators.md", "exec"), namespace)
    return namespace


class LeavesInQueue(BlockPool):  # type: ignore[misc]
    """The fault of the page."""

    def alloc(self, n: int) -> list[int]:
        before = dict(self.unused)
        taken: list[int] = super().alloc(n)
        self.unused.update(before)
        for block in before:
            self.unused.move_to_end(block)
        return taken


def test_the_page_is_short_and_counts_the_faults() -> None:
    assert len(PAGE.split()) <= WORDS_MAX
    assert f"{len(FAULTS)} faults" in PAGE


def test_the_first_class_passes_and_finds_what_the_page_shows() -> None:
    first = blocks("python")[0]
    assert find(defined(first, Pool=BlockPool)["TestPool"]) is None
    found = find(defined(first, Pool=LeavesInQueue)["TestPool"])
    assert found is not None
    assert found.text == blocks("text")[0].rstrip("\n")


def test_the_class_for_c_runs() -> None:
    """Over a library's interface, played by a pool in Python."""
    state: list[Any] = []

    def alloc(n: int, out: Any) -> int:
        try:
            out[:] = state[-1].alloc(n)
        except MemoryError:
            return -1
        return 0

    def free(block: int) -> int:
        try:
            state[-1].free([block])
        except ValueError:
            return -1
        return 0

    library = SimpleNamespace(
        pool_make=lambda size: state.append(BlockPool(size)), pool_alloc=alloc, pool_free=free
    )
    assert find(defined(blocks("python")[1], ctypes=ctypes, library=library)["TestInC"]) is None


def test_every_method_and_declaration_of_the_page_is_there() -> None:
    known = vars(cachewitness.machines.Allocator)
    called = re.findall(r"^\| (.+?) \|", PAGE, re.MULTILINE)[2:]
    for name in re.findall(r"`(\w+)\(", " ".join(called)):
        assert name in known
    public = {name for name in known if not name.startswith("_")} - {"test_allocator"}
    assert not [name for name in public if f"`{name}" not in PAGE]
