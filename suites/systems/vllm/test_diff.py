"""`run --diff` on a copy of the real vLLM in a git repository: what the map knows to enter a change
is run first, and what no suite enters is said.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from cachewitness.cli import invoke
from cachewitness.sessions.change.entered_map import stored
from cachewitness.sessions.change.statements import PythonFile
from suites.support.git_repository import committed, git
from suites.support.real_vllm import REAL, SOURCE

pytestmark = REAL
POOL = "vllm/v1/core/block_pool.py"
SHORT = ("--layout", "full-swa", "--option", "retention_interval=0", "--suite", "invariants")
ONE = (*SHORT, "--only", "invariants:exact-replay@*")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a tree whose other files are those of the release, and of which git has one module."""
    folder = tmp_path_factory.mktemp("vllm") / "fork"
    shutil.copytree(SOURCE, folder, copy_function=os.link, symlinks=True)
    pool = (folder / POOL).read_bytes()
    (folder / POOL).unlink()
    (folder / POOL).write_bytes(pool)
    (folder / ".gitignore").write_text(f"*\n!*/\n!{POOL}\n!csrc/*\n")
    return committed(folder)


@pytest.fixture
def fork(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    git(made, "reset", "-q", "--hard", "base")
    monkeypatch.chdir(tmp_path)
    return made


def edit(fork: Path, function: str, old: str, new: str) -> None:
    """Replace a piece of a function, the first that is there."""
    before, found, inside = (fork / POOL).read_text().partition(f"    def {function}(")
    assert old in inside
    (fork / POOL).write_text(before + found + inside.replace(old, new, 1))


def run(fork: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = invoke(["run", "--engine", f"vllm:source={fork}", "--diff", "base", *words])
    return code, " ".join(capsys.readouterr().out.split())


def test_one_function_is_entered_and_one_is_not(
    fork: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(fork, "touch", "block.ref_cnt += 1", "block.ref_cnt += int(True)")
    edit(fork, "_lookahead_token_ids", "        return", "        assert self\n        return")
    code, out = run(fork, capsys, *ONE)
    assert code == 0, out
    assert "BlockPool._lookahead_token_ids no suite enters it" in out
    assert (
        "vllm.v1.core.block_pool:BlockPool.touch 1 of 1 changed line entered, by"
        " invariants@full-swa[retention_interval=0]"
    ) in out
    assert "run first, by the map of vLLM 0.33.0: 1 configuration of suites" in out
    assert "block_pool:BlockPool._lookahead_token_ids is not entered" in out


def test_a_function_that_no_suite_enters_is_no_pass(
    fork: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is a kernel beside it."""
    edit(fork, "_lookahead_token_ids", "        return", "        assert self\n        return")
    code, out = run(fork, capsys, *ONE)
    assert code == 5, out
    assert out.endswith("no suite enters a line that changed since base")


def test_the_map_has_what_the_release_has() -> None:
    """Each function that the map has of the cache core stands in the release's source, and most of
    those that stand there are in the map: it is of this release.
    """
    made = stored("vllm")
    assert made is not None and made.release == "vLLM 0.33.0"
    module = "v1.core.block_pool"
    mapped = {
        name.partition(":")[2]
        for group in made.entered
        for name in group.functions
        if name.partition(":")[0] == module
    }
    there = PythonFile((Path(SOURCE) / POOL).read_bytes(), POOL).owners
    assert mapped <= there
    assert len(mapped) > len(there) / 2
