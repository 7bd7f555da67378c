"""Faults patched into a real vLLM are found too, as named in advance; without them the same trace passes.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest

from harness.cells import default_cells
from harness.engines.registry import EngineSpec, parse
from harness.execute import drive
from harness.generate import random_trace
from harness.mutants import all_mutants
from harness.scenarios import SCENARIOS
from harness.trace import Trace
from harness.verdict import Finding

SOURCE = os.environ.get("CACHEWITNESS_VLLM_SOURCE", "")
MUTANTS = [mutant for mutant in all_mutants().values() if "vllm" in mutant.engines]
FAULTS_MIN = 6

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("ignore"),  # torch and vLLM warn while they are imported
    pytest.mark.skipif(
        not SOURCE or importlib.util.find_spec("torch") is None,
        reason="needs torch, and CACHEWITNESS_VLLM_SOURCE to name a folder that holds `vllm`; ci/stage_vllm.sh has both",
    ),
]


def engine(mutant: str = "") -> EngineSpec:
    return parse(f"vllm:source={SOURCE}" + (f",mutant={mutant}" if mutant else ""))


def generic_traces() -> Iterator[Trace]:
    """Yield the scenarios on every configuration, then random workloads; none of them withdraws a request."""
    for seed in range(-1, 3):
        for cell in default_cells():
            shape = cell.shape("manager")
            if seed >= 0:
                yield random_trace(shape, seed, withdraw=False)
            else:
                yield from (story.trace(shape) for story in SCENARIOS if story.applies(shape) and not story.needs)


def test_there_are_enough_faults() -> None:
    assert len(MUTANTS) >= FAULTS_MIN


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_fault_in_vllm_is_killed_as_named_and_the_trace_is_clean_without_it(mutant: object) -> None:
    assert isinstance(mutant, type(MUTANTS[0]))

    def named(finding: Finding) -> bool:
        return (finding.anomaly, finding.checker) == (mutant.anomaly, mutant.checker)

    for trace in generic_traces():
        result = drive(trace, engine(mutant.name).open(trace.header), until=named, keep=False)
        if any(map(named, result.findings)):
            assert drive(trace, engine().open(trace.header), keep=False).findings == []
            return
    pytest.fail(f"{mutant.name} survived every generic workload")
