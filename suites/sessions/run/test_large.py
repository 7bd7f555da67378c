"""What begins with a size is found: each suite with scenarios runs the large ones once each, and a
campaign draws larger traces now and then.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from cachewitness.cli.suites import SUITES
from cachewitness.core.driving import drive
from cachewitness.core.result import EXIT_PASS, Activity, Largest
from cachewitness.core.trace_format import Abort, Level, Submit, Trace, length_of
from cachewitness.engines import policy as policies
from cachewitness.engines.faults import all_mutants
from cachewitness.engines.registry import parse
from cachewitness.parity.answers.compare import runs
from cachewitness.report.terminal import covered, reached
from cachewitness.sessions.fuzz.draw import Restriction
from cachewitness.sessions.fuzz.trial import Plan
from cachewitness.sessions.mutants.hunt import killed
from cachewitness.sessions.run.choice import Choice
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.streams import Streams
from cachewitness.sessions.run.suites import Suite
from cachewitness.systems.sample import engine as sample
from cachewitness.systems.sample.server import Request, Server
from cachewitness.workloads import layouts
from cachewitness.workloads.answer_large import LARGE_STORIES
from cachewitness.workloads.answer_stories import write
from cachewitness.workloads.avoided import AVOID
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.near_misses import SentPrompt, near_miss
from cachewitness.workloads.prompts import ADAPTERS, NEAR_ADAPTERS
from cachewitness.workloads.scenarios import LARGE, Script
from cachewitness.workloads.source import Seeded

KILLED_BY = {
    "identity-lost-after-200-requests": "many-requests",
    "keys-outlive-the-200th-eviction": "many-requests",
    "generation-of-a-block-wraps": "many-requests",
    "tokens-beyond-256-unhashed": "long-prompt",
    "images-beyond-256-tokens-left-out": "long-prompt",
    "image-ids-of-16-bits": "many-images",
    "answers-beyond-100-tokens-unhashed": "long-answer",
}
REACHED = Largest(prompt=4096, answer=1000, requests=1000, images=1000, reuses=64)


def suite_at(level: Level) -> Suite:
    """Return the suite of a level that has large traces."""
    (suite,) = [suite for suite in SUITES if suite.large and suite.level == level]
    return suite


def of_a_run(policy: str, level: Level) -> list[Trace]:
    """Return the large traces of a run in which the user chose nothing."""
    suite = suite_at(level)
    configurations = [one for one in policies.get(policy).configurations() if one.runs_at(level)]
    places = len(configurations)
    return [
        trace
        for place, configuration in enumerate(configurations)
        for trace in suite.large_traces(configuration, place, places)
    ]


@pytest.mark.large
@pytest.mark.parametrize("policy", policies.names())
def test_each_policy_gets_each_large_scenario_once(policy: str) -> None:
    for level in policies.get(policy).levels:
        names = [trace.header.name for trace in of_a_run(policy, level)]
        assert sorted(names) == sorted(scenario.name for scenario in LARGE)


@pytest.mark.large
@pytest.mark.parametrize("name", KILLED_BY)
def test_a_fault_that_begins_with_a_size_is_killed_by_the_default_run(name: str) -> None:
    mutant = all_mutants()[name]
    traces = [
        trace
        for level in ("scheduler", "manager")
        for trace in of_a_run("vllm", level)
        if trace.header.name == KILLED_BY[name]
    ]
    assert any(killed(mutant, trace) for trace in traces)


@pytest.mark.large
def test_one_layout_gets_all_of_them_and_the_covered_line_says_how_far_they_reach() -> None:
    configuration = Configuration(layouts.load("full"))
    suites = [suite for suite in SUITES if suite.name == "scheduler"]
    report = Runner(parse("reference"), [configuration]).run(suites)
    assert report.exit_code == EXIT_PASS and not report.failures
    largest = report.activity.largest
    for name in Largest.__struct_fields__:
        assert getattr(largest, name) >= getattr(REACHED, name)
    assert (
        "at most a prompt of 4,099, an answer of 1,007 tokens, 1,000 requests of one engine,"
        " 1,000 images, a page reused 187 times;" in covered(report)
    )


def skip(what: str, why: str) -> None:
    """Take no note of what is left out."""


@pytest.mark.large
def test_an_engine_that_computes_leaves_them_to_a_full_run() -> None:
    (suite,) = [suite for suite in SUITES if suite.name == "scheduler"]
    configuration = Configuration(layouts.load("full"))
    count = {}
    for full in (False, True):
        streams = Streams(
            engine=parse("toy"),
            configurations=[configuration],
            seed=0,
            policy="vllm",
            full=full,
            chosen_configurations=False,
            exact_configurations=False,
            choice=Choice(),
            change=None,
            skip=skip,
        )
        count[full] = sum(1 for _ in streams.large_traces(suite, configuration, 0, 1))
    assert count == {False: 0, True: len(LARGE)}


LATE: dict[str, tuple[str, str]] = {
    "names of the first 128 tokens": ("long-prompt", "foreign-restore"),
    "states that end a token early behind 100 tokens of an answer": (
        "long-answer",
        "answer-differs",
    ),
    "salts left out after 200 requests": ("many-requests", "foreign-restore"),
}
"""Faults of an engine that only answers, each with the story that finds it, as what."""


def plant_late(fault: str, patch: pytest.MonkeyPatch) -> None:
    """Plant one of these into every sample engine that is opened from now on."""
    name = Server.name
    keep = Server.keep
    submit = Server.submit
    asked: Counter[Server] = Counter()

    def named(server: Server, request: Request, what: str, length: int) -> Any:
        kind, salt, tokens = name(server, request, what, length)
        if fault.startswith("names"):
            return kind, salt, (length, *tokens[:128])
        return kind, "" if fault.startswith("salts") and asked[server] > 200 else salt, tokens

    def kept(server: Server, request: Request, before: Any) -> None:
        keep(server, request, before)
        if fault.startswith("states") and request.computed > request.prompt + 100:
            request.states[-1].state = before

    def submitted(server: Server, op: Submit) -> None:
        asked[server] += 1
        submit(server, op)

    patch.setattr(Server, "name", named)
    patch.setattr(Server, "keep", kept)
    patch.setattr(Server, "submit", submitted)


@pytest.mark.large
@pytest.mark.parametrize("fault", LATE)
def test_a_fault_of_an_engine_that_only_answers_begins_with_a_size(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The large story finds it, which the engine passes without the fault; a usual one does not."""
    story, anomaly = LATE[fault]
    shape = sample.configurations()[0].shape("answers")
    (large,) = [one.trace(shape) for one in LARGE_STORIES if one.name == story]
    assert runs(large, parse("sample")).findings == []
    plant_late(fault, monkeypatch)
    assert runs(write(shape, "tenants", 0), parse("sample")).findings == []
    assert anomaly in {finding.anomaly for finding in runs(large, parse("sample")).findings}


@pytest.mark.large
@pytest.mark.parametrize("full", [False, True])
def test_engines_that_only_answer_get_each_large_story_once(full: bool) -> None:
    """The one of many requests in a full run alone."""
    configurations = sample.configurations()
    names = [
        trace.header.name
        for place, one in enumerate(configurations)
        for trace in suite_at("answers").large_traces(one, place, len(configurations), full=full)
    ]
    assert names == [one.name for one in LARGE_STORIES if full or not one.full_alone]


@pytest.mark.large
def test_a_large_story_is_without_what_its_configuration_avoids() -> None:
    """`avoid` is no option of an engine, which would refuse it."""
    configuration = replace(sample.configurations()[0], options={AVOID: "aborts+company"})
    traces = list(suite_at("answers").large_traces(configuration, 0, 1))
    assert traces
    for trace in traces:
        assert AVOID not in trace.header.options
        assert not any(isinstance(op, Abort) for op in trace.ops)


def test_the_largest_values_of_runs_are_not_added_up() -> None:
    total = Activity(hits=1, largest=Largest(prompt=7, images=2))
    total.add(Activity(hits=2, largest=Largest(prompt=5, reuses=3)))
    assert (total.hits, total.largest) == (3, Largest(prompt=7, images=2, reuses=3))
    assert reached(Largest(prompt=7, answer=1, requests=1)) == (
        "at most a prompt of 7, an answer of 1 token, 1 request of one engine"
    )


def test_a_page_is_reused_when_it_is_taken_with_nothing_in_it() -> None:
    """Three requests over two pages: the second hits the first page and takes the other anew, the
    third takes both anew.
    """
    script = Script(Configuration(layouts.load("full")).shape("manager"), "few", "few", "few")
    for r, text in (("a", "doc"), ("b", "doc"), ("c", "other")):
        script.serve(r, f"{text}:17")
    trace = script.trace(3)
    result = drive(trace, parse("reference").open(trace.header))
    assert result.activity.hits == 1 and result.activity.largest.reuses == 2


def test_near_misses_of_an_adapter_differ_in_case_in_one_letter_and_behind_a_beginning() -> None:
    sent = SentPrompt("a:2", adapter="tuned")
    found = {near_miss(Seeded(seed), sent, [], "x").adapter for seed in range(200)}
    assert {"tuned-b", "tune", "TUNED", "tunee", ""} <= found
    assert all(
        any(near.lower().startswith(name[:-1]) for name in ADAPTERS) for near in NEAR_ADAPTERS
    )


def test_a_campaign_draws_prompts_and_answers_ten_times_as_long_now_and_then() -> None:
    plan = Plan("vllm", ("manager", "scheduler"), Restriction(), 0)
    prompts: list[int] = []
    operations: list[int] = []
    for number in range(250):
        _, trace = plan.draw(number)
        prompts += [length_of(op.prompt) for op in trace.ops if isinstance(op, Submit)]
        operations.append(len(trace.ops))
    assert max(prompts) > 960
    assert max(operations) > 600
