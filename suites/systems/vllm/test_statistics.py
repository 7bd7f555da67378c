"""What vLLM's scheduler tells operators and clients, read from its answers, and from a real
vLLM's.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cachewitness.core.driving import drive
from cachewitness.core.events import Stats
from cachewitness.engines.registry import parse
from cachewitness.systems.vllm.configurations import connector_configurations
from cachewitness.systems.vllm.reference.policy import default_configurations
from cachewitness.systems.vllm.statistics import counts_admissions, statistics_of
from cachewitness.workloads.generate import random_trace
from suites.support.real_vllm import REAL, SOURCE


def _caching(requests: int, queries: int, hits: int, again: int) -> Any:
    caching = {"requests": requests, "queries": queries, "hits": hits}
    lost = {f"preempted_{name}": count * again for name, count in caching.items()}
    return SimpleNamespace(**caching, **lost)


def _counted(requests: int, queries: int, hits: int, again: int = 0, behind: Any = None) -> Any:
    return SimpleNamespace(
        kv_cache_usage=0.25,
        prefix_cache_stats=_caching(requests, queries, hits, again),
        connector_prefix_cache_stats=behind,
    )


def _answer(r: str, cached: int | None) -> Any:
    stats = None if cached is None else SimpleNamespace(num_cached_tokens=cached)
    return SimpleNamespace(request_id=r, prefill_stats=stats)


OUTPUTS = {
    0: SimpleNamespace(scheduler_stats=None, outputs=[_answer("a", 8), _answer("b", None)]),
    1: SimpleNamespace(scheduler_stats=_counted(2, 19, 8, again=2), outputs=[_answer("c", 0)]),
}


def test_what_any_client_is_told_comes_with_the_statistics_of_the_step() -> None:
    (event,) = statistics_of(OUTPUTS, 7, 0, admissions=True)
    again = (4, 38, 16)
    restored = [("a", 8), ("c", 0)]
    assert event == Stats(
        step=7,
        pool=0,
        usage=0.25,
        requests=2,
        looked_up=19,
        found=8,
        again=again,
        restored=restored,
    )


def test_of_a_connector_requests_that_had_been_preempted_are_told_with_the_others() -> None:
    stats = _counted(2, 19, 8, behind=_caching(2, 11, 4, again=1))
    outputs = {0: SimpleNamespace(scheduler_stats=stats, outputs=[])}
    (event,) = statistics_of(outputs, 7, 0, admissions=True)
    assert (event.found, event.tier) == (8, (4, 22, 8))


def test_of_a_release_that_counts_look_ups_whenever_they_are_made_only_use_is_read() -> None:
    assert statistics_of(OUTPUTS, 7, 0, admissions=False) == [Stats(step=7, pool=0, usage=0.25)]
    assert counts_admissions(SimpleNamespace(record_prefix_cache_stats=None))
    assert not counts_admissions(SimpleNamespace())


def test_a_step_without_statistics_tells_nothing() -> None:
    assert (
        statistics_of({0: SimpleNamespace(scheduler_stats=None, outputs=[])}, 7, 0, admissions=True)
        == []
    )


@pytest.mark.parametrize(
    "layout", [pytest.param(name, marks=REAL) for name in ("full[", "full-swa-mamba[")]
)
def test_a_real_vllm_tells_its_operators_what_happened(layout: str) -> None:
    """With hits, preemptions and requests that come back among it."""
    configuration = next(
        one
        for one in default_configurations()
        if f"{one.name}[".startswith(layout) and one.runs_at("scheduler")
    )
    events: list[Stats] = []
    for seed in range(6):
        trace = random_trace(configuration.shape("scheduler"), seed, withdraw=False)
        result = drive(trace, parse(f"vllm:source={SOURCE}").open(trace.header))
        tally = next(tally for tally in result.tallies if tally.checker == "statistics")
        assert tally.opportunities > 0 and tally.findings == 0
        events += [event for event in result.history.events if isinstance(event, Stats)]
    assert sum(event.found for event in events) > 0
    assert sum(event.again[0] for event in events) > 0
    assert {tokens > 0 for event in events for _, tokens in event.restored} == {True, False}


@pytest.mark.parametrize(
    "connector", [pytest.param(name, marks=REAL) for name in ("simple", "offloading-sync")]
)
def test_a_real_vllm_tells_its_operators_what_its_connector_was_asked_for_and_had(
    connector: str,
) -> None:
    look_ups: list[tuple[int, int, int]] = []
    for configuration in connector_configurations()[:4]:
        trace = random_trace(configuration.shape("scheduler"), 0, withdraw=False)
        engine = parse(f"vllm:source={SOURCE},connector={connector}")
        result = drive(trace, engine.open(trace.header))
        tally = next(tally for tally in result.tallies if tally.checker == "statistics")
        assert tally.opportunities > 0 and tally.findings == 0
        stats = [event for event in result.history.events if isinstance(event, Stats)]
        assert all(event.tier is not None for event in stats)
        look_ups += [event.tier for event in stats if event.tier]
    assert sum(found for _, _, found in look_ups) > 0
    assert any(found < asked for _, asked, found in look_ups if found)
