"""`cachewitness new` writes an engine that works, whose own tests would fail if they found
nothing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from cachewitness.cli import invoke
from cachewitness.cli.new import SHAPES
from suites.support import consoles
from suites.support.checkout import PYTHONPATH
from suites.support.sampled import chosen

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert invoke(["new", "engine", str(tmp_path / "my-cache")]) == 0
    return tmp_path / "my-cache"


def test_its_tests_pass_and_one_of_them_finds_a_fault(folder: Path) -> None:
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
    ]
    environment = {**os.environ, "PYTHONPATH": f"{PYTHONPATH}:{folder}"}
    done = subprocess.run(
        argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (summary,) = [line for line in done.stdout.splitlines() if line.startswith("cachewitness: ")]
    traces, _, rest = summary.partition(" traces")
    ran, _, of = traces.rpartition(": ")[2].partition(" of ")
    assert int(ran) == int(of) > 50 and " hits in " in rest
    assert "passed" in done.stdout.splitlines()[-1]


def test_what_is_written_names_the_engine_alike(folder: Path) -> None:
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["entry-points"]["cachewitness.engines"] == {
        "my-cache": "my_cache:ENGINE"
    }
    workflow = yaml.safe_load(
        (folder / ".github/workflows/cache-gate.yml").read_text(encoding="utf-8")
    )
    commands = [step["run"] for step in workflow["jobs"]["gate"]["steps"] if "run" in step]
    assert commands[-1].startswith("cachewitness run --engine my-cache ")
    assert '"my-cache"' in (folder / "my_cache.py").read_text(encoding="utf-8")


def test_the_tests_of_an_allocator_pass_and_find_a_fault(tmp_path: Path) -> None:
    assert invoke(["new", "allocator", str(tmp_path / "my-pool")]) == 0
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir"]
    done = subprocess.run(
        [*argv, str(tmp_path), "my-pool"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr
    assert " lookups, " in done.stdout


@pytest.mark.parametrize("shape", chosen(list(SHAPES), "slots"))
def test_the_commands_of_its_readme_end_with_0(shape: str, tmp_path: Path) -> None:
    """Every command that the README shows, as it stands there, on the engine as it is written."""
    made = tmp_path / "made"
    assert invoke(["new", "engine", str(made), "--name", "my-cache", "--shape", shape]) == 0
    (block,) = re.findall(r"```sh\n(.*?)```", (made / "README.md").read_text(), re.DOTALL)
    shown = [line.partition(" #")[0].rstrip() for line in block.splitlines()]
    assert {line.split()[0] for line in shown} == {"pip", "cachewitness", "pytest"}
    commands = [consoles.Command(line, ["…"]) for line in [f"cd {made}", *shown]]
    commands[0].shown.clear()
    assert consoles.run(consoles.Session("README", "", commands), tmp_path) == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("json", "would hide"),
        ("cachewitness", "would hide"),
        ("sample", "an engine that"),
        ("llama-cpp", "an engine that"),
    ],
)
def test_a_name_that_something_has_is_refused(
    tmp_path: Path, name: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine's module would be found in place of another, or another engine in place of it."""
    assert invoke(["new", "engine", str(tmp_path / "there"), "--name", name]) == 4
    assert reason in capsys.readouterr().err and not (tmp_path / "there").exists()


@pytest.mark.parametrize("name", ["2fast", "Mixed", "a.b", "class"])
def test_a_name_that_is_no_module_is_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["new", "engine", str(tmp_path / "there"), "--name", name]) == 4
    assert "--name" in capsys.readouterr().err and not (tmp_path / "there").exists()


def test_nothing_that_is_there_is_overwritten(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert invoke(["new", "engine", str(folder)]) == 4
    assert "not empty" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_folder_that_cannot_be_made_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert invoke(["new", "engine", str(tmp_path / "file" / "my-cache")]) == 4
    assert "cannot be made" in capsys.readouterr().err
