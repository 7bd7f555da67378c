"""The shell steps of the CI templates, run against a small fork: what they write, what they call,
with what they exit.

Installing is left out: `pip`, `git` and `buildkite-agent` are stand-ins that note how they were
called, and the gate is one that ends as it is told to. The gate itself is tried in `test_gate.py`.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from suites.support.consoles import ROOT

TEMPLATES = ("action", "buildkite", "github", "gitlab")
GATE = """#!/usr/bin/env bash
echo "gate $* for ${CACHEWITNESS_SECONDS:-} s" >> "$NOTES"
mkdir -p cachewitness-artefacts && echo "# said" > cachewitness-artefacts/summary.md
exit "$ENDS"
"""
STANDINS = {
    "pip": 'echo "pip $*" >> "$NOTES"',
    "git": (
        'echo "git $*" >> "$NOTES"; mkdir -p cachewitness/ci; cp "$GATE" cachewitness/ci/gate.sh'
    ),
    "buildkite-agent": 'echo "agent $* $(cat)" >> "$NOTES"',
    "python3": "mkdir -p cachewitness-venv/bin; touch cachewitness-venv/bin/activate",
}


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def script(template: str) -> tuple[str, dict[str, str]]:
    """Return the shell steps of a template as one script, and the variables that it sets."""
    if template == "buildkite":
        whole = read("ci/examples/buildkite-step.yml")
        return whole["steps"][0]["command"].replace("$$", "$"), whole["env"]
    if template == "gitlab":
        job = read("ci/examples/gitlab-job.yml")["cachewitness"]
        return "\n".join(job["script"]), job["variables"]
    if template == "github":
        whole = read("ci/examples/github-workflow.yml")
        steps = whole["jobs"]["gate"]["steps"]
        variables = whole["env"]
        return (
            "\n".join(["git clone", *(step["run"] for step in steps if "run" in step)]),
            variables,
        )
    steps = read("ci/action/action.yml")["runs"]["steps"]
    given = {"FORK_OF": "0.33.0", "CACHEWITNESS_SECONDS": "60", "ENGINE": "vllm:source=."}
    named = {name for step in steps for name in step.get("env", {})}
    assert named == set(given) and all(
        step.get("shell") == "bash" for step in steps if "run" in step
    )
    return "\n".join(step["run"] for step in steps if "run" in step), given


@pytest.mark.parametrize("ends", [0, 1, 5])
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_gates_the_fork_and_ends_as_the_gate_does(
    template: str, ends: int, tmp_path: Path
) -> None:
    steps, variables = script(template)
    fork = tmp_path / "fork"
    tools = tmp_path / "bin"
    notes = tmp_path / "notes"
    for folder in (fork / "vllm", fork / "ci" / "action", tools):
        folder.mkdir(parents=True)
    for gate in (tmp_path / "gate.sh", fork / "ci" / "gate.sh"):
        gate.write_text(GATE)
        gate.chmod(0o755)
    for name, body in STANDINS.items():
        (tools / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tools / name).chmod(0o755)
    own = {
        "NOTES": str(notes),
        "GATE": str(tmp_path / "gate.sh"),
        "ENDS": str(ends),
        "GITHUB_ACTION_PATH": str(fork / "ci/action"),
    }
    surroundings = os.environ | variables | own | {"PATH": f"{tools}:{os.environ['PATH']}"}
    ran = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", steps],
        cwd=fork,
        env=surroundings,
        capture_output=True,
        text=True,
    )
    said = notes.read_text()
    assert ran.returncode == ends, ran.stderr
    assert (
        "gate vllm:source=. for 60 s" in said and "pip install" in said and "torch==2.13.0" in said
    )
    version: dict[str, Any] = {}
    exec((fork / "vllm/_version.py").read_text(), version)
    assert (version["__version__"], version["__version_tuple__"]) == ("0.33.0", (0, 33, 0))
    if template == "buildkite":
        assert f"--style {'error' if ends else 'success'} # said" in said
