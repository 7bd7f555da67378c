"""The wheel carries what the commands need, no tests, and works from any folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="hatchling is missing: pip install -e '.[dev]'")

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"cachewitness": "harness", "cachewitness_reference": "reference_impl"}
"""The packages, and the folders that they lie in."""
DATA = "cachewitness/_data/"
CARRIED = ("expected", "gsm8k_format", "layouts", "traces/mutants", "vectors")
"""The folders of fixtures that commands read."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of this tree, built anew."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "--target",
        "wheel",
        "--directory",
        str(folder),
    ]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def tracked(folder: str) -> Iterator[str]:
    """Yield the files of a folder of the repository; what Python leaves beside its sources is
    none.
    """
    for path in (ROOT / folder).rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(ROOT).as_posix()


def test_nothing_is_in_it_but_the_packages_and_their_data(names: list[str]) -> None:
    """Tests, benchmarks, checks and pages stay in the repository."""
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    assert [name for name in names if "/test_" in name or "conftest" in name] == []


def test_the_public_names_are_a_typed_package_in_it(names: list[str], unpacked: Path) -> None:
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    code = "import cachewitness; print(cachewitness.__file__, cachewitness.verify.__module__)"
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        cwd=unpacked.parent,
    )
    assert done.stdout.split() == [
        str(unpacked / "cachewitness" / "__init__.py"),
        "cachewitness.api.verify",
    ], done.stderr


def test_it_is_small(wheel: Path) -> None:
    """Weights serve scores alone; they come with another distribution (ci/checkpoints)."""
    assert wheel.stat().st_size < 2_500_000


def test_without_the_checkpoints_it_says_where_they_are(unpacked: Path) -> None:
    """And finds them beside it."""
    code = "from cachewitness._util import data; print(data.checkpoints())"
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    command = [sys.executable, "-P", "-c", code]
    missing = subprocess.run(
        command, env=environment, capture_output=True, text=True, cwd=unpacked.parent
    )
    assert missing.returncode and "pip install cachewitness-checkpoints" in missing.stderr
    beside = unpacked.parent / "beside" / "cachewitness_checkpoints"
    beside.mkdir(parents=True)
    (beside / "__init__.py").touch()
    environment["PYTHONPATH"] += os.pathsep + str(beside.parent)
    there = subprocess.run(
        command, env=environment, capture_output=True, text=True, cwd=unpacked.parent
    )
    assert there.stdout.strip() == str(beside), there.stderr


def test_every_module_is_in_it(names: list[str]) -> None:
    modules = {
        name.removeprefix(f"{source}/")
        for package, source in PACKAGES.items()
        for name in tracked(f"{source}/{package}")
    }
    assert {
        name
        for name in names
        if name.startswith(tuple(PACKAGES))
        and not name.startswith(DATA)
        and "dist-info" not in name
    } == modules


def test_the_data_is_what_commands_read(names: list[str]) -> None:
    """All of each folder that is carried, and nothing of the others."""
    carried = {DATA + name for folder in CARRIED for name in tracked(f"fixtures/{folder}")}
    carried.add(f"{DATA}samples/paged_adapter.py")
    assert {name for name in names if name.startswith(DATA)} == carried


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.mark.parametrize(
    "command",
    [
        ["run", "--suite", "invariants", "--layout", "full-mamba", "--quiet"],
        ["consume", "--quiet", DATA + "fixtures/vectors/furiosa"],
        ["ls", "layouts"],
        ["new", "engine", "my-cache"],
        ["fill", "--help"],
    ],
    ids=lambda command: command[0],
)
def test_commands_work_from_an_empty_folder(
    unpacked: Path, tmp_path: Path, command: list[str]
) -> None:
    """The package is found in the unpacked wheel, not in this repository, and needs nothing
    beside it.
    """
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    command = [str(unpacked / word) if word.startswith(DATA) else word for word in command]
    code = (
        "import json, sys, cachewitness.cli; print(json.dumps(cachewitness.cli.__file__),"
        " file=sys.stderr); cachewitness.cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert Path(json.loads(done.stderr.splitlines()[0])).is_relative_to(unpacked)
