"""A policy in a package of its own is run, fuzzed, planned, asked and seeded with faults by its
entry point alone.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "docs" / "samples" / "toy_policy"
POLICY = "toy_policy"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the sample as pip would: metadata with the entry points that its pyproject.toml
    declares.
    """
    project = tomllib.loads((SAMPLE / "pyproject.toml").read_text())["project"]
    folder = tmp_path_factory.mktemp("site")
    about = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = (
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in names.items())
        for group, names in project["entry-points"].items()
    )
    (about / "entry_points.txt").write_text("\n".join(groups))
    return folder


def _call(site: Path, folder: Path, *arguments: str) -> str:
    """Run the command line with the sample installed, expect exit code 0, and return what it
    printed.
    """
    path = os.pathsep.join(map(str, (site, SAMPLE, ROOT)))
    command = [sys.executable, "-m", "cachewitness.cli", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_runs_and_is_lawful(site: Path, tmp_path: Path) -> None:
    """Every scenario at both levels passes, and hits, evictions and preemptions prove that
    something was checked.
    """
    report = json.loads(
        _call(site, tmp_path, "run", "--policy", POLICY, "--seconds", "1", "--json")
    )
    done = {suite["name"]: suite["activity"] for suite in report["suites"]}
    assert {"invariants", "scheduler", "random", "scheduler-random"} <= set(done)
    assert all(
        activity["hits"] and activity["evictions"] and activity["preemptions"]
        for activity in done.values()
    )


def test_it_is_fuzzed(site: Path, tmp_path: Path) -> None:
    """A campaign draws its configurations, finds nothing, and reaches hits and evictions; a
    planted fault is reported first.
    """
    output = _call(site, tmp_path, "fuzz", "--policy", POLICY, "--operations", "2000")
    assert (
        "was reported as" in output and "verdict: pass" in output and "attention evicted" in output
    )


def test_its_mutant_is_killed(site: Path, tmp_path: Path) -> None:
    """The fault that it brings is killed by the workloads that every policy gets, as the anomaly
    that it names.
    """
    found = json.loads(
        _call(
            site,
            tmp_path,
            "mutants",
            "--policy",
            POLICY,
            "--jobs",
            "1",
            "--tensor-seconds",
            "0",
            "--json",
        )
    )
    (row,) = found["rows"]
    assert (row["mutant"], row["anomaly"], row["killed"], row["false_alarms"]) == (
        "toy-salt-left-out",
        "cross-identity-hit",
        True,
        [],
    )


def test_it_is_planned(site: Path, tmp_path: Path) -> None:
    """`plan` takes its name with hyphens as well, and answers with the arithmetic of its own
    command.
    """
    answer = json.loads(_call(site, tmp_path, "plan", "toy-policy", "--tokens", "100", "--json"))
    assert answer["results"] == {"blocks": 7}, "ceil(100 / 16)"


def test_vectors_are_filled_and_consumed(site: Path, tmp_path: Path) -> None:
    """Its questions become vectors: of 17 tokens a block of 16 is hit, of 16 none, for one token
    is computed again.
    """
    _call(site, tmp_path, "fill", "--policy", POLICY, "--out", "vectors")
    path = tmp_path / "vectors" / POLICY / "lifecycle.json"
    facts = {
        vector["id"].rsplit("/", 1)[1]: vector["expected"]["facts"]
        for vector in json.loads(path.read_text())["vectors"]
    }
    hits = {
        tokens: [length for fact in listed for (r, length, _) in fact.get("hits", [])]
        for tokens, listed in facts.items()
    }
    assert hits == {
        "16": [0, 0],
        "17": [0, 16],
    }, "of the prompt that came first, and of the same prompt again"
    assert "passed: 2 valid" in _call(site, tmp_path, "consume", str(path))


def test_it_is_short() -> None:
    """A policy with all that belongs to it is under 150 lines of code, without docstrings,
    imports and empty lines.
    """
    assert sum(_lines(path) for path in (SAMPLE / POLICY).glob("*.py")) < 150


def _lines(path: Path) -> int:
    """Return the lines of a module that are neither blank, comment, docstring nor import."""
    text = path.read_text(encoding="utf-8")
    lines = {
        number
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.strip().startswith("#")
    }
    for node in ast.walk(ast.parse(text)):
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if docstring or isinstance(node, ast.Import | ast.ImportFrom):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)
