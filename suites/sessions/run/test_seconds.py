"""A run that is bounded by a clock runs something, however slow its engine is to start."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from cachewitness.core.trace_format import Level, Trace
from cachewitness.engines.registry import parse
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import Suite
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace

NO_TIME = 1e-9


def traces(configuration: Configuration, level: Level, first: int) -> Iterator[Trace]:
    """Yield traces of which those before number `first` ask for what no engine has."""
    for number in range(100):
        trace = random_trace(configuration.shape(level), number, withdraw=False)
        needs = ["what nobody has"] if number < first else []
        yield Trace(
            msgspec.structs.replace(trace.header, needs=[*trace.header.needs, *needs]), trace.ops
        )


@pytest.mark.parametrize(("first", "ran"), [(0, 1), (1, 1), (100, 0)])
def test_a_round_in_which_nothing_could_run_is_not_the_only_one(first: int, ran: int) -> None:
    """Time was up before the first trace: the first that can run is run, and a suite of which
    none can comes to an end.
    """
    suite = Suite(
        "mine",
        "",
        "manager",
        lambda configuration, level, seed: traces(configuration, level, first),
        endless=True,
    )
    runner = Runner(parse("reference"), [Configuration(layouts.load("full"))], seconds=NO_TIME)
    assert [suite.traces for suite in runner.run([suite]).suites] == [ran]
