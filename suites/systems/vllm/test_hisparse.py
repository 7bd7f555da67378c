"""vLLM's HiSparse: both pools stay sound while blocks move between them, and a fault in what moves
them is found.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.driving import drive
from cachewitness.core.events import Header, History
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Step, Submit, Trace, TraceHeader
from cachewitness.engines.export import Failed
from cachewitness.engines.mutant import Mutant
from cachewitness.engines.registry import parse
from cachewitness.workloads import layouts
from cachewitness.workloads.capabilities import fitting
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness_faults.vllm.hisparse_faults import HISPARSE, WAY_OF
from suites.support.real_vllm import REAL, SOURCE

pytestmark = REAL

LAYOUT = "full-sparse"
OPTIONS: list[dict[str, Any]] = [
    {},
    {"max_num_batched_tokens": 32},
    {"async_depth": 1},
    {"tier_pages": 16, "tier_delay": 2, "scheduling_policy": "priority"},
    {"hash_block_size": 2},
]
SEEDS, LONGEST = 12, 120
"""A trace of more operations is left out: it takes as long as all others."""


def traces(seeds: int) -> Iterator[Trace]:
    for seed in range(seeds):
        for options in OPTIONS:
            trace = random_trace(
                Configuration(layouts.load(LAYOUT), options).shape("scheduler"),
                seed,
                withdraw=False,
            )
            if len(trace.ops) <= LONGEST:
                yield trace


def run(trace: Trace, way: str, mutant: str = "") -> tuple[Result, Counter[str]]:
    """Return the result, and what the worker's part counted."""
    engine: Any = parse(f"vllm:source={SOURCE},hisparse={way}{mutant and ',mutant='}{mutant}").open(
        trace.header
    )
    try:
        return drive(fitting(trace, engine.describe().capabilities), engine, keep=False), Counter(
            engine.adapter.worker.counts
        )
    finally:
        engine.close()


@pytest.mark.parametrize("way", ["eager", "lazy"])
def test_clean_runs_move_blocks_and_break_no_rule(way: str) -> None:
    """Hits, preemptions, evictions, blocks that go to the host and are read there: none of it
    stays at nothing.
    """
    counted: Counter[str] = Counter()
    for trace in traces(5):
        result, counts = run(trace, way)
        assert result.findings == [], (trace.header.name, trace.header.options)
        done = result.activity
        counted += counts + Counter(
            hits=done.hits, preempted=done.preemptions, evicted=done.evictions
        )
    assert all(
        counted[name]
        for name in ("transfers", "mirrored", "host_reads", "hits", "preempted", "evicted")
    ), counted


@pytest.mark.parametrize("fault", HISPARSE, ids=lambda fault: fault.name)
def test_a_fault_is_killed_as_named_and_the_trace_is_clean_without_it(fault: Mutant) -> None:
    for trace in traces(SEEDS):
        result, _ = run(trace, WAY_OF[fault.name], fault.name)
        if any(map(fault.names, result.findings)):
            assert run(trace, WAY_OF[fault.name])[0].findings == []
            return
    pytest.fail(f"{fault.name} survived")


def header(
    layout: str = LAYOUT, engine: str = "hisparse=eager", level: Any = "scheduler", **options: Any
) -> Header:
    trace = Trace(
        TraceHeader("asked", layouts.load(layout), 64, level, options=options),
        [Submit("r1", "A:20"), Step()],
    )
    opened = parse(f"vllm:source={SOURCE},{engine}").open(trace.header)
    try:
        return opened.describe()
    finally:
        opened.close()


def test_groups_and_pools_are_those_that_vllm_sizes() -> None:
    """Two layers an indexer make two resident groups; the pool is the device's blocks, then the
    host's for each of them.
    """
    described = header(tier_pages=40)
    assert [(group.kind, group.block_size) for group in described.groups] == [("full", 16)] * 3
    (pool,) = described.pools
    assert (pool.pages, pool.null) == (2 * 64 + 2 * 40, [0, 128, 168])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"layout": "full-swa"}, "HiSparse wants two groups of full attention"),
        ({"engine": "hisparse=often"}, "hisparse is"),
        ({"engine": "hisparse=eager,connector=simple"}, "hisparse is not driven with connector"),
        ({"level": "manager"}, "hisparse is run at scheduler level"),
        ({"num_speculative_tokens": 2}, "not driven with drafts"),
        ({"rswa_window": 8}, "'rswa_window': HiSparse is not driven with it"),
        ({"prefill_checkpoints": 1}, "'prefill_checkpoints': HiSparse is not driven with it"),
    ],
)
def test_what_is_not_driven_is_one_line(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        header(**asked)
    assert "\n" not in str(refused.value)


def test_no_test_of_vllm_alone_is_written() -> None:
    trace = next(traces(1))
    kind = parse("vllm").kind
    assert kind.export is not None
    with pytest.raises(UsageError, match="HiSparse's two pools"):
        kind.export(
            trace,
            History(header(), []),
            Failed("stale-hit", "r1", 0, 0),
            {"source": SOURCE, "hisparse": "eager"},
        )
