"""What a run takes of its suites: all that applies to the engine; of a slow engine, a sample in
which everything occurs.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from cachewitness.engines import policy as policies
from cachewitness.engines.registry import parse
from cachewitness.sessions.run import tensor_suite as cold
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.selection import (
    RANDOM_TRACES,
    RANDOM_TRACES_COMPUTED,
    RANDOM_TRACES_SHORT,
    Sample,
    random_traces,
)
from cachewitness.sessions.run.suites import SUITES, Stream, Suite
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.layouts import load

SCHEDULER = next(suite for suite in SUITES if suite.name == "scheduler")


def _streams(suite: Suite, policy: str) -> list[Stream]:
    kind = policies.get(policy)
    engine = parse("reference")
    if suite.tensors:
        return suite.tensors.streams(engine, kind.cold_configurations(), 0)
    configurations = [one for one in kind.configurations() if one.runs_at(suite.level)]
    return [Stream(one, engine, suite.traces(one, suite.level, 0)) for one in configurations]


@pytest.mark.parametrize("policy", sorted(policies.names()))
@pytest.mark.parametrize("suite", [SCHEDULER, cold.SUITE], ids=lambda suite: suite.name)
def test_a_sample_has_every_trace_and_every_configuration(suite: Suite, policy: str) -> None:
    """And is smaller than all, by about what it says."""
    whole = [[trace.header.name for trace in stream.traces] for stream in _streams(suite, policy)]
    left_out: list[int] = []
    sample = Sample(suite.sampled, lambda: left_out.append(1))
    taken = [
        [trace.header.name for trace in sample.of(stream.traces, index)]
        for index, stream in enumerate(_streams(suite, policy))
    ]
    everything = sum(map(len, whole))
    assert set().union(*taken) == set().union(*whole)
    assert all(taken), "a configuration without a trace"
    assert sum(map(len, taken)) + len(left_out) == everything
    assert sum(map(len, taken)) <= everything / suite.sampled + len(set().union(*whole)) + len(
        whole
    )


def test_an_engine_that_computes_gets_fewer_random_traces() -> None:
    fast = parse("reference")
    slow = replace(fast, kind=replace(fast.kind, name="slow", computes=True))
    assert random_traces(fast, short=False) == RANDOM_TRACES
    assert [random_traces(slow, short=short) for short in (False, True)] == [
        RANDOM_TRACES_COMPUTED,
        RANDOM_TRACES_SHORT,
    ]


def test_seconds_are_shared_among_the_suites_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite at a level that the engine does not have takes no share of them, nor one that
    compares it with itself.
    """
    got: dict[str, float] = {}

    def note(self: Runner, suite: Suite, deadline: float | None, *rest: Any) -> None:
        got[suite.name] = (deadline or 0) - time.perf_counter()

    monkeypatch.setattr(Runner, "_suite", note)
    spec = parse("reference")
    modest = replace(spec, kind=replace(spec.kind, name="modest", levels=("manager",)))
    Runner(modest, [Configuration(load("full"))], seconds=3000).run(list(SUITES))
    assert set(got) == {"invariants", "random"}
    assert 2900 < got["random"] <= 3000
