"""The shell steps of the CI templates, run against a small fork: what they write, what they call,
with what they exit.

Installing is left out: `pip`, `git` and `buildkite-agent` are stand-ins that note how they were
called, and the gate is one that ends as it is told to. Then the same steps call the gate itself, on
a fork whose release is known for something, as it is and with a change.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from suites.support.forked import EARLY, FORGETFUL, ROOT, make_fork, surroundings

GATED = """#!/usr/bin/env bash
exec bash {gate} fork --suite invariants --layout full-swa --option retention_interval=0
"""
"""A gate of the fork, whatever engine the template names."""
KNOWN = "*:*@full-swa*  premature-release  # a window is given back early\n"
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


def first_steps(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the steps up to the gate: those behind it run however it ended."""
    return [step for step in steps if not str(step.get("if", "")).startswith("always()")]


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
        steps = first_steps(whole["jobs"]["gate"]["steps"])
        variables = whole["env"]
        return (
            "\n".join(["git clone", *(step["run"] for step in steps if "run" in step)]),
            variables,
        )
    steps = first_steps(read("ci/action/action.yml")["runs"]["steps"])
    given = {"FORK_OF": "0.33.0", "CACHEWITNESS_SECONDS": "60", "ENGINE": "vllm:source=."}
    named = {name for step in steps for name in step.get("env", {})}
    assert named == set(given) and all(
        step.get("shell") == "bash" for step in steps if "run" in step
    )
    return "\n".join(step["run"] for step in steps if "run" in step), given


class Ran(NamedTuple):
    """What came of the steps: the exit code, what was printed, and what the stand-ins noted."""

    code: int
    out: str
    notes: str


def run_steps(template: str, folder: Path, fork: Path, gate: str, **more: str) -> Ran:
    """Run the steps of a template at the root of a fork, where `gate` stands for ci/gate.sh."""
    steps, variables = script(template)
    tools = folder / "bin"
    notes = folder / "notes"
    for made in (fork / "vllm", fork / "ci" / "action", tools):
        made.mkdir(parents=True, exist_ok=True)
    for path in (folder / "gate.sh", fork / "ci" / "gate.sh"):
        path.write_text(gate)
        path.chmod(0o755)
    for name, body in STANDINS.items():
        (tools / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tools / name).chmod(0o755)
    own = {
        "NOTES": str(notes),
        "GATE": str(folder / "gate.sh"),
        "GITHUB_ACTION_PATH": str(fork / "ci/action"),
    }
    path = {"PATH": f"{tools}:{os.environ['PATH']}"}
    ran = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", steps],
        cwd=fork,
        env=surroundings(fork) | variables | own | more | path,
        capture_output=True,
        text=True,
    )
    return Ran(ran.returncode, ran.stdout + ran.stderr, notes.read_text())


@pytest.mark.parametrize("ends", [0, 1, 5])
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_gates_the_fork_and_ends_as_the_gate_does(
    template: str, ends: int, tmp_path: Path
) -> None:
    fork = tmp_path / "fork"
    ran = run_steps(template, tmp_path, fork, GATE, ENDS=str(ends))
    notes = ran.notes
    assert ran.code == ends, ran.out
    assert (
        "gate vllm:source=. for 60 s" in notes
        and "pip install" in notes
        and "torch==2.13.0" in notes
    )
    version: dict[str, Any] = {}
    exec((fork / "vllm/_version.py").read_text(), version)
    assert (version["__version__"], version["__version_tuple__"]) == ("0.33.0", (0, 33, 0))
    if template == "buildkite":
        assert f"--style {'error' if ends else 'success'} # said" in notes


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_version_that_is_there_stays_and_an_empty_one_is_not_written(
    template: str, tmp_path: Path
) -> None:
    for name, there, fork_of in (("built", "mine", "0.33.0"), ("bare", "", "")):
        version = tmp_path / name / "fork" / "vllm" / "_version.py"
        if there:
            version.parent.mkdir(parents=True)
            version.write_text(there)
        ran = run_steps(
            template, tmp_path / name, tmp_path / name / "fork", GATE, ENDS="0", FORK_OF=fork_of
        )
        assert ran.code == 0, ran.out
        assert (version.read_text() if version.exists() else "") == there


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_release_is_green_as_it_is_and_a_change_is_red_and_shown_first(
    template: str, tmp_path: Path
) -> None:
    """No template names a list: what the release is known for comes by itself."""
    gate = GATED.format(gate=ROOT / "ci" / "gate.sh")
    for name, change, code in (("clean", None, 0), ("changed", FORGETFUL, 1)):
        fork = make_fork(tmp_path / name / "fork", EARLY, known=KNOWN)
        if change:
            change.plant(fork / "forked_vllm")
        ran = run_steps(template, tmp_path / name, fork, gate)
        summary = (fork / "cachewitness-artefacts" / "summary.md").read_text()
        assert ran.code == code, ran.out
        known = summary.index("known of fork 1.0: ")
        assert (f"FAIL  {FORGETFUL.anomaly}" in summary[:known]) == bool(change)
        assert "FAIL  premature-release" not in summary


def test_a_container_gates_what_is_mounted(tmp_path: Path) -> None:
    """Its entry point is the gate, called from a folder that is not the fork, with artefacts in
    another.
    """
    text = (ROOT / "ci/examples/Containerfile").read_text()
    (entry,) = re.findall(r'^ENTRYPOINT \["/opt/cachewitness/(.*)"\]$', text, re.MULTILINE)
    assert "ENV CACHEWITNESS_ARTEFACTS=/artefacts" in text
    for name, change, code in (("clean", None, 0), ("changed", FORGETFUL, 1)):
        fork = make_fork(tmp_path / name / "fork", EARLY, known=KNOWN)
        if change:
            change.plant(fork / "forked_vllm")
        home = tmp_path / name / "home"
        home.mkdir()
        artefacts = tmp_path / name / "artefacts"
        options = ("--suite", "invariants", "--layout", "full-swa", "--option")
        ran = subprocess.run(
            ["bash", str(ROOT / entry), "fork", *options, "retention_interval=0"],
            cwd=home,
            env=surroundings(fork, CACHEWITNESS_ARTEFACTS=str(artefacts)),
            capture_output=True,
            text=True,
        )
        assert ran.returncode == code, ran.stdout + ran.stderr
        assert "known of fork 1.0: " in (artefacts / "summary.md").read_text()
