"""The stored traces of real faults: the reference survives each, and the releases of vLLM that have
the fault do not.

Those in the folder `mutants` are witnesses of seeded faults; suites/sessions/mutants replays them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cachewitness._util import data
from cachewitness.core.driving import drive
from cachewitness.core.trace_format import load
from cachewitness.engines.registry import parse
from suites.support.real_vllm import REAL, SOURCE

TRACES = sorted((data.fixtures() / "traces").glob("*.jsonl"))

FAULTS = {
    "a-salt-that-is-an-adapters-name": ("cross-identity-hit", (0, 24), (0, 31)),
    "copy-of-an-unwritten-block": ("stale-hit", (0, 26), None),
    "copy-of-a-block-that-the-step-fills": ("stale-hit", (0, 26), None),
    "eagle-chunk-off-the-grid": ("fabricated-snapshot", (0, 24), (0, 27)),
    "keys-of-a-withdrawn-step": ("uncommitted-hit", (0, 24), None),
}
"""Per trace: the anomaly, the first release seen with it, the first seen without it again."""


def test_every_trace_is_known() -> None:
    assert {path.stem for path in TRACES} == set(FAULTS)


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_the_reference_survives(path: Path) -> None:
    trace = load(path)
    result = drive(trace, parse("reference").open(trace.header))
    assert result.findings == [] and result.activity.operations == len(trace.ops)


@pytest.mark.parametrize("path", [pytest.param(path, marks=REAL, id=path.stem) for path in TRACES])
def test_a_release_of_vllm_fails_as_it_was_seen_to(path: Path) -> None:
    trace = load(path)
    engine = parse(f"vllm:source={SOURCE},withdraw=yes").open(trace.header)
    release = tuple(int(part) for part in engine.describe().engine_version.split(".")[:2])
    anomaly, first, mended = FAULTS[path.stem]
    found = [finding.anomaly for finding in drive(trace, engine).findings]
    assert (anomaly in found) == (first <= release and (mended is None or release < mended))
