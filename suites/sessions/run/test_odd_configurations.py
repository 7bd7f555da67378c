"""Lawful but unusual configurations: the reference does nothing wrong on them, so no checker may
say that it does.
"""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness.core.driving import drive
from cachewitness.core.trace_format import (
    GroupSpec,
    Layout,
    Level,
    Step,
    Submit,
    Trace,
    TraceHeader,
)
from cachewitness.systems.vllm.reference.engine import open_engine
from cachewitness.workloads.generate import random_trace
from cachewitness.workloads.scenarios.shape import Shape
from suites.support.sampled import fewer, sampled

FULL = GroupSpec("full", 4)
WINDOW = GroupSpec("sliding", 4, window=9)
STATE = GroupSpec("recurrent", 4)
SEEDS = fewer(6, 3)

CONFIGURATIONS: dict[str, tuple[list[GroupSpec], dict[str, Any]]] = {
    "one state for a whole request": (
        [FULL, STATE],
        {"mamba_cache_mode": "none", "enable_caching": False},
    ),
    "a state in every column, dense": (
        [FULL, STATE],
        {"mamba_cache_mode": "all", "release": "0.24"},
    ),
    "a state in every column, sparse": (
        [FULL, WINDOW, STATE],
        {"mamba_cache_mode": "all", "release": "0.30"},
    ),
    "a state in every column, nothing cached": (
        [FULL, STATE],
        {"mamba_cache_mode": "all", "release": "0.30", "enable_caching": False},
    ),
    "an interval that governs windows alone": (
        [FULL, WINDOW, STATE],
        {"release": "0.23", "retention_interval": 0},
    ),
    "windows of one token": (
        [FULL, GroupSpec("sliding", 4, window=1)],
        {"retention_interval": None},
    ),
    "a third of the pool reserved": ([FULL, WINDOW, STATE], {"watermark": 0.3}),
    "speculation, hits inside a block": ([FULL, STATE], {"use_eagle": True, "hash_block_size": 1}),
    "speculation, sizes that do not divide": (
        [GroupSpec("full", 6), GroupSpec("recurrent", 10)],
        {"use_eagle": True},
    ),
    "speculation, three sizes": (
        [FULL, GroupSpec("sliding", 8, window=12), GroupSpec("recurrent", 16)],
        {"use_eagle": True},
    ),
    "speculation, short windows beside long blocks": (
        [GroupSpec("full", 16), WINDOW],
        {"use_eagle": True},
    ),
    "speculation, an interval, short windows beside long blocks": (
        [GroupSpec("full", 16), WINDOW],
        {"use_eagle": True, "retention_interval": 48},
    ),
}


@pytest.mark.parametrize("level", ["manager", "scheduler"])
@pytest.mark.parametrize("name", sampled([*CONFIGURATIONS], 2))
def test_nothing_is_found_in_lawful_runs_of_an_unusual_configuration(
    name: str, level: Level
) -> None:
    groups, options = CONFIGURATIONS[name]
    shape = Shape(Layout(name, groups), options, level)
    for seed in range(SEEDS):
        trace = random_trace(shape, seed, withdraw=seed % 3 == 0)
        result = drive(trace, open_engine(trace.header, {}))
        assert [finding.sentence for finding in result.findings] == []
        assert result.outcome == "pass" and result.activity.events > 0


def test_a_window_of_one_token_that_wants_a_block_all_the_same_is_acceptable() -> None:
    """A look-up wants a block where the window reads none, as vLLM does; the hit that it forgoes
    is counted and no failure.
    """
    shape = Shape(
        Layout("one", CONFIGURATIONS["windows of one token"][0]), {"retention_interval": None}
    )
    trace = random_trace(shape, 1, withdraw=False)
    tallies = {
        tally.checker: tally for tally in drive(trace, open_engine(trace.header, {})).tallies
    }
    assert tallies["reuse-floor"].acceptable > 0 and tallies["reuse-floor"].findings == 0


def test_who_waits_for_what_is_reserved_is_not_stuck() -> None:
    """The pool has room for the second request beside the first, but not beside what is reserved
    as well.
    """
    groups = [GroupSpec("sliding", 4, window=9), GroupSpec("sliding", 8, window=9)]
    header = TraceHeader(
        name="reserved", layout=Layout("windows", groups), pages=16, options={"watermark": 0.3}
    )
    ops = [Submit("first", "a:1"), Submit("second", "b:25"), Step([("first", 1), ("second", 8)])]
    trace = Trace(header, [*ops, *[Step([("second", 8)])] * 6])
    result = drive(trace, open_engine(header, {}))
    assert result.findings == [] and result.activity.lookups == 1
