"""A package that is a fork: a copy of the reference policy with the example of docs/gate.md, which
registers an engine; and what its gate is run in.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")


class Bug(NamedTuple):
    """One change of a source text, and the anomaly that it must be found by."""

    anomaly: str
    file: str
    old: str
    new: str

    def plant(self, package: Path) -> None:
        path = package / self.file
        text = path.read_text(encoding="utf-8")
        assert text.count(self.old) == 1, f"{path} has {self.old!r} {text.count(self.old)} times"
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


EARLY = Bug(
    "premature-release",
    "sliding_window.py",
    "- self.sliding_window + 1",
    "- self.sliding_window + 2",
)
FORGETFUL = Bug(
    "lost-replay-boundary",
    "single_type_manager.py",
    "(request, self.config, replay,",
    "(request, self.config, (),",
)


def surroundings(folder: Path, **more: str) -> dict[str, str]:
    """Return an environment in which only the package in `folder` is added and no CI system is
    noticed.
    """
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("CACHEWITNESS_", "GITHUB_")) and key != "CI"
    }
    return kept | {"PYTHONPATH": str(folder), "CACHEWITNESS_PYTHON": sys.executable} | more


def example(language: str, first: str) -> str:
    """Return the code block of the guide that begins with a line."""
    blocks: list[str] = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)
    found = [block for block in blocks if block.startswith(first)]
    assert len(found) == 1, f"docs/gate.md has {len(found)} blocks that begin with {first!r}"
    return found[0]


def make_fork(folder: Path, bug: Bug | None = None, known: str = "") -> Path:
    """Make a package that is a copy of the reference policy, and install it as far as entry
    points go. `known` is the list of what its release 1.0 is known for.
    """
    package = folder / "forked_vllm"
    package.mkdir(parents=True)
    for path in sorted((ROOT / "reference_impl" / "cachewitness_reference" / "vllm").glob("*.py")):
        text = path.read_text(encoding="utf-8").replace(
            "cachewitness_reference.vllm", "forked_vllm"
        )
        (package / path.name).write_text(text, encoding="utf-8")
    (package / "witness.py").write_text(
        example("python", "# forked_vllm/witness.py"), encoding="utf-8"
    )
    if known:
        _list(package, known)
    if bug:
        bug.plant(package)
    registered = tomllib.loads(example("toml", "# pyproject.toml"))["project"]["entry-points"]
    lines = [
        line
        for group, names in registered.items()
        for line in (f"[{group}]", *(f"{k} = {v}" for k, v in names.items()))
    ]
    info = folder / "forked_vllm-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: forked-vllm\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def _list(package: Path, known: str) -> None:
    """Give the engine of a fork a list of what its release is known for."""
    (package / "known.txt").write_text(known, encoding="utf-8")
    witness = package / "witness.py"
    text = witness.read_text(encoding="utf-8")
    lists = 'KnownFindings(lambda version, options: (KNOWN,) if version == "1.0" else ())'
    for old, new in (
        ("open=open_engine)", f"open=open_engine, known={lists})"),
        ("    EngineKind,\n", "    EngineKind,\n    KnownFindings,\n"),
        ("ENGINE = ", f"KNOWN = {str(package / 'known.txt')!r}\nENGINE = "),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    witness.write_text(text, encoding="utf-8")
