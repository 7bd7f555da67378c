"""Asks git what a tree changed since a base."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from cachewitness._util.errors import UsageError
from cachewitness._util.lines import one_line

_ENVIRONMENT = {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
_OF_A_HOOK = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
"""What git sets for a hook, which would have it look into another repository."""
_DIFF = (
    *("-c", "core.quotePath=true", "diff", "--no-color", "--no-ext-diff", "--no-textconv"),
    *("--find-renames", "--unified=0", "--inter-hunk-context=0", "--ignore-submodules=dirty"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--submodule=short", "--no-relative"),
)
"""What makes the output of `git diff` the same whatever the user's settings are."""


class Changed(NamedTuple):
    """What changed: the unified diff, the folder that its paths begin in, new files that git does
    not know yet, and the base in words.
    """

    diff: str
    top: Path
    unknown: list[str]
    base: str


def changed(source: Path, package: str, base: str) -> Changed:
    """Return what a tree changed since it left `base`, what was not committed included. `package`
    is the folder of the engine below `source`.

    Raises UsageError, in one line, if the engine is in no git repository, or the base is not in it.
    """
    top = Path(_asked(source, "rev-parse", "--show-toplevel", refused=_no_repository(source)))
    if not _asked(source, "ls-files", "--", package, refused=_no_repository(source)):
        raise UsageError(
            f"--diff {base}: the git repository {top} does not have {source / package} in it, so"
            " that it says nothing of the engine"
        )
    named = _asked(
        top,
        *("rev-parse", "--verify", "--quiet", "--end-of-options", f"{base}^{{commit}}"),
        refused=f"--diff {base}: {top} has no such commit{_if_shallow(top)}",
    )
    left = _asked(
        top,
        *("merge-base", named, "HEAD"),
        refused=(
            f"--diff {base}: it and what is checked out in {top} have no commit in common"
            f"{_if_shallow(top)}"
        ),
    )
    diff = _asked(top, *_DIFF, left, "--", refused=f"--diff {base}: git cannot compare {top}")
    others = _asked(
        top,
        *("ls-files", "-z", "--others", "--exclude-standard", "--", "*.py"),
        refused=f"--diff {base}: git cannot list {top}",
    )
    words = base if named == left else f"{base} (from which it left at {left[:12]})"
    return Changed(diff, top, [name for name in others.split("\0") if name], words)


def top_of(source: Path) -> Path | None:
    """Return the top folder of the repository that a folder is in; None if it is in none."""
    try:
        return Path(_asked(source, "rev-parse", "--show-toplevel", refused=""))
    except UsageError:
        return None


def _no_repository(source: Path) -> str:
    return f"--diff: {source} is in no git repository; name a file that `git diff` wrote, FILE.diff"


def _if_shallow(top: Path) -> str:
    shallow = _asked(top, "rev-parse", "--is-shallow-repository", refused="--diff") == "true"
    return (
        "; the clone is shallow: `git fetch --unshallow` (fetch-depth: 0 of actions/checkout)"
        " brings what is missing"
        if shallow
        else ""
    )


def _asked(folder: Path, *words: str, refused: str) -> str:
    """Return what git answers. Raises UsageError, `refused` and what git says, if it does not."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={name: value for name, value in os.environ.items() if name not in _OF_A_HOOK}
            | _ENVIRONMENT,
            check=False,
        )
    except OSError as error:
        raise UsageError(f"--diff: git cannot be started ({error.strerror})") from None
    if done.returncode:
        reason = one_line(done.stderr.decode("utf-8", "replace").strip())
        raise UsageError(f"{refused}{f' ({reason})' if reason else ''}")
    return done.stdout.decode("utf-8", "surrogateescape").removesuffix("\n")
