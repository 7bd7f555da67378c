"""Git, as a test calls it: with an author, and without the user's settings."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def git(folder: Path, *words: str) -> str:
    """Return what git prints in a folder; the first branch is called `m`."""
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=m"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    done = subprocess.run(
        ["git", *author, *words],
        cwd=folder,
        env=environment | {"GIT_CONFIG_GLOBAL": os.devnull},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def committed(folder: Path) -> Path:
    """Make a repository of a folder, with all that is in it at a commit called `base`."""
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "base")
    git(folder, "tag", "base")
    return folder
