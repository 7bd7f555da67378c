"""The table of what an engine owes: its faults are seeded, and kill what it says."""

from __future__ import annotations

import re

import pytest

from cachewitness._util import plugins
from cachewitness.engines.faults import ENGINE_GROUP, all_mutants, of_engine
from cachewitness_faults.vllm.faults import FAULTS
from suites.support.checkout import ROOT

PAGE = (ROOT / "docs" / "soundness.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## What an engine owes")[2].partition("\n## ")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TABLE.splitlines()
    if line.startswith("| ") and not line.startswith("| kind")
]
SHOWN_ON_OTHERS = {"repeats"}
"""Only engines that tell no pages owe these; vLLM's are judged by their pages."""


def engines() -> dict[str, tuple[str, str]]:
    """Return by fault: the engine or policy that it is planted into, and its anomaly."""
    faults = {name: (fault.policy, fault.anomaly) for name, fault in all_mutants().items()}
    for engine in {entry.name for entry in plugins.every(ENGINE_GROUP)}:
        faults |= {name: (engine, fault.anomaly) for name, fault in of_engine(engine).items()}
    return faults


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_kind_has_faults_in_two_engines_of_which_one_is_not_vllm(row: list[str]) -> None:
    """With the anomaly that the row names."""
    kind, _, anomalies, ours, others = row
    catalogue = engines()
    vllm = [catalogue[name] for name in re.findall(r"`([^`]+)`", ours)]
    rest = [catalogue[name] for name in re.findall(r"`([^`]+)`", others)]
    assert {anomaly for _, anomaly in vllm + rest} <= set(anomalies.split(", "))
    assert {engine for engine, _ in vllm} == (set() if kind in SHOWN_ON_OTHERS else {"vllm"})
    assert rest and "vllm" not in {engine for engine, _ in rest}
    assert len({engine for engine, _ in vllm + rest}) >= 2


def test_the_table_is_there() -> None:
    assert len(ROWS) == 7


REPORTED = PAGE.partition("## Mechanisms of public reports")[2].partition("\n## ")[0]


def test_reported_mechanisms_name_faults_and_tests_that_there_are() -> None:
    """Each row has a test at least."""
    rows = [line.strip("|").split("|") for line in REPORTED.splitlines() if line.startswith("| ")]
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "suites").rglob("*.py"))
    known = {*engines(), *FAULTS}
    assert len(rows) == 16
    for _, _, faults, tests in rows[1:]:
        assert {*re.findall(r"`([^`]+)`", faults)} <= known
        names = re.findall(r"`([^`]+)`", tests)
        assert names and all(f"def {name}(" in sources for name in names)
