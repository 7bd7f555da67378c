"""A soak that is stopped goes on where it was."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks import soak


def ran(monkeypatch: pytest.MonkeyPatch, kept: Path, operations: int, seed: int = 3) -> soak.Soaked:
    """Run a soak of the reference as its command does, and return what it stored."""
    given = ["--level", "scheduler", "--operations", f"{operations}", "--seed", f"{seed}"]
    monkeypatch.setattr(sys, "argv", ["soak", *given, "--kept", str(kept)])
    assert soak.main() == 0
    return msgspec.json.decode(kept.read_bytes(), type=soak.Soaked)


def test_a_soak_in_two_parts_is_the_soak_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(monkeypatch, tmp_path / "parts", 60)
    found = [ran(monkeypatch, tmp_path / name, 300) for name in ("parts", "one")]
    parts, one = (msgspec.structs.replace(each, clock=0.0, cpu=0.0) for each in found)
    assert parts == one
    assert one.next > 1
    assert one.activity.operations == sum(one.levels.values()) >= 300


def test_what_another_soak_stored_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(monkeypatch, tmp_path / "kept", 60)
    with pytest.raises(SystemExit, match="is of another run"):
        ran(monkeypatch, tmp_path / "kept", 60, seed=4)
