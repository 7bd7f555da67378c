"""A change in a git repository is read into the functions that it touches, and whatever git cannot
answer for is refused in one line.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.sessions.change.touched import Tree, read
from suites.support.git_repository import committed, git

MODULE = """import os

LIMIT = 3


def kept(x):
    y = x
    z = y + 1
    return z


def gone(x):
    return x


class Box:
    def size(self):
        if os.name:
            return 1
        return 2
"""


@pytest.fixture
def fork(tmp_path: Path) -> Path:
    """Make a repository with a package in a folder of its own, at a commit called `base`."""
    folder = tmp_path / "fork"
    (folder / "src/pack").mkdir(parents=True)
    (folder / "src/pack/__init__.py").write_text("")
    (folder / "src/pack/mod.py").write_text(MODULE)
    return committed(folder)


def touched(fork: Path, against: str = "base") -> dict[str, list[int]]:
    return {
        one.name: [touch.line for touch in one.touches]
        for one in read(Tree(fork / "src", "pack"), against).functions
    }


def beside(fork: Path) -> dict[str, bool]:
    return {one.kind: one.code for one in read(Tree(fork / "src", "pack"), "base").beside}


def edit(fork: Path, old: str, new: str, name: str = "src/pack/mod.py") -> None:
    path = fork / name
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_each_changed_line_is_a_function_s(fork: Path) -> None:
    """What was committed and what was not; new functions, new files, and what a module runs."""
    edit(fork, "    z = y + 1\n", "    z = y + 2\n")
    git(fork, "commit", "-qam", "more")
    edit(fork, "LIMIT = 3", "LIMIT = 4")
    edit(
        fork, "            return 1\n", "            return 1\n\n        def inner(): return 3\n\n"
    )
    (fork / "src/pack/new.py").write_text("def fresh():\n    # what it is\n    return 1\n")
    assert touched(fork) == {
        "pack.mod (what importing it runs)": [3],
        "pack.mod:kept": [8],
        "pack.mod:Box.size.<locals>.inner": [21],
        "pack.new:fresh": [1, 3],
    }


def test_what_is_gone_is_told_by_what_stood_around_it(fork: Path) -> None:
    """A statement less is a touch of its function, entered with both neighbours; a function less
    has nothing to enter.
    """
    edit(fork, "    z = y + 1\n", "")
    edit(fork, "def gone(x):\n    return x\n\n\n", "")
    (kept, gone) = read(Tree(fork / "src", "pack"), "base").functions
    assert kept.name == "pack.mod:kept" and [touch.line for touch in kept.touches] == [7]
    assert [place[0] for place in kept.touches[0].places] == [7, 8]
    assert (gone.name, gone.deleted, gone.touches) == ("pack.mod:gone", True, [])


def test_a_decorator_less_touches_its_function(fork: Path) -> None:
    edit(fork, "def kept", "@staticmethod\ndef kept")
    git(fork, "commit", "-qam", "decorated")
    git(fork, "tag", "decorated")
    edit(fork, "@staticmethod\n", "")
    assert list(touched(fork, "decorated")) == ["pack.mod:kept"]


def test_a_renamed_file_is_another_module(fork: Path) -> None:
    """Whoever imports it must know; of its functions those count whose lines changed."""
    git(fork, "mv", "src/pack/mod.py", "src/pack/other.py")
    edit(fork, "    z = y + 1\n", "    z = y + 2\n", "src/pack/other.py")
    found = touched(fork)
    assert set(found) == {"pack.other (what importing it runs)", "pack.other:kept"}
    assert found["pack.other:kept"] == [8]


def test_other_files_are_told_by_their_kind(fork: Path) -> None:
    """Kernels, tests, settings and modules that are gone are code; documentation and comments are
    none.
    """
    for name in ("csrc/a.cu", "README.md", "docs/conf.py", "tests/test_a.py", "setup.cfg"):
        (fork / name).parent.mkdir(exist_ok=True)
        (fork / name).write_text("x = 1\n")
    git(fork, "add", "-A")
    edit(fork, "    y = x\n", "    # why\n    y = x\n")
    git(fork, "rm", "-q", "src/pack/__init__.py")
    assert beside(fork) == {
        "kernels and other native code": True,
        "documentation": False,
        "Python outside of the package pack": True,
        "other files": True,
        "modules that are gone": True,
        "comments, docstrings and blank lines": False,
    }
    assert touched(fork) == {}


def test_only_what_a_branch_changed_counts(fork: Path) -> None:
    """What the base got since the branch left it is none of the change."""
    git(fork, "checkout", "-qb", "branch")
    edit(fork, "    z = y + 1\n", "    z = y + 2\n")
    git(fork, "commit", "-qam", "ours")
    git(fork, "checkout", "-q", "m")
    edit(fork, "LIMIT = 3", "LIMIT = 4")
    git(fork, "commit", "-qam", "theirs")
    git(fork, "checkout", "-q", "branch")
    assert touched(fork, "m") == {"pack.mod:kept": [8]}


def test_a_file_of_a_diff_is_read_as_well(fork: Path, tmp_path: Path) -> None:
    """With and without git; one that was not applied is refused, and so is none."""
    edit(fork, "    z = y + 1\n", "    z = y + 2\n")
    change = tmp_path / "change.diff"
    change.write_text(git(fork, "diff", "base"))
    assert touched(fork, str(change)) == {"pack.mod:kept": [8]}
    git(fork, "checkout", "-q", ".")
    with pytest.raises(UsageError, match="was not applied"):
        touched(fork, str(change))
    with pytest.raises(UsageError, match=r"--diff: .*no\.diff: cannot be read"):
        touched(fork, str(tmp_path / "no.diff"))


def test_git_settings_of_the_user_change_nothing(fork: Path) -> None:
    for name, value in (
        ("diff.noprefix", "true"),
        ("diff.renames", "false"),
        ("color.ui", "always"),
        ("diff.external", "false"),
    ):
        git(fork, "config", name, value)
    edit(fork, "    z = y + 1\n", "    z = y + 2\n")
    assert touched(fork) == {"pack.mod:kept": [8]}


def test_what_git_cannot_answer_for_is_refused(fork: Path, tmp_path: Path) -> None:
    """No such commit, no repository, a package that the repository does not have, a history that is
    cut off, and a file that is no Python.
    """
    with pytest.raises(UsageError, match=r"--diff nowhere: .* has no such commit$"):
        touched(fork, "nowhere")
    with pytest.raises(UsageError, match=r"--output=x: .* has no such commit"):
        touched(fork, "--output=x")
    (tmp_path / "plain/pack").mkdir(parents=True)
    with pytest.raises(UsageError, match="is in no git repository"):
        read(Tree(tmp_path / "plain", "pack"), "base")
    (fork / "venv/pack").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"does not have .*venv/pack in it"):
        read(Tree(fork / "venv", "pack"), "base")
    edit(fork, "LIMIT = 3", "LIMIT = (3")
    with pytest.raises(UsageError, match=r"src/pack/mod\.py:3 is no Python"):
        touched(fork)


def test_a_shallow_clone_says_what_is_missing(fork: Path, tmp_path: Path) -> None:
    edit(fork, "LIMIT = 3", "LIMIT = 4")
    git(fork, "commit", "-qam", "more")
    git(tmp_path, "clone", "-q", "--depth", "1", fork.as_uri(), "shallow")
    base = git(fork, "rev-parse", "base").strip()
    with pytest.raises(UsageError, match=r"no such commit; the clone is shallow: `git fetch"):
        touched(tmp_path / "shallow", base)
    git(tmp_path / "shallow", "fetch", "-q", "--depth", "1", "origin", base)
    with pytest.raises(UsageError, match="no commit in common; the clone is shallow"):
        touched(tmp_path / "shallow", base)
