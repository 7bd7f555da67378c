"""The shell steps of the release workflow: what a tag must be, what is built, and what is handed to
PyPI.

`.ci/run` and `ci/stage_package.sh` are stand-ins; the latter's own parts say what it builds.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cachewitness import __version__
from suites.support.consoles import ROOT

WORKFLOW: dict[str, Any] = yaml.safe_load(
    (ROOT / "ci/examples/release-workflow.yml").read_text(encoding="utf-8")
)
RUN = 'echo "tests" >> "$NOTES"\n'
PACKAGE = (
    'echo "package" >> "$NOTES"\nmkdir -p "$CACHEWITNESS_DIST"\n'
    "touch"
    ' "$CACHEWITNESS_DIST"/{cachewitness-1.whl,cachewitness-1.tar.gz,cachewitness_checkpoints-1.whl,sbom.json}\n'  # noqa: E501
)


def script(job: str) -> str:
    """Return the shell steps of a job, each in a shell of its own, as GitHub runs them; the
    first that fails ends the job.
    """
    steps = [step["run"] for step in WORKFLOW["jobs"][job]["steps"] if "run" in step]
    return "set -e\n" + "\n".join(f"bash -e <<'STEP'\n{step}\nSTEP" for step in steps)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Make a checkout of the tag, with stand-ins for what it calls."""
    for path, text in (
        (".ci/run", RUN),
        ("ci/stage_package.sh", f"#!/usr/bin/env bash\n{PACKAGE}"),
    ):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
    (tmp_path / "harness/cachewitness").mkdir(parents=True)
    (tmp_path / "harness/cachewitness/__init__.py").write_bytes(
        (ROOT / "harness/cachewitness/__init__.py").read_bytes()
    )
    return tmp_path


def run(job: str, checkout: Path, tag: str) -> subprocess.CompletedProcess[str]:
    own = {
        "GITHUB_REF_NAME": tag,
        "NOTES": str(checkout / "notes"),
        "CACHEWITNESS_DIST": str(checkout / "dist"),
    }
    return subprocess.run(
        ["bash", "-c", script(job)],
        cwd=checkout,
        env=os.environ | own,
        capture_output=True,
        text=True,
    )


def test_the_tag_of_this_version_is_tested_and_built(checkout: Path) -> None:
    ran = run("build", checkout, f"v{__version__}")
    assert ran.returncode == 0, ran.stderr
    assert (checkout / "notes").read_text() == "tests\npackage\n"


@pytest.mark.parametrize("tag", [__version__, f"v{__version__}.1", "v", ""])
def test_another_tag_builds_nothing(tag: str, checkout: Path) -> None:
    assert run("build", checkout, tag).returncode != 0
    assert not (checkout / "notes").exists()


def test_a_failure_of_the_tests_builds_nothing(checkout: Path) -> None:
    (checkout / ".ci/run").write_text("exit 1\n")
    assert run("build", checkout, f"v{__version__}").returncode != 0
    assert not (checkout / "dist").exists()


def test_only_distributions_are_left_to_be_published(checkout: Path) -> None:
    """PyPI takes nothing else: the bill of materials is moved aside."""
    assert run("build", checkout, f"v{__version__}").returncode == 0
    assert run("publish", checkout, f"v{__version__}").returncode == 0
    assert {path.suffix for path in (checkout / "dist").iterdir()} == {".whl", ".gz"}
    assert (checkout / "bill/sbom.json").exists()


def test_only_the_job_that_publishes_may_get_a_token_and_it_runs_nothing_of_the_checkout() -> None:
    """What is built cannot publish itself: the build has no right to the token, and publishing
    checks nothing out.
    """
    build = WORKFLOW["jobs"]["build"]
    publish = WORKFLOW["jobs"]["publish"]
    assert WORKFLOW["permissions"] == {"contents": "read"} and "permissions" not in build
    assert publish["permissions"] == {"id-token": "write"} and publish["needs"] == "build"
    used = [step.get("uses", "").partition("@")[0] for step in publish["steps"]]
    assert "actions/checkout" not in used and used[-1] == "pypa/gh-action-pypi-publish"
    assert not any("with" in step and "password" in step["with"] for step in publish["steps"])
    (kept,) = [
        step["with"]
        for step in build["steps"]
        if step.get("uses", "").startswith("actions/upload-artifact")
    ]
    (taken,) = [
        step["with"]
        for step in publish["steps"]
        if step.get("uses", "").startswith("actions/download-artifact")
    ]
    assert kept == taken
