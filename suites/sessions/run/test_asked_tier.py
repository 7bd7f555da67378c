"""An engine that was asked for a second tier and loads nothing from it has passed nothing,
whichever command asked.

The reference stands in for such an engine: an option of its name that has another meaning is taken
for the one that asks.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cachewitness.api import workers
from cachewitness.core.result import Activity
from cachewitness.engines.kind import EngineKind
from cachewitness.engines.reference import ENGINE
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.engines.second_tier import SecondTier
from cachewitness.report.summary import SuiteReport
from cachewitness.sessions.campaign.engine_entry import EngineEntry
from cachewitness.sessions.campaign.totals import Totals
from cachewitness.sessions.campaign.unit import Outcome
from cachewitness.sessions.fuzz.campaign import Campaign
from cachewitness.sessions.fuzz.draw import Restriction
from cachewitness.sessions.fuzz.trial import Plan
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import SUITES
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from suites.support.campaigns import planned

NOTHING = "nothing was loaded by release 0.33"
ASKS: EngineKind = dataclasses.replace(ENGINE, tier=SecondTier(option="release"))
SPEC = EngineSpec(ASKS, {"release": "0.33"}, "reference:release=0.33")
TIERS = pytest.mark.parametrize(("options", "loads"), [({}, False), ({"tier_pages": 48}, True)])
SUITE = """
name = "a"
suites = ["invariants"]
[[engines]]
engine = "reference:release=0.33"
layouts = ["full"]
[budget]
configurations = 1
"""


def test_only_an_engine_that_was_asked_for_a_tier_has_to_load_from_it() -> None:
    assert (SPEC.tier, parse("reference").tier) == ("release 0.33", "")
    assert EngineSpec(ASKS, {}, "reference").tier == ""
    loaded = Activity(requests=1, from_tier=1)
    assert (
        Activity().shortfalls(SPEC.tier),
        Activity().shortfalls(""),
        loaded.shortfalls(SPEC.tier),
    ) == ([NOTHING], [], [])


def test_an_engine_that_always_has_a_tier_has_to_load_from_it() -> None:
    has = EngineSpec(dataclasses.replace(ENGINE, tier=SecondTier("a store")), {}, "reference")
    report = Runner(has, [Configuration(layouts.load("full"))]).run(
        [suite for suite in SUITES if suite.name == "scheduler-random"]
    )
    assert has.tier == "a store" and "nothing was loaded by a store" in report.vacuous


@TIERS
def test_a_run_says_so(options: dict[str, int], loads: bool) -> None:
    chosen = [suite for suite in SUITES if suite.name == "scheduler-random"]
    report = Runner(SPEC, [Configuration(layouts.load("full"), options)]).run(chosen)
    assert (report.activity.from_tier > 0) == loads and (NOTHING in report.vacuous) == (not loads)


@TIERS
def test_a_fuzz_run_says_so(options: dict[str, int], loads: bool) -> None:
    drawn = Restriction([layouts.load("full")], {"tier_pages": 0, **options})
    campaign = Campaign(SPEC, Plan("vllm", ("scheduler",), drawn, 0))
    campaign.run(operations=1_500)
    assert (campaign.report.activity.from_tier > 0) == loads and (
        NOTHING in campaign.report.vacuous
    ) == (not loads)


@pytest.mark.parametrize("loads", [False, True])
def test_the_tests_of_a_function_say_so_together(loads: bool) -> None:
    function = workers.Function(tests=2, tier=SPEC.tier)
    for trace in ("a", "b"):
        activity = Activity(requests=1, hits=1, from_tier=int(loads and trace == "b"))
        function.add(workers.Did("test_it", trace, "full", False, 2, SPEC.tier, activity, []))
    assert function.vacuous == ([] if loads else [NOTHING])


@pytest.mark.parametrize("loads", [False, True])
def test_a_campaign_says_so(loads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineEntry, "named", lambda held: SPEC)
    made = planned(SUITE, tmp_path)
    totals = Totals(made, time_up=False)
    for unit in made.units[1:]:
        activity = Activity(requests=1, from_tier=int(loads))
        totals.add(
            unit, Outcome(suites=[SuiteReport(name="invariants", traces=1, activity=activity)])
        )
    (subject,) = (subject for subject in totals.subjects.values())
    assert (NOTHING in subject.vacuous) == (not loads)
