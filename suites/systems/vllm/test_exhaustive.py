"""A real vLLM is led through every state that its reference has within a bound, and a fault in it
is found on the way.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`.
"""

from __future__ import annotations

import pytest

from cachewitness.core.trace_format import Level
from cachewitness.engines.registry import parse
from cachewitness.sessions.fuzz.exhaustive import search
from cachewitness.sessions.fuzz.scope import CONFIGURATIONS, Bound
from suites.support.real_vllm import REAL, SOURCE

pytestmark = REAL

BOUND = Bound(requests=1, pages=4)


@pytest.mark.parametrize("level", ["manager", "scheduler"])
def test_it_passes_whatever_is_asked_in_whatever_state(level: Level) -> None:
    plain = [one for one in CONFIGURATIONS if not one.options.get("tier_pages")]
    coverage = search(parse(f"vllm:source={SOURCE}"), BOUND, plain, [level], processes=1)
    assert coverage.complete and coverage.hits > 0
    assert all(len(covered.states) >= 10 for covered in coverage.covered)
    assert {one.what for one in coverage.not_run} == {"withdraw"}


def test_a_tier_of_the_reference_is_not_vllms() -> None:
    """It has connectors, which are named by an option of the engine; the configuration is left
    out and told.
    """
    tiered = [one for one in CONFIGURATIONS if one.options.get("tier_pages")]
    coverage = search(parse(f"vllm:source={SOURCE}"), BOUND, tiered, ["scheduler"], processes=1)
    assert not coverage.covered and not coverage.hits and len(coverage.not_run) == len(tiered)


@pytest.mark.parametrize(
    ("mutant", "anomaly", "configuration", "blocks"),
    [
        ("vllm-tail-keyed-early", "partial-commit", 0, 1),
        ("vllm-null-published", "fabricated-snapshot", 4, 2),
        ("vllm-boundaries-dropped", "lost-shared-prefix-boundary", 4, 2),
        ("vllm-window-released-early", "premature-release", 2, 2),
    ],
)
def test_a_fault_is_found_and_the_trace_is_short(
    mutant: str, anomaly: str, configuration: int, blocks: int
) -> None:
    bound = Bound(requests=1, blocks=blocks, pages=7)
    engine = parse(f"vllm:source={SOURCE},mutant={mutant}")
    coverage = search(
        engine, bound, CONFIGURATIONS[configuration : configuration + 1], ["manager"], processes=1
    )
    assert coverage.failure is not None and coverage.failure.finding.anomaly == anomaly
    assert len(coverage.failure.shrunk.ops) <= 6
