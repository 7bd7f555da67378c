"""vLLM's own Scheduler decides, under every checker: clean releases pass, and what happened in them
is not little.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.driving import drive
from cachewitness.core.events import Accept, Hit, Preempted, Settled, StepBegin, StepEnd
from cachewitness.core.result import Activity, Result
from cachewitness.core.trace_format import (
    Abort,
    Op,
    Preempt,
    Reset,
    Step,
    Submit,
    Trace,
    TraceHeader,
)
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.systems.vllm.configurations import further_configurations
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from suites.support.real_vllm import REAL, SOURCE

pytestmark = REAL

CONFIGURATIONS = [
    Configuration(layouts.load("full")),
    Configuration(layouts.load("full-swa-mamba"), {"retention_interval": 0}),
    Configuration(layouts.load("full-mamba-unequal"), {"retention_interval": 32}),
    Configuration(layouts.load("full"), {"num_speculative_tokens": 3}),
    Configuration(
        layouts.load("full-swa"),
        {"retention_interval": 64, "use_eagle": True, "num_speculative_tokens": 3},
    ),
    Configuration(layouts.load("full-swa-mamba"), {"retention_interval": None, "async_depth": 1}),
    Configuration(layouts.load("full-swa-mamba"), {"retention_interval": 0, "async_depth": 2}),
    *(known for known in further_configurations() if "hash_block_size" not in known.options),
]
"""Without hits inside a block, in which 0.33.0 has known findings
(fixtures/expected/vllm-0.33.txt)."""
SEEDS = 8


def vllm() -> EngineSpec:
    return parse(f"vllm:source={SOURCE}")


def run(configuration: Configuration, seed: int) -> Result:
    trace = random_trace(configuration.shape("scheduler"), seed, withdraw=False)
    return drive(trace, vllm().open(trace.header))


def tell(layout: str, ops: list[Op], pages: int = 40, **options: Any) -> Result:
    header = TraceHeader("t", layouts.load(layout), pages, level="scheduler", options=options)
    return drive(Trace(header, ops), vllm().open(header))


def test_it_is_said_what_judges_a_scheduler_that_is_not_compared() -> None:
    header = vllm().open(TraceHeader("t", layouts.load("full"), 9, level="scheduler")).describe()
    reason = header.not_applicable["differential"]
    assert "judged by the rules alone, in the suites scheduler and scheduler-random" in reason


@pytest.mark.parametrize(
    "configuration", CONFIGURATIONS, ids=lambda configuration: configuration.name
)
def test_a_clean_release_passes_and_is_not_idle(configuration: Configuration) -> None:
    activity = Activity()
    for seed in range(SEEDS):
        result = run(configuration, seed)
        assert [finding.sentence for finding in result.findings] == []
        activity.add(result.activity)
    options = configuration.options
    cached = [activity.hits, activity.evictions] if options.get("enable_caching", True) else []
    assert min([*cached, activity.preemptions]) > 0
    assert bool(activity.overlapped_steps) == bool(options.get("async_depth"))
    drafting = bool(options.get("num_speculative_tokens") or options.get("use_eagle"))
    assert (0 < activity.drafts_accepted < activity.drafts) if drafting else not activity.drafts


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_as_many_steps_are_in_flight_as_the_depth_says(depth: int) -> None:
    """A step is answered when so many later ones have been scheduled."""
    events = tell("full", [Submit("r", "a:40"), *[Step()] * 9], async_depth=depth).history.events
    steps = [type(event) for event in events if isinstance(event, StepBegin | StepEnd)]
    in_flight = [
        steps[:index].count(StepBegin) - steps[:index].count(StepEnd)
        for index in range(len(steps) + 1)
    ]
    assert max(in_flight) == depth + 1 and in_flight[-1] == depth


@pytest.mark.parametrize(
    "method", [{}, {"use_eagle": True, "retention_interval": 0}], ids=["n-grams", "EAGLE"]
)
def test_drafts_are_verified_and_every_accepted_length_occurs(method: dict[str, Any]) -> None:
    ops: list[Op] = [Submit(f"r{index}", f"a{index}:33") for index in range(4)]
    result = tell("full-swa", ops + [Step()] * 40, pages=200, num_speculative_tokens=3, **method)
    drafted = {
        run.r
        for event in result.history.events
        if isinstance(event, StepBegin)
        for run in event.runs
        if run.drafts
    }
    lengths = {len(event.tokens) for event in result.history.events if isinstance(event, Accept)}
    assert result.findings == []
    assert drafted == {"r0", "r1", "r2", "r3"}
    assert lengths == {1, 2, 3, 4}


@pytest.mark.parametrize("depth", [1, 2])
def test_drafts_of_a_step_in_flight_are_verified_before_the_next_one_runs(depth: int) -> None:
    """Whatever falls makes the next run start earlier; every accepted length occurs, and no
    token is left out.
    """
    ops: list[Op] = [Submit(f"r{index}", f"a{index}:33") for index in range(4)]
    options = {
        "use_eagle": True,
        "retention_interval": 0,
        "num_speculative_tokens": 3,
        "async_depth": depth,
    }
    result = tell("full-swa", ops + [Step()] * 40, pages=200, **options)
    events = result.history.events
    begun = {
        (event.step, run.r): run
        for event in events
        if isinstance(event, StepBegin)
        for run in event.runs
    }
    settled = {
        (event.step, run.r): run
        for event in events
        if isinstance(event, Settled)
        for run in event.runs
    }
    assert result.findings == []
    assert {len(event.tokens) for event in events if isinstance(event, Accept)} == {1, 2, 3, 4}
    assert {begun[place].start - run.start for place, run in settled.items()} == {0, 1, 2, 3}
    for r in ("r0", "r1"):
        accepted = [
            len(event.tokens) for event in events if isinstance(event, Accept) and event.r == r
        ]
        ran = [settled.get(place, run) for place, run in begun.items() if place[1] == r][
            : len(accepted)
        ]
        assert [after.start - before.start for before, after in pairwise(ran)][1:] == accepted[1:-1]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_states_after_drafts_are_moved_where_they_are_read_and_keyed(depth: int) -> None:
    """A state after a draft that stood comes home, one at a boundary that drafts passed gets its
    own column; both are read.
    """
    ops: list[Op] = [Submit(f"r{index}", f"a{index}:33") for index in range(4)] + [Step()] * 20
    ops += [Submit("again", "a0:33 @r0:31"), *[Step()] * 6]
    options = {"retention_interval": None, "num_speculative_tokens": 3, "async_depth": depth}
    result = tell("full-mamba", ops, pages=200, **options)
    settled = [event for event in result.history.events if isinstance(event, Settled)]
    (hit,) = [
        event for event in result.history.events if isinstance(event, Hit) and event.r == "again"
    ]
    assert result.findings == []
    assert (
        sum(len(event.before) for event in settled) > 20
        and sum(len(event.after) for event in settled) > 4
    )
    assert hit.resume == 48


def test_who_came_last_gives_way_when_blocks_run_out_and_comes_back() -> None:
    """Nobody asks for the preemption: vLLM's scheduler finds no block for a request that
    decodes.
    """
    ops: list[Op] = [Submit("r1", "a:30"), Submit("r2", "b:30"), *[Step()] * 30]
    result = tell("full", ops, pages=6)
    preempted = [event.r for event in result.history.events if isinstance(event, Preempted)]
    assert preempted[0] == "r2" and result.findings == []


def test_an_output_that_was_in_flight_when_its_request_was_preempted_is_taken_once() -> None:
    """It is delivered, unless a reset made the request start again at once: then the same token
    is sampled again.
    """
    begun: list[Op] = [Submit("r", "a:20"), Step(), Step(), Step()]
    for between in ([Preempt("r")], [Reset(running=True)]):
        result = tell("full", [*begun, *between, *[Step()] * 6], async_depth=1)
        tokens = [
            token
            for event in result.history.events
            if isinstance(event, Accept)
            for token in event.tokens
        ]
        assert len(tokens) == len(set(tokens)) > 3 and result.findings == []


def test_a_request_that_is_aborted_while_its_step_is_in_flight_generates_nothing() -> None:
    result = tell("full", [Submit("r", "a:20"), Step(), Abort("r"), Step(), Step()], async_depth=1)
    assert (
        not [event for event in result.history.events if isinstance(event, Accept)]
        and result.findings == []
    )


def test_a_step_has_room_for_a_token_and_its_drafts() -> None:
    """A preempted request that lacks one token comes back with four places for drafts, or not at
    all.
    """
    ops: list[Op] = [Submit("r", "a:2"), Step(), Preempt("r"), *[Step(budget=2)] * 6]
    result = tell("full", ops, num_speculative_tokens=4)
    assert (
        result.findings == []
        and sum(bool(e.runs) for e in result.history.events if isinstance(e, StepBegin)) > 1
    )


@pytest.mark.parametrize(
    ("layout", "options", "message"),
    [
        ("full", {"tier_pages": 16}, "vLLM's second tier is a connector"),
        (
            "full",
            {"max_num_batched_tokens": 3, "num_speculative_tokens": 3},
            "with all 3 drafts alone",
        ),
    ],
)
def test_what_is_not_driven_is_refused_in_one_line(
    layout: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        tell(layout, [], **options)


def test_the_worker_is_judged_by_what_it_was_told() -> None:
    """The scheduler's own table grows, and the worker's row does not: the write behind its end
    is found.
    """
    header = TraceHeader("t", layouts.load("full"), 40, level="scheduler")
    engine = parse(f"vllm:source={SOURCE},mutant=vllm-new-blocks-never-told").open(header)
    ops: list[Op] = [Submit("r", "a:40"), Step(budget=16), Step(budget=16)]
    findings = drive(Trace(header, ops), engine).findings
    assert (
        findings[0].anomaly == "aliased-write"
        and "a column that its table does not have" in findings[0].sentence
    )


def test_time_inside_vllm_is_told() -> None:
    header = TraceHeader("t", layouts.load("full"), 40, level="scheduler")
    engine: Any = vllm().open(header)
    for op in [Submit("r", "a:40"), Step(), Step()]:
        engine.apply(op)
    assert 0.0 < engine.engine_seconds < 60.0
