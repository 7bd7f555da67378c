"""What vulture is told to pass over is still there, and still used by nothing else."""

from __future__ import annotations

import fnmatch
import tomllib
from pathlib import Path
from typing import Any

import pytest

from suites.support.sampled import of_all

vulture: Any = pytest.importorskip("vulture", reason="vulture is missing: pip install -e '.[dev]'")

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
SETTINGS = tomllib.loads(TEXT)["tool"]["vulture"]


@of_all("vulture itself runs in ci/check.sh, with the list")
def test_every_name_that_is_passed_over_is_still_unused() -> None:
    """A name that is gone, or is used by now, leaves the list."""
    found = vulture.Vulture(ignore_decorators=SETTINGS["ignore_decorators"])
    found.scavenge([str(ROOT / path) for path in SETTINGS["paths"]])
    unused = {item.name for item in found.get_unused_code()}
    assert [
        name
        for name in SETTINGS["ignore_names"]
        if not any(fnmatch.fnmatch(one, name) for one in unused)
    ] == []


def test_every_name_that_is_passed_over_has_a_reason() -> None:
    lines = TEXT.split("ignore_names = [\n", 1)[1].split("\n]", 1)[0].splitlines()
    assert [line for line in lines if '"' in line and not line.partition("# ")[2]] == []
