"""Where pip took this package from, so that a command which installs it again names that place and
not the package index, where it may not be.
"""

from __future__ import annotations

import json
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from cachewitness import __version__

NAME = "cachewitness"
PLACEHOLDER = f"git+https://github.com/OWNER/{NAME}@main"
"""What a workflow installs where nobody can tell: its owner has to be filled in."""
_GITHUB = re.compile(r"(?:https://|ssh://git@|git@)github\.com[:/]([\w.-]+/[\w.-]+?)(?:\.git)?/?")


class Origin(NamedTuple):
    """A folder with the sources, or the address of a repository or an archive as pip takes it
    (`git+https://…@COMMIT`); both empty: the package index.
    """

    folder: str = ""
    address: str = ""

    def requirement(self, extra: str = "") -> str:
        """Return what pip installs this package from on this machine, with an extra."""
        name = f"{NAME}[{extra}]" if extra else NAME
        if self.folder:
            return f"{self.folder}[{extra}]" if extra else self.folder
        return f"{name} @ {self.address}" if self.address else f"{name}=={__version__}"

    def elsewhere(self) -> str:
        """Return what pip installs it from on another machine: the index if it came from there,
        else a repository on GitHub, `PLACEHOLDER` if none is known.
        """
        if self.address.startswith("git+https://github.com/"):
            return self.address
        if not self.folder:
            return PLACEHOLDER if self.address else f"{NAME}=={__version__}"
        found = _GITHUB.fullmatch(_remote(self.folder))
        return f"git+https://github.com/{found[1]}@main" if found else PLACEHOLDER


def origin() -> Origin:
    """Return where this package was installed from: the checkout that it runs in, or what pip
    noted (PEP 610).
    """
    checkout = Path(__file__).resolve().parents[3]
    if (checkout / "pyproject.toml").is_file():
        return Origin(folder=str(checkout))
    try:
        noted = metadata.distribution(NAME).read_text("direct_url.json")
        return read(noted) if noted else Origin()
    except (metadata.PackageNotFoundError, ValueError):
        return Origin()


def read(noted: str) -> Origin:
    """Return what a `direct_url.json` says. Raises ValueError if it is none."""
    found = json.loads(noted)
    url = found.get("url") if isinstance(found, dict) else None
    if not isinstance(url, str):
        raise ValueError("no address in it")
    if "dir_info" in found:
        return Origin(folder=unquote(urlsplit(url).path))
    vcs = found.get("vcs_info")
    if isinstance(vcs, dict):
        return Origin(address=f"{vcs.get('vcs', 'git')}+{url}@{vcs.get('commit_id', 'main')}")
    return Origin(address=url)


def _remote(folder: str) -> str:
    """Return the address that a checkout was cloned from; empty if it does not say."""
    try:
        done = subprocess.run(
            ["git", "-C", folder, "remote", "get-url", "origin"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
