"""The document's "Verifying Correctness": a cold run, a reset of vLLM's cache alone, a second run
that LMCache serves.

The released test asks for one line of a log; here the proof is the share of prompt tokens that came
back from the tier, in every kind of group, with controls in which it must be nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cachewitness.core.driving import drive
from cachewitness.core.events import Hit, Submitted
from cachewitness.core.restored import from_tier, restored
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Reset, Trace
from cachewitness.systems.lmcache.reference.engine import open_engine
from cachewitness.workloads import layouts
from cachewitness.workloads.scenarios import SCENARIOS
from cachewitness.workloads.scenarios.shape import Shape

LAYOUTS = ("full", "full-swa", "full-mamba", "full-swa-mamba")
SHARE_MIN = 0.6
"""Of prompts of 2 to 4 blocks at least so much lies in whole chunks before the last token."""


def procedure(layout: str, **options: Any) -> Trace:
    """Return the procedure as a trace, a budget and a chunk of one block each, as the document
    recommends.
    """
    chosen = layouts.load(layout)
    unit = Shape(chosen).unit
    given = {
        "tier_pages": 400,
        "separate_object_groups": True,
        "max_num_batched_tokens": unit,
        "chunk_size": unit,
        **options,
    }
    (scenario,) = [scenario for scenario in SCENARIOS if scenario.name == "cold-then-from-tier"]
    return scenario.trace(Shape(chosen, given, "scheduler", "lmcache"))


def judged(trace: Trace) -> Result:
    """Run a trace on the reference."""
    return drive(trace, open_engine(trace.header, {}))


def shares(result: Result) -> dict[str, tuple[float, float]]:
    """Return of the second run, by group kind: the shares of its prompt tokens that were
    restored, and restored by the tier.
    """
    header = result.history.header
    again = {}
    prompts = {
        e.r: len(e.tokens)
        for e in result.history.events
        if isinstance(e, Submitted) and e.r.startswith("again")
    }
    for hit in result.history.events:
        if isinstance(hit, Hit) and hit.r in prompts:
            again[hit.r] = (restored(header, hit), from_tier(header, hit))
    asked = sum(prompts.values())
    assert set(again) == set(prompts), "every question was asked again"
    kinds = {group.kind for group in header.local_groups()}
    return {
        kind: (
            sum(everywhere[kind] for everywhere, _ in again.values()) / asked,
            sum(aside[kind] for _, aside in again.values()) / asked,
        )
        for kind in kinds
    }


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("apart", [True, False], ids=["apart", "together"])
def test_second_run_is_served_by_the_tier_in_every_group(layout: str, apart: bool) -> None:
    """Nothing contradicts a rule, and all that was restored came from the tier, the states among
    it.
    """
    result = judged(procedure(layout, separate_object_groups=apart))
    assert result.findings == []
    for kind, (everywhere, aside) in shares(result).items():
        assert everywhere == aside >= SHARE_MIN, kind


@pytest.mark.parametrize(
    "layout",
    ["gpt-oss-120b", "gemma-2-9b", "gemma-4-31b", "qwen3.5-0.8b", "deepseek-v4-flash", "qwen3-4b"],
)
def test_second_run_is_served_on_published_models(layout: str) -> None:
    """Windows, unequal blocks, states (chunk and budget are N), compressed pages: with the
    models' own groups.
    """
    result = judged(procedure(layout, tier_pages=2000))
    assert result.findings == []
    assert all(aside >= SHARE_MIN for _, aside in shares(result).values())


def test_control_without_the_reset_the_device_serves() -> None:
    """A second run that never left the device proves nothing of the tier, though it hits as
    much.
    """
    trace = procedure("full-swa-mamba", retention_interval=None)
    kept = Trace(
        msgspec.structs.replace(trace.header, pages=400),
        [op for op in trace.ops if not isinstance(op, Reset)],
    )
    for everywhere, aside in shares(judged(kept)).values():
        assert everywhere >= SHARE_MIN and aside == 0


def test_control_with_an_external_reset_nothing_is_served() -> None:
    """Step 2: omit reset_external=true, or the tier is empty as well."""
    trace = procedure("full-swa-mamba")
    emptied = trace.with_ops(Reset() if isinstance(op, Reset) else op for op in trace.ops)
    for everywhere, aside in shares(judged(emptied)).values():
        assert everywhere == aside == 0


def test_control_a_tier_without_states_serves_nothing() -> None:
    """Steps of many blocks with all groups in one object: chunks without a state are not stored,
    and the proof fails.
    """
    result = judged(
        procedure("full-mamba", separate_object_groups=False, max_num_batched_tokens=2048)
    )
    assert result.findings == [] and shares(result)["recurrent"][1] < SHARE_MIN
