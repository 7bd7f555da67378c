"""The guide for authors of allocators: its classes run, and its failure reads as it says."""

from __future__ import annotations

import ctypes
import importlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import cachewitness
from cachewitness.sessions.fuzz.allocator import find
from suites.support.block_pools import FAULTS, SAMPLE, BlockPool

PAGE = (Path(__file__).parents[2] / "docs" / "allocators.md").read_text(encoding="utf-8")
WORDS_MAX = 1_600
FEW = hypothesis.settings(cachewitness.machines.ALLOCATOR_SETTINGS, max_examples=60)


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


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_the_classes_for_c_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the sample says: it is compiled to a library and to a process."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(SAMPLE.with_suffix(".c"), tmp_path)
    head = Path("block_pool.c").read_text().partition("*/")[0]
    commands = re.findall(r"^ \*   (gcc .*)$", head, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        subprocess.run([*command.split(), "-Wall", "-Werror"], check=True)
    for code, name in zip(blocks("python")[1:], ("TestInC", "TestProcess"), strict=True):
        test = defined(code, ctypes=ctypes)[name]
        test.settings = FEW
        assert find(test) is None


def test_the_conversation_of_the_page_is_what_is_said(tmp_path: Path) -> None:
    """A script answers as the page does, and is asked what the page asks, in that order."""
    lines = blocks("jsonl")[0].splitlines()
    asked = [line[2:] for line in lines if line.startswith("> ")]
    answers = [line[2:] for line in lines if line.startswith("< ")]
    script = "\n".join(f"read -r line <&$CACHEWITNESS_ASKED; test \"$line\" = '{ask}' || exit 1\n"
                       f"echo '{answer}' >&$CACHEWITNESS_ANSWERS"
                       for ask, answer in zip(asked, answers[1:], strict=True))  # fmt: skip
    program = tmp_path / "pool.sh"
    program.write_text(f"echo '{answers[0]}' >&$CACHEWITNESS_ANSWERS\n{script}\nsleep 60\n")

    class TestPage(cachewitness.machines.AllocatorProcess):
        command = ("bash", str(program))

    with TestPage._opened() as opened:
        pool: Any = opened.pool()
        assert (pool.null_block, pool.order) == (0, None)
        assert set(opened.methods) == {"make", "alloc", "free", "publish", "lookup"}
        pool.make(2)
        assert pool.alloc(1) == [1]
        pool.publish("k1", 1)
        assert pool.lookup("k1") == 1
        assert pool.alloc(2) is False
        pool.free([1])


def test_the_page_counts_the_faults_of_engines() -> None:
    """From the stages' test files, which need the engines to run, not to be read."""
    counted = re.findall(r"nothing wrong; (\d+)", PAGE)
    systems = ("vllm", "sglang", "lmcache", "transformers")
    files = [importlib.import_module(f"suites.systems.{name}.test_allocator") for name in systems]
    assert [str(len(file.FAULTS)) for file in files] == counted


def test_every_method_and_declaration_of_the_page_is_there() -> None:
    known = vars(cachewitness.machines.Allocator)
    called = re.findall(r"^\| (.+?) \|", PAGE, re.MULTILINE)[2:]
    for name in re.findall(r"`(\w+)\(", " ".join(called)):
        assert name in known
    public = {name for name in known if not name.startswith("_")} - {"test_allocator"}
    assert not [name for name in public if f"`{name}" not in PAGE]
