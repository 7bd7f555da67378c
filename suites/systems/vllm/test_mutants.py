"""Faults patched into a real vLLM are found too, as named in advance; without them the same trace
passes.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`.
"""

from __future__ import annotations

import pytest

from benchmarks.vllm_hunt import hunt
from cachewitness._util.data import fixtures
from cachewitness.core.driving import drive
from cachewitness.core.trace_format import load
from cachewitness.engines.faults import all_mutants
from cachewitness.engines.mutant import Mutant
from cachewitness.engines.registry import parse
from cachewitness.engines.source_patch import ACTIVE
from cachewitness.sessions.run.lockstep import NAME as DIFFERENTIAL
from cachewitness.systems.vllm.reference.policy import default_configurations
from cachewitness.workloads.generate import random_trace
from cachewitness_faults.vllm.faults import FAULTS, kind_of
from suites.support.real_vllm import REAL, SOURCE, needs_vllm

SHARED = [mutant for mutant in all_mutants().values() if "vllm" in mutant.engines]
SHARED_MIN, OWN_MIN, SHIPPED_MIN, IMITATED_MAX = 6, 60, 40, 6
SCHEDULER_MIN, WORKER_MIN, CONNECTOR_MIN = 12, 14, 6
BUDGET = 60.0


class Noted:
    """Takes note of the pieces of source that a fault replaces; it has no way to replace a
    method.
    """

    def __init__(self) -> None:
        self.pieces: list[tuple[str, ...]] = []

    def text(self, *edit: str) -> None:
        """Take note of a piece."""
        self.pieces.append(edit)


def test_there_are_enough_faults_of_every_kind_and_none_is_left_to_the_differential() -> None:
    kinds = [kind_of(fault) for fault in FAULTS.values()]
    assert len(SHARED) >= SHARED_MIN
    assert len(kinds) >= OWN_MIN
    assert kinds.count("shipped") >= SHIPPED_MIN
    assert kinds.count("scheduler") >= SCHEDULER_MIN
    assert kinds.count("connector") >= CONNECTOR_MIN
    assert kinds.count("worker") >= WORKER_MIN
    assert kinds.count("imitated") <= IMITATED_MAX
    above = ("scheduler", "connector", "worker")
    assert all(fault.level == "scheduler" for fault in FAULTS.values() if kind_of(fault) in above)
    assert all(fault.checker != DIFFERENTIAL for fault in FAULTS.values())
    assert all(
        fault.mirrors for fault in FAULTS.values() if kind_of(fault) in ("shipped", "imitated")
    )


def test_a_shipped_fault_is_vllm_s_source_with_a_fix_undone_and_nothing_else() -> None:
    """No method is replaced by one of ours: the fault is where the fix was made."""
    for fault in FAULTS.values():
        if kind_of(fault) in ("shipped", "worker"):
            edits = Noted()
            fault.plant.fault(edits)  # type: ignore[attr-defined]
            assert edits.pieces
            assert all(module and name and old != new for module, _, name, old, new in edits.pieces)


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(mutant, marks=REAL, id=mutant.name) for mutant in [*SHARED, *FAULTS.values()]],
)
def test_fault_in_vllm_is_killed_as_named_and_the_trace_is_clean_without_it(mutant: Mutant) -> None:
    assert hunt(mutant, SOURCE, BUDGET).trace, f"{mutant.name} survived"


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
@needs_vllm
def test_fault_ends_with_the_engine_that_has_it() -> None:
    fault = FAULTS["vllm-block-leaked"]
    trace = random_trace(default_configurations()[0].shape("manager"), 0, withdraw=False)

    def findings(engine: str) -> list[bool]:
        return [
            fault.names(finding)
            for finding in drive(trace, parse(engine).open(trace.header), keep=False).findings
        ]

    assert any(findings(f"vllm:source={SOURCE},mutant={fault.name}"))
    assert not findings(f"vllm:source={SOURCE}")
    parse(f"vllm:source={SOURCE},mutant={fault.name}").open(trace.header)
    assert not findings(f"vllm:source={SOURCE}")
    ACTIVE.undo()


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
@needs_vllm
def test_what_the_soak_found_in_vllm_is_found_again_and_the_reference_survives_it() -> None:
    trace = load(fixtures() / "findings" / "copy-of-an-unwritten-block-sizes-differ.jsonl")
    found = drive(trace, parse(f"vllm:source={SOURCE}").open(trace.header)).findings
    assert [finding.anomaly for finding in found] == ["stale-hit", "partial-commit"]
    assert drive(trace, parse("reference").open(trace.header)).findings == []
