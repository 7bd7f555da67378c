"""The wheel carries what the commands need, no tests and no evidence, and works from any folder;
the faults' wheel brings the rest.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachewitness.cli.new import SHAPES

pytest.importorskip("hatchling", reason="hatchling is missing: pip install -e '.[dev]'")

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"cachewitness": "harness", "cachewitness_reference": "reference_impl"}
"""The packages, and the folders that they lie in."""
DATA = "cachewitness/_data/"
CARRIED = ("entered", "expected", "gsm8k_format", "layouts", "vectors")
"""The folders of fixtures that commands read."""
BESIDE = ("cachewitness_faults", "cachewitness_training")
"""The packages of the faults' wheel; they lie in `harness`."""


HIDDEN = """import sys
sys.path = [entry for entry in sys.path if entry not in {hidden!r}]
"""
"""Run by Python at its start: entries that a development installation adds to the path go."""
OWN_TESTS = """from pathlib import Path
import cachewitness, harness, reference_impl, suites

def test_own():
    assert harness.OWN and reference_impl.OWN and suites.OWN

def test_it_is_the_wheels():
    assert (Path(cachewitness.__file__).parent / "_data").is_dir()

def test_its_engines_are_found():
    report = cachewitness.verify(layouts=["full"], suites=["invariants"])
    assert report.exit_code == 0
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of this tree, built anew."""
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of the faults, built anew and unpacked."""
    folder = tmp_path_factory.mktemp("faults")
    with zipfile.ZipFile(built(ROOT / "ci/faults", folder)) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def built(project: Path, folder: Path) -> Path:
    """Build the wheel of a project into an empty folder."""
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
    subprocess.run(command, cwd=project, check=True, capture_output=True)
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
    """Tests, benchmarks, checks, pages and the source roots stay in the repository: what other
    projects call `harness` or `suites` is theirs.
    """
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
    assert wheel.stat().st_size < 2_300_000


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
    carried |= {f"{DATA}samples/{shape}_adapter.py" for shape in SHAPES}
    carried.add(f"{DATA}requirements/vllm_requirements.txt")
    assert {name for name in names if name.startswith(DATA)} == carried


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def called(folder: Path, *sites: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with nothing of this repository but what lies in the sites."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sites))}
    return subprocess.run(
        [sys.executable, "-m", "cachewitness", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def alone(unpacked: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the unpacked wheel, beside which this checkout cannot be imported although it may be
    installed in development mode.
    """
    (tmp_path / "sitecustomize.py").write_text(
        HIDDEN.format(hidden=[str(ROOT / root) for root in ("", *PACKAGES.values())])
    )
    return unpacked


@pytest.mark.parametrize(
    "command",
    [
        ["ls", "mutants"],
        ["mutants"],
        ["mutants", "--policy", "furiosa"],
        ["mutants", "--mutant", "salt-left-out"],
        ["fill"],
        ["fill", "--policy", "furiosa"],
        ["run", "--engine", "reference:mutant=salt-left-out", "--layout", "full"],
        ["run", "--engine", "sample:mutant=preempted-is-lost"],
    ],
    ids=" ".join,
)
def test_without_the_faults_it_says_where_they_are(
    alone: Path, tmp_path: Path, command: list[str]
) -> None:
    """In one line, with exit code 4."""
    done = called(tmp_path, tmp_path, alone, command=command)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "pip install cachewitness-faults (from a clone: ./ci/faults)" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("code", "command"),
    [
        (1, ["run", "--engine", "reference:mutant=hit-is-maximum-over-groups", "--fail-fast"]),
        (1, ["run", "--engine", "sample:mutant=snapshot-one-token-early", "--fail-fast"]),
        (0, ["fuzz", "--operations", "500"]),
        (0, ["mutants", "--mutant", "block-leaked", "--tensor-seconds", "0"]),
        (0, ["explain", "group-misalignment"]),
    ],
    ids=lambda command: command[0] if isinstance(command, list) else "",
)
def test_without_the_faults_it_plants_what_is_shown_and_tests_itself(
    alone: Path, tmp_path: Path, code: int, command: list[str]
) -> None:
    done = called(tmp_path, tmp_path, alone, command=command)
    assert done.returncode == code, done.stdout + done.stderr


def test_with_the_faults_beside_it_all_of_them_are_there(
    alone: Path, faults: Path, tmp_path: Path
) -> None:
    """As many as in this checkout, with their traces, and the questions of every policy."""
    listed = called(tmp_path, tmp_path, alone, faults, command=["ls", "mutants", "--json"])
    roots = [ROOT / source for source in PACKAGES.values()]
    here = called(ROOT, *roots, command=["ls", "mutants", "--json"])
    assert json.loads(listed.stdout) == json.loads(here.stdout)
    explained = called(tmp_path, tmp_path, alone, faults, command=["explain", "cross-identity-hit"])
    assert "an example, by the fault" in explained.stdout, explained.stderr
    filling = ["fill", "--policy", "furiosa", "--out", "filled"]
    assert called(tmp_path, tmp_path, alone, faults, command=filling).returncode == 0
    for path in (ROOT / "fixtures/vectors/furiosa").iterdir():
        assert (tmp_path / "filled/furiosa" / path.name).read_bytes() == path.read_bytes()


def test_the_faults_wheel_is_whole(faults: Path) -> None:
    """Every module of its packages and every trace of a fault, and nothing else."""
    carried = {
        name.removeprefix("harness/")
        for package in BESIDE
        for name in tracked(f"harness/{package}")
    }
    carried |= {
        name.replace("fixtures/traces/mutants", "cachewitness_faults/_traces")
        for name in tracked("fixtures/traces/mutants")
    }
    found = {path.relative_to(faults).as_posix() for path in faults.rglob("*") if path.is_file()}
    assert {name for name in found if ".dist-info/" not in name} == carried


def test_the_tests_of_a_repository_with_a_harness_of_its_own_run(
    alone: Path, tmp_path: Path
) -> None:
    """The pytest plugin is found by its entry point, `harness` and `suites` are the repository's,
    and its `pyproject.toml` is not taken for ours where it keeps what it needs in a folder.
    """
    site = shutil.copytree(alone, tmp_path / "vendored")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "another"\nversion = "1"\n')
    for package in ("harness", "suites", "reference_impl"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("OWN = True\n")
    (tmp_path / "test_own.py").write_text(OWN_TESTS)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, site)))}
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_own.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "cachewitness-seed"
        in subprocess.run(
            [sys.executable, "-m", "pytest", "--help"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        ).stdout
    )


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
