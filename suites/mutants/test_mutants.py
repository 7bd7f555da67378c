"""Who kills whom: every seeded fault is found, by the checker and as the anomaly that it names in advance.

A kill counts only on a workload that was not written for the fault, and only if the same trace passes on the engine without
the fault. The differential does not count, except for the one fault that only it can see.
"""

from __future__ import annotations

import functools
import itertools
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.anomalies import CATALOGUE
from harness.cells import default_cells, scheduler_cells
from harness.checkers import ALL
from harness.cli import invoke
from harness.data import fixtures
from harness.engines.registry import parse
from harness.execute import drive
from harness.generate import random_trace
from harness.lockstep import NAME as DIFFERENTIAL
from harness.lockstep import lockstep
from harness.mutants import all_mutants
from harness.scenarios import SCENARIOS
from harness.shrink import shrink
from harness.trace import Height, Trace
from harness.verdict import Finding, Result

MUTANTS = [mutant for mutant in all_mutants().values() if "reference" in mutant.engines]
OPERATIONS_MAX = 12


def generic_traces(height: Height) -> Iterator[Trace]:
    """Yield what every run of every engine gets: the scenarios, then random workloads, on every configuration."""
    cells = [*scheduler_cells(), *default_cells()]
    for number in itertools.count(-1):
        for cell in [cell for cell in cells if cell.runs_at(height)]:
            shape = cell.shape(height)
            if number < 0:
                yield from (scenario.trace(shape) for scenario in SCENARIOS if scenario.applies(shape))
            elif number < 3:
                yield random_trace(shape, number, withdraw=False)
            else:
                return


def judged(trace: Trace, mutant: str = "") -> Result:
    engine = parse(f"reference:mutant={mutant}" if mutant else "reference").open(trace.header)
    paired = bool(mutant) and all_mutants()[mutant].checker == DIFFERENTIAL
    run = lockstep if paired else drive

    def named(finding: Finding) -> bool:
        return (finding.anomaly, finding.checker) == (all_mutants()[mutant].anomaly, all_mutants()[mutant].checker)

    return run(trace, engine, until=named if mutant else None, keep=False)


def killing(result: Result, mutant: str) -> Finding | None:
    """Return the finding that the fault named in advance."""
    named = all_mutants()[mutant]
    return next((f for f in result.findings if (f.anomaly, f.checker) == (named.anomaly, named.checker)), None)


@functools.cache
def kill(mutant: str) -> tuple[Trace, Finding]:
    """Return the first generic trace that kills the fault."""
    for trace in generic_traces(all_mutants()[mutant].height):
        finding = killing(judged(trace, mutant), mutant)
        if finding is not None:
            return trace, finding
    raise AssertionError(f"{mutant} survived every generic workload")


@pytest.mark.parametrize("mutant", [mutant.name for mutant in MUTANTS])
def test_fault_is_killed_as_named_in_advance_and_the_trace_is_clean_without_it(mutant: str) -> None:
    trace, finding = kill(mutant)
    assert finding.sentence.startswith("Let ") and finding.sentence.endswith(": a contradiction.")
    assert judged(trace).findings == []


@pytest.mark.parametrize("mutant", [mutant.name for mutant in MUTANTS])
def test_witness_shrinks_to_a_dozen_operations(mutant: str) -> None:
    trace, _ = kill(mutant)

    def fails(candidate: Trace) -> int:
        found = killing(judged(candidate, mutant), mutant)
        return found.op if found else -1

    small = shrink(trace, fails, seconds=60.0)
    assert len(small.ops) <= OPERATIONS_MAX
    assert fails(small) == len(small.ops) - 1


@pytest.mark.parametrize("mutant", [mutant.name for mutant in MUTANTS])
def test_command_line_exits_1_and_prints_a_witness_that_replays(
    mutant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    suite = "scheduler" if all_mutants()[mutant].height == "scheduler" else "invariants"
    suite = "differential" if all_mutants()[mutant].checker == DIFFERENTIAL else suite
    code = invoke(["run", "--engine", f"reference:mutant={mutant}", "--suite", suite, "--fail-fast"])
    output = capsys.readouterr().out
    assert code == 1, output
    assert "a contradiction" in output.replace("\n", " ")
    command = next(line for line in output.splitlines() if line.startswith("replay: cachewitness "))
    assert invoke(shlex.split(command)[2:]) == 1


def test_every_checker_has_a_fault_that_it_kills() -> None:
    killers = {mutant.checker for mutant in all_mutants().values()}
    assert {checker.name for checker in ALL} | {DIFFERENTIAL} <= killers


def test_every_anomaly_has_a_killed_fault_and_a_lawful_look_alike() -> None:
    assert {anomaly.name for anomaly in CATALOGUE} == {mutant.anomaly for mutant in MUTANTS}
    stories = "\n".join(path.read_text() for path in (fixtures() / "histories" / "legal").glob("*"))
    for anomaly in CATALOGUE:
        if anomaly.name not in ("died", "divergence"):  # these two have no history: tests of their own show what is lawful
            assert f"looks like: {anomaly.name}" in stories, anomaly.name
