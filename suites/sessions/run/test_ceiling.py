"""Prompts as long as the engine declares that it takes, in the smallest pool for which it does."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from cachewitness.core.driving import described, drive
from cachewitness.core.engine import Engine
from cachewitness.core.events import Answer, Event
from cachewitness.core.intake import BadEvents
from cachewitness.core.trace_format import Finish, Op, Submit, Trace, TraceHeader, length_of
from cachewitness.engines import policy as policies
from cachewitness.engines.kind import EngineKind
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.parity.answers.compare import answered, runs
from cachewitness.sessions.run.ceiling import NAME, RANDOM, ceiling
from cachewitness.sessions.run.choice import Choice
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import SUITES
from cachewitness.systems.sample.engine import SampleEngine
from cachewitness.systems.sample.engine import configurations as of_sample
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.layouts import load

DRAFTS = Configuration(load("full-mamba"), {"num_speculative_tokens": 3})
CASES = [
    *((policy, policies.get(policy).configurations()[0]) for policy in policies.names()),
    ("vllm", DRAFTS),
]


@pytest.mark.parametrize(("policy", "configuration"), CASES)
def test_every_reference_holds_what_it_declares_and_nothing_smaller_would(
    policy: str, configuration: Configuration
) -> None:
    """A prompt of the declared length, one a token shorter, and one a token longer; in a pool that
    is a page smaller the engine declares less.
    """
    spec = parse("reference")
    for level in policies.get(policy).levels:
        if not configuration.runs_at(level):
            continue
        (trace, _) = ceiling(spec, configuration, level, 0)
        most = declared(spec, trace.header)
        lengths = [length_of(op.prompt) for op in trace.ops if isinstance(op, Submit)]
        assert lengths == [most, most - 1, most + 1, most]
        assert not drive(trace, spec.open(trace.header)).findings
        smaller = replace(trace.header, pages=trace.header.pages - 1)
        assert not smaller.pages or declared(spec, smaller) < most


def declared(spec: EngineSpec, header: TraceHeader) -> int:
    try:
        return described(spec.open(header), header).rules.max_prompt
    except Exception:
        return 0


@pytest.mark.parametrize(("policy", "configuration"), CASES)
def test_random_traces_ask_for_what_is_declared_a_token_less_and_a_token_more(
    policy: str, configuration: Configuration
) -> None:
    """Beside others, in pools of several sizes; the reference passes."""
    spec = parse("reference")
    for level in policies.get(policy).levels:
        if not configuration.runs_at(level):
            continue
        over = set[int]()
        for seed in range(3):
            (_, trace) = ceiling(spec, configuration, level, seed)
            most = declared(spec, trace.header)
            over |= {length_of(op.prompt) - most for op in trace.ops if isinstance(op, Submit)}
            assert not drive(trace, spec.open(trace.header)).findings
        assert max(over) == 1 and {-1, 0} <= over


@pytest.mark.parametrize("fault", ["null-block-counted-as-room", "furiosa-blocks-kept-for-copies"])
def test_a_length_that_is_accepted_and_not_held_is_found(fault: str) -> None:
    """Whether the check at the start counts too much, or the pool gives too little."""
    policy = "furiosa" if fault.startswith("furiosa") else "vllm"
    spec = parse(f"reference:mutant={fault}")
    found: dict[str, set[str]] = {NAME: set(), RANDOM: set()}
    for seed in range(3):
        for trace in ceiling(spec, policies.get(policy).configurations()[0], "scheduler", seed):
            findings = drive(trace, spec.open(trace.header)).findings
            found[trace.header.name] |= {finding.anomaly for finding in findings}
    assert found == {NAME: {"no-progress"}, RANDOM: {"no-progress"}}


def test_the_scenarios_of_a_run_end_with_it() -> None:
    """And the run counts it."""
    suite = next(suite for suite in SUITES if suite.name == "scheduler")
    fault = parse("reference:mutant=null-block-counted-as-room")
    report = Runner(fault, [Configuration(load("full"))]).run([suite])
    assert NAME in [failure.trace.header.name for failure in report.failures]


def shortened(to: int) -> EngineSpec:
    def opened(header: TraceHeader, options: Mapping[str, str]) -> Engine:
        engine: Engine = parse("reference").open(header)
        own = engine.describe()
        own = replace(own, rules=replace(own.rules, max_prompt=to))
        engine.describe = lambda: own  # type: ignore[method-assign]
        return engine

    kind = EngineKind("short", "a reference", ("manager",), opened, replays=False)
    return EngineSpec(kind, {}, "short")


@pytest.mark.parametrize("policy", ["vllm", "openvino_genai"])
def test_an_engine_takes_prompts_as_long_as_the_trace_asks_for(policy: str) -> None:
    """Who declares far less, with room for more, would be excused from whatever is longer."""
    layout = load("full-mamba")
    header = TraceHeader("short", layout, pages=60, policy=policy, options={"max_model_len": 101})
    trace = Trace(header, [Submit("a", "doc:9")])
    assert not drive(trace, shortened(90).open(header)).findings
    with pytest.raises(BadEvents, match=r"49 - at `\$.rules.max_prompt`; the trace's option"):
        drive(trace, shortened(49).open(header))


@pytest.mark.parametrize("caching", ["on", "off"])
def test_at_answers_level_the_longest_prompts_are_asked_alone_and_answered(caching: str) -> None:
    """By the engine's own word on its pool, in both traces; and one whose answer ends there."""
    spec = parse(f"sample:caching={caching}")
    for configuration in of_sample():
        over = set[int]()
        for seed in range(2):
            for trace in ceiling(spec, configuration, "answers", seed):
                most = declared(spec, trace.header)
                assert not runs(trace, spec).findings
                asked = [op for op in trace.ops if isinstance(op, Submit)]
                lengths = [length_of(op.prompt) - most for op in asked]
                if trace.header.name == NAME:
                    unit = configuration.layout.groups[0].block_size
                    assert lengths == [0, -1, 1, -unit, 0]
                    assert asked[3].generate == unit + 1
                over |= {*lengths}
                ended = {op.r for op in trace.ops if isinstance(op, Finish)}
                for op in asked if trace.header.name == NAME else ():
                    assert trace.ops[trace.ops.index(op) + 1] == Finish(op.r) and op.r in ended
        assert max(over) == 1 and {-1, 0} <= over


class Modest(SampleEngine):
    """Says that its longest prompt is a block shorter than its pages hold, and refuses what is
    longer than it says.
    """

    def __init__(self, header: TraceHeader) -> None:
        super().__init__(header, {})
        most = self.header.rules.max_prompt - self.server.block
        self.header = replace(self.header, rules=replace(self.header.rules, max_prompt=most))

    def apply(self, op: Op) -> list[Event]:
        if isinstance(op, Submit) and len(op.tokens) > self.header.rules.max_prompt:
            return [Answer(r=op.r, ended="refused")]
        return super().apply(op)


def test_an_engine_that_takes_less_than_it_could_and_says_so_passes() -> None:
    """A prompt that it would answer, and need not."""
    kind = dataclasses.replace(
        parse("sample").kind, name="modest", open=lambda header, options: Modest(header)
    )
    spec = EngineSpec(kind, {}, "modest")
    (story, _) = ceiling(spec, of_sample()[0], "answers", 0)
    result = answered(story, spec.open(story.header), parse("sample"))
    assert (result.findings, result.activity.aborted_by_engine) == ([], 1)


@pytest.mark.parametrize("full", [False, True])
def test_prompts_that_take_long_are_left_to_a_full_run(
    full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run says so."""
    monkeypatch.setattr("cachewitness.sessions.run.ceiling.COSTLY", 10)
    (stories,) = [suite for suite in SUITES if suite.spread]
    choice = Choice(only=(f"answers:{NAME}*",))
    report = Runner(parse("sample"), [of_sample()[0]], choice=choice, full=full).run([stories])
    assert sum(suite.traces for suite in report.suites) == 2 * full
    assert [entry.what for entry in report.not_run if "--full" in entry.why] == (
        [] if full else ["answers: the longest prompts"]
    )
