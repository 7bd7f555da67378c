"""Who kills whom: every seeded fault is found, by the checker and as the anomaly that it names in
advance.

Here each fault's stored witness is replayed; `cachewitness mutants` hunts all of them again with
the workloads that every engine gets (`ci/stage_mutants.sh`). The differential does not count.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from xml.etree import ElementTree

import pytest

from cachewitness._util.data import fault_traces, fixtures
from cachewitness.cli import invoke
from cachewitness.core.checkers import ALL
from cachewitness.core.checkers.anomalies import CATALOGUE, DISAGREEMENTS
from cachewitness.core.trace_format import load
from cachewitness.engines.faults import all_mutants
from cachewitness.engines.mutant import GROUPS, Mutant
from cachewitness.engines.policy import names
from cachewitness.sessions.mutants.hunt import Hunt, hunt, judged, killed
from cachewitness.sessions.mutants.minimal_trace import path_of
from cachewitness.workloads.anomaly_examples import NO_STORY
from cachewitness_faults.sample.server_faults import FAULTS
from cachewitness_faults.vllm.faults import FAULTS as REAL_FAULTS

MUTANTS = all_mutants()
ELSEWHERE = ("statistics",)
"""Checkers of what the references do not tell: `suites/engines` kills their faults in a real vLLM.
"""
EVERYWHERE = [
    *MUTANTS.values(),
    *FAULTS.values(),
    *(fault for fault in REAL_FAULTS.values() if fault.checker in ELSEWHERE),
]
"""With those of the engine that only answers, which `suites/answers` kills."""
WITNESSED_MIN = 44
OPERATIONS_MEDIAN_MAX = 8
HUNTED = (
    "null-block-published",
    "lookup-one-unit-short",
    "block-leaked",
    "edge-capture-rewritten",
    "lmcache-null-blocks-stored",
)
"""Faults of which the whole hunt is run here: each is killed by the first few traces."""
SHOWN = {
    "last-token-hit": "invariants",
    "drafts-published": "scheduler",
    "shared-prefix-boundary-forgotten": "invariants",
}
"""Faults that the command `run` is shown with, and the suite that has them."""


def needs_torch(name: str) -> None:
    if MUTANTS[name].engine == "toy" and find_spec("torch") is None:
        pytest.skip("torch is missing: pip install 'cachewitness[toy]'")


@pytest.mark.parametrize("name", MUTANTS)
def test_witness_fails_with_the_fault_as_named_and_passes_without(name: str) -> None:
    needs_torch(name)
    mutant = MUTANTS[name]
    trace = load(path_of(MUTANTS[name]))
    assert (trace.header.name, trace.header.policy) == (name, mutant.policy)
    finding = killed(mutant, trace)
    assert finding is not None and finding.op == len(trace.ops) - 1
    assert finding.sentence.startswith("Let ") and finding.sentence.endswith(": a contradiction.")
    assert judged(mutant, trace, faulty=False).findings == []


def test_every_witness_is_of_a_fault() -> None:
    assert {path.stem for path in fault_traces().glob("*")} == set(MUTANTS)


def test_witnesses_are_small() -> None:
    sizes = [len(load(path_of(mutant)).ops) for mutant in MUTANTS.values()]
    assert median(sizes) <= OPERATIONS_MEDIAN_MAX


@pytest.mark.parametrize("name", HUNTED)
def test_fault_is_killed_by_what_every_engine_gets(name: str) -> None:
    found = hunt(MUTANTS[name], budget=30.0)
    assert found.finding is not None and found.trace is not None and not found.false_alarms
    assert judged(MUTANTS[name], found.trace, faulty=False).findings == []


@pytest.mark.parametrize("name", SHOWN)
def test_command_line_exits_1_and_prints_a_witness_that_replays(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = invoke(
        ["run", "--engine", f"reference:mutant={name}", "--suite", SHOWN[name], "--fail-fast"]
    )
    output = capsys.readouterr().out
    assert code == 1, output
    assert "a contradiction" in output.replace("\n", " ")
    command = next(line for line in output.splitlines() if line.startswith("replay: cachewitness "))
    assert invoke(shlex.split(command)[2:]) == 1


def test_there_are_faults_of_every_mechanism_and_every_policy() -> None:
    assert len(MUTANTS) >= WITNESSED_MIN
    assert {mutant.group for mutant in MUTANTS.values()} == set(GROUPS)
    of_policy = [mutant.policy for mutant in MUTANTS.values()]
    assert all(of_policy.count(policy) >= 3 for policy in names())


def test_every_checker_has_a_fault_that_it_kills() -> None:
    killers = {mutant.checker for mutant in EVERYWHERE}
    assert {checker.name for checker in ALL} <= killers


def test_every_anomaly_has_a_killed_fault_and_a_lawful_look_alike() -> None:
    named = {mutant.anomaly for mutant in EVERYWHERE}
    known = {anomaly.name for anomaly in CATALOGUE} - {
        "divergence",
        "hung",
    }  # of the lock-step and of child processes
    assert known <= named <= {anomaly.name for anomaly in CATALOGUE + DISAGREEMENTS}
    stories = "\n".join(path.read_text() for path in (fixtures() / "histories" / "legal").glob("*"))
    for anomaly in CATALOGUE:
        if anomaly.name not in {
            "engine-crashed",
            *NO_STORY,
        }:  # no history: tests of their own show what is lawful
            assert f"looks like: {anomaly.name}" in stories, anomaly.name


def test_command_prints_rows_and_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    code = invoke(
        ["mutants", "--mutant", "block-leaked", "--tensor-seconds", "0", "--jobs", "1", "--json"]
    )
    document = json.loads(capsys.readouterr().out)
    (row,) = document["rows"]
    assert code == 0 and document["survivors"] == []
    assert (row["mutant"], row["killed"], row["group"]) == ("block-leaked", True, "H")
    assert "ownership" in row["detectors"]["invariants"] and row["detectors"]["score"] == "not run"


def test_command_draws_what_it_hunted_and_says_how_far_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "kills.svg"
    hunted = [
        "--mutant",
        "block-leaked",
        "--mutant",
        "null-block-published",
        "--tensor-seconds",
        "0",
        "--jobs",
        "1",
    ]
    assert invoke(["mutants", *hunted, "--chart", str(target)]) == 0
    titles = [
        element.text
        for element in ElementTree.parse(target).iter("{http://www.w3.org/2000/svg}title")
    ]
    assert "H, ownership: 1 of 1\nblock-leaked" in titles
    first, last = capsys.readouterr().err.splitlines()
    assert (
        "killed in" in first and "(1 of 2, about " in first and "(2 of 2, about 0 s left)" in last
    )


def test_command_ends_with_1_if_a_fault_survives(capsys: pytest.CaptureFixture[str]) -> None:
    """A budget that is spent before the first trace lets everybody live."""
    code = invoke(
        [
            "mutants",
            "--mutant",
            "block-leaked",
            "--budget",
            "1e-9",
            "--tensor-seconds",
            "0",
            "--jobs",
            "1",
        ]
    )
    assert code == 1 and "SURVIVED: block-leaked" in capsys.readouterr().out


def test_every_seed_must_kill(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that lives under one seed of three is a survivor, and the seed is named."""

    def unlucky(mutant: Mutant, budget: float, seed: int = 0) -> Hunt:
        found = hunt(mutant, budget, seed)
        return replace(found, trace=None, finding=None) if seed == 2 else found

    monkeypatch.setattr("cachewitness.sessions.mutants.matrix.hunt", unlucky)
    asked = [
        "mutants",
        "--mutant",
        "block-leaked",
        "--tensor-seconds",
        "0",
        "--jobs",
        "1",
        "--seeds",
    ]
    assert invoke([*asked, "2"]) == 0
    assert "under each of 2 seeds" in capsys.readouterr().out
    assert invoke([*asked, "3"]) == 1
    output = capsys.readouterr().out
    assert "SURVIVED: block-leaked, under seed 2" in output and "2/3" in output


def test_command_ends_with_5_if_a_fault_could_not_be_hunted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of a device without torch: nobody knows whether it would have been found."""
    monkeypatch.setattr("cachewitness.sessions.mutants.matrix.find_spec", lambda name: None)
    code = invoke(["mutants", "--mutant", "conv-state-lost", "--jobs", "1"])
    assert code == 5 and "not run: conv-state-lost: torch is missing" in capsys.readouterr().out


def test_a_fault_that_ends_the_process_of_its_hunt_was_not_hunted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice; and what came of the others is told."""

    def deadly(mutant: Mutant, budget: float, seed: int = 0) -> Hunt:
        if mutant.name == "block-leaked":
            os.kill(os.getpid(), signal.SIGKILL)
        return hunt(mutant, budget, seed)

    monkeypatch.setattr("cachewitness.sessions.mutants.matrix.hunt", deadly)
    asked = [
        "--mutant",
        "block-leaked",
        "--mutant",
        "window-freed-early",
        "--tensor-seconds",
        "0",
        "--jobs",
        "2",
    ]
    code = invoke(["mutants", *asked])
    output = capsys.readouterr().out
    assert code == 5 and "1 of 1 faults killed" in output
    assert "not run: block-leaked: a process of the run was ended by signal 9" in output


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--mutant", "block-leakd"], "did you mean 'block-leaked'?"),
        (["--policy", "furios"], "did you mean 'furiosa'?"),
        (
            ["--policy", "furiosa", "--mutant", "block-leaked"],
            "none of block-leaked is of policy furiosa",
        ),
    ],
)
def test_bad_names_are_refused_in_a_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["mutants", *argv]) == 4
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_page_lists_every_fault_and_no_other() -> None:
    page = (fixtures().parent / "docs" / "results" / "kill-matrix.md").read_text()
    rows = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert rows == list(MUTANTS)
    assert "survived" not in page
