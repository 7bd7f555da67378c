"""Blocks of full attention that lie in parts on several ranks, on vLLM's own classes: as released
nothing is found, and faults in how they are counted are.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from msgspec.structs import replace

from cachewitness._util.errors import UsageError
from cachewitness.core.driving import drive
from cachewitness.core.events import StepBegin
from cachewitness.core.trace_format import Layout, Level, Step, Submit, Trace, TraceHeader
from cachewitness.engines.mutant import Mutant
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness_faults.vllm.faults import OVER_RANKS, needs
from suites.support.real_vllm import REAL, SOURCE

pytestmark = REAL

CONFIGURATIONS = [
    Configuration(layouts.load("full")),
    Configuration(layouts.load("full-mamba"), {"retention_interval": None}),
    Configuration(layouts.load("full-swa-mamba"), {"retention_interval": 0}),
    Configuration(layouts.load("full-swa"), {"retention_interval": 64}),
]
LEVELS: tuple[Level, ...] = ("manager", "scheduler")
SEEDS = 12


def over(ranks: int, more: str = "") -> EngineSpec:
    return parse(f"vllm:source={SOURCE},context_parallel={ranks}{more}")


def traces() -> Iterator[Trace]:
    for level, seed, configuration in product(LEVELS, range(SEEDS), CONFIGURATIONS):
        yield random_trace(configuration.shape(level), seed, withdraw=False)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_clean_release_passes_over_ranks(ranks: int) -> None:
    hits = 0
    for trace in list(traces())[:: 24 // ranks]:
        result = drive(trace, over(ranks).open(trace.header))
        assert result.findings == []
        hits += result.activity.hits
    assert hits


@pytest.mark.parametrize("connector", ["simple", "offloading-chunks"])
def test_a_connector_stores_and_loads_blocks_over_ranks(connector: str) -> None:
    layout = layouts.load("full-mamba")
    tiered = Configuration(layout, {"tier_pages": 48, "tier_delay": 2})
    loaded = 0
    for seed in range(3):
        trace = random_trace(tiered.shape("scheduler"), seed, withdraw=False)
        result = drive(trace, over(2, f",connector={connector}").open(trace.header))
        assert result.findings == []
        loaded += result.activity.from_tier
    assert loaded


@pytest.mark.parametrize("level", LEVELS)
def test_a_block_covers_the_tokens_of_all_ranks(level: Level) -> None:
    """40 tokens are three blocks of 16, of which each of four ranks has four tokens."""
    header = TraceHeader("t", layouts.load("full"), 9, level=level)
    step = Step([("a", 40)] if level == "manager" else [])
    result = drive(Trace(header, [Submit("a", "s:40"), step]), over(4).open(header))
    begun = [event for event in result.history.events if isinstance(event, StepBegin)]
    assert result.findings == []
    assert [len(run.tables[0]) for event in begun for run in event.runs] == [3]


@pytest.mark.parametrize("mutant", OVER_RANKS.values(), ids=lambda mutant: mutant.name)
def test_a_fault_is_found_as_named_and_the_trace_is_clean_without_it(mutant: Mutant) -> None:
    assert needs(mutant) == ",context_parallel=2"
    for trace in traces():
        found = drive(trace, over(2, f",mutant={mutant.name}").open(trace.header)).findings
        if found and (found[0].anomaly, found[0].checker) == (mutant.anomaly, mutant.checker):
            assert drive(trace, over(2).open(trace.header)).findings == []
            return
    pytest.fail(f"{mutant.name} survived")


def test_a_fault_over_ranks_is_none_without_them() -> None:
    for name in OVER_RANKS:
        trace = next(traces())
        engine = parse(f"vllm:source={SOURCE},mutant={name}")
        assert drive(trace, engine.open(trace.header)).findings == []


@pytest.mark.parametrize(
    ("layout", "more", "says"),
    [
        ("full", "context_parallel=3", "does not lie on 3 ranks in equal parts"),
        ("full", "context_parallel=1", "from 2 to 64"),
        ("full", "context_parallel=many", "from 2 to 64"),
        ("mamba", "context_parallel=2", "no full attention"),
        ("full", "context_parallel=2,tensors=float64", "not driven with tensors"),
        ("full", "context_parallel=2,sized=pages", "not driven with sized"),
    ],
)
def test_what_is_not_driven_is_one_line(layout: str, more: str, says: str) -> None:
    chosen: Layout = layouts.load("full-mamba" if layout == "mamba" else layout)
    if layout == "mamba":
        chosen = replace(chosen, name="mamba", groups=chosen.groups[1:])
    header = TraceHeader("t", chosen, 9, level="scheduler")
    with pytest.raises(UsageError, match=says):
        parse(f"vllm:source={SOURCE},{more}").open(header)
