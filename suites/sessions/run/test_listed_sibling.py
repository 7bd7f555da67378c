"""Of a trace with a listed finding and one that is not, the smallest trace shows the latter."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cachewitness.engines.registry import parse
from cachewitness.report.expected import Entry, Expectations
from cachewitness.report.summary import Failure
from cachewitness.sessions.fuzz.campaign import Campaign, levels_of
from cachewitness.sessions.fuzz.draw import Restriction
from cachewitness.sessions.fuzz.trial import Plan
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import SUITES
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.layouts import load

ENGINE = parse("reference:mutant=lookup-one-unit-short")
RANDOM = next(suite for suite in SUITES if suite.name == "random")


def ran(expected: Expectations) -> Failure:
    """Return the first failure of a run."""
    runner = Runner(ENGINE, [Configuration(load("full-swa"))], expected=expected)
    return runner.run([RANDOM]).suites[0].failures[0]


def drawn(expected: Expectations) -> Failure:
    """Return the first failure of a fuzz run that is not expected."""
    plan = Plan("vllm", levels_of(ENGINE, "vllm"), Restriction(), 0)
    campaign = Campaign(ENGINE, plan, expected=expected)
    campaign.run(operations=2_000)
    failures = (failure for suite in campaign.report.suites for failure in suite.failures)
    return next(failure for failure in failures if not failure.expected)


@pytest.mark.parametrize("first", [ran, drawn])
def test_what_is_shown_is_not_what_the_list_excuses(
    first: Callable[[Expectations], Failure],
) -> None:
    dense = Entry(pattern="*", anomaly="over-dense-retention", reason="of the same fault")
    shown = first(Expectations([dense]))
    entry = Entry(pattern="*", anomaly="lost-hit", reason="known", says=shown.finding.line)
    other = first(Expectations([dense, entry]))
    assert shown.finding.anomaly == other.finding.anomaly == "lost-hit"
    assert not other.expected
    assert other.finding.line != shown.finding.line
