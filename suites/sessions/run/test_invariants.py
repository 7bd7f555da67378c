"""The scenarios and random workloads as tests: every rule holds on every configuration, and had
something to judge.

`CACHEWITNESS_ENGINE` names another engine than the reference, in the words of `--engine`.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from cachewitness.cli.suites import SUITES
from cachewitness.core.driving import drive
from cachewitness.core.events import Accept, Finished, StepBegin, StepEnd
from cachewitness.core.result import EXIT_PASS
from cachewitness.core.trace_format import Step, Submit, Trace, TraceHeader
from cachewitness.engines.registry import parse
from cachewitness.report.summary import Report
from cachewitness.sessions.run.runner import Runner
from cachewitness.systems.vllm.reference.policy import (
    default_configurations,
    scheduler_configurations,
)
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.scenarios import SCENARIOS
from suites.support.sampled import chosen, sampled

ENGINE = os.environ.get("CACHEWITNESS_ENGINE", "reference")
NAMED = ("no-fabricated-snapshots", "replay-boundary-retained", "interval-sparsity")


def run(configurations: list[Configuration], *names: str) -> Report:
    return Runner(parse(ENGINE), configurations).run(
        [suite for suite in SUITES if suite.name in names]
    )


@pytest.mark.parametrize(
    "configuration",
    sampled(default_configurations(), 8, 1),
    ids=lambda configuration: configuration.name,
)
def test_every_rule_holds_on_the_configuration(configuration: Configuration) -> None:
    report = run([configuration], "invariants", "random")
    assert [failure.finding.sentence for suite in report.suites for failure in suite.failures] == []
    assert sum(suite.activity.hits for suite in report.suites) > 0


def test_a_run_over_several_configurations_is_not_vacuous() -> None:
    """The three named invariants each had opportunities; states were restored, pages evicted,
    requests preempted.
    """
    report = run(sampled(default_configurations(), 8), "invariants")
    assert report.exit_code == EXIT_PASS and report.vacuous == []
    opportunities = {tally.checker: tally.opportunities for tally in report.tallies()}
    assert all(opportunities[name] > 0 for name in NAMED)
    activity = report.suites[0].activity
    assert min(activity.restored, activity.evictions, activity.preemptions) > 0


def test_a_request_may_wait_behind_another_of_the_same_prompt() -> None:
    """In each step the first writes a state that the second is to resume from; so the second
    waits, and is not stuck.
    """
    layout = layouts.load("full-mamba")
    options = {"retention_interval": None, "hash_block_size": 4}
    header = TraceHeader("behind", layout, 17, options=options)
    steps = [Step(run=[("r1", first), ("r2", 16)]) for first in (16, 16, 16, 5, 1, 1)]
    submits = [Submit("r1", "B:7 B[33]:46"), Submit("r2", "B:7 B[33]:45 r2:1")]
    result = drive(Trace(header, [*submits, *steps]), parse("reference").open(header))
    waited = [
        event
        for event in result.history.events
        if isinstance(event, StepBegin) and len(event.runs) == 1
    ]
    assert len(waited) == 5 and not result.findings


@pytest.mark.parametrize("suite", ["scheduler", "scheduler-random"])
def test_every_rule_holds_under_the_engine_s_own_scheduler(suite: str) -> None:
    kind = parse(ENGINE).kind
    assert "scheduler" in kind.levels or kind.name != "reference"
    if "scheduler" in kind.levels:
        report = run(sampled(default_configurations(), 22, 1), suite)
        assert [
            failure.finding.sentence for entry in report.suites for failure in entry.failures
        ] == []
        assert report.suites[0].activity.preemptions > 0


DRAFTS, *_, COPIES = (
    one for one in scheduler_configurations() if {"use_eagle", "tier_delay"} & one.options.keys()
)
"""The last one has a second tier that takes its time, and steps in flight."""
OF_OPTIONS = chosen(scheduler_configurations(), DRAFTS, COPIES)


@pytest.mark.parametrize("configuration", OF_OPTIONS, ids=lambda configuration: configuration.name)
def test_every_rule_holds_with_drafts_steps_in_flight_and_a_second_tier(
    configuration: Configuration,
) -> None:
    """What the options ask for happens: drafts stand and fall, a step begins before the last has
    ended, copies come back.
    """
    if "scheduler" not in parse(ENGINE).kind.levels:
        pytest.skip(f"engine {ENGINE} has no scheduler of its own")
    report = run([configuration], "scheduler", "scheduler-random")
    assert [failure.finding.sentence for entry in report.suites for failure in entry.failures] == []
    happened = counted(configuration)
    for option, signs in SIGNS.items():
        for sign in signs if configuration.options.get(option) else ():
            assert happened[sign] > 0, sign


SIGNS = {
    "num_speculative_tokens": ("draft stood", "draft fell"),
    "async_depth": ("begun before the last has ended", "ended while in flight"),
    "tier_pages": ("stored", "fetched"),
    "tier_delay": ("waited", "failed"),
}


def counted(configuration: Configuration) -> Counter[str]:
    """Return how often each sign occurs in the scenarios of a cell."""
    happened: Counter[str] = Counter()
    shape = configuration.shape("scheduler")
    for trace in [scenario.trace(shape) for scenario in SCENARIOS if scenario.applies(shape)]:
        drafts: dict[str, int] = {}
        open_steps: list[StepBegin] = []
        for event in drive(trace, parse(ENGINE).open(trace.header)).history.events:
            if isinstance(event, StepBegin):
                happened["begun before the last has ended"] += len(open_steps)
                loads = sum(bool(move.src_pool) for _, move in event.begun)
                happened["stored"] += len(event.stores) + len(event.begun) - loads
                happened["fetched"] += (
                    sum(move.src_pool != move.dst_pool for move in event.copies) + loads
                )
                happened["waited"] += loads > 0 and not event.ended
                happened["failed"] += len(event.failed)
                drafts |= {run.r: len(run.drafts) for run in event.runs}
                open_steps.append(event)
            elif isinstance(event, StepEnd):
                open_steps.pop(0)
            elif isinstance(event, Finished):
                happened["ended while in flight"] += any(
                    run.r == event.r for begun in open_steps for run in begun.runs
                )
            elif isinstance(event, Accept):
                happened["draft stood"] += len(event.tokens) > 1
                happened["draft fell"] += len(event.tokens) <= drafts[event.r]
    return happened
