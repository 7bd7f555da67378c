"""An engine that only answers is judged beside its uncached twin: what is right passes, what is
seeded is found.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from cachewitness.core import events as history
from cachewitness.core import stored, validate
from cachewitness.core import trace_format as traces
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.driving import check
from cachewitness.core.events import Answer, Event
from cachewitness.core.trace_format import GroupSpec, Layout, Op, Submit, Trace, length_of
from cachewitness.engines.answers_level import AnswersLevel
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.parity.answers.baseline import BOUNDS, baseline_of
from cachewitness.parity.answers.compare import answered, runs
from cachewitness.report.summary import Report
from cachewitness.sessions.run.minimize import smallest
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import SUITES
from cachewitness.systems.sample import engine as sample
from cachewitness.systems.sample.engine import configurations
from cachewitness.workloads.answer_random import random_answers
from cachewitness.workloads.answer_stories import STORIES, write
from cachewitness.workloads.avoided import ROOMY
from cachewitness.workloads.configurations import Configuration
from cachewitness_faults.sample.server_faults import FAULTS
from suites.support.sampled import fewer, sampled

OF_ANSWERS = [suite for suite in SUITES if suite.level == "answers"]
SMALL = configurations()[0]


def run(engine: str, configuration: Configuration = SMALL, **options: object) -> Report:
    return Runner(parse(engine), [configuration], **options).run(OF_ANSWERS)


def roomy(trace: Trace) -> Trace:
    return replace_header(trace, pages=ROOMY)


def replace_header(trace: Trace, **fields: object) -> Trace:
    return Trace(traces.msgspec.structs.replace(trace.header, **fields), trace.ops)


def test_a_right_engine_passes_and_shows_what_it_restored() -> None:
    """Exit code 0, with hits, controls without a finding, and an uncached control that restores
    nothing.
    """
    report = run("sample")
    assert (report.exit_code, report.failures, report.bad_events) == (0, [], [])
    for suite in report.suites:
        assert suite.activity.hit_tokens > 500
        uncached, attention = suite.controls
        assert (uncached.control, uncached.restored, uncached.failed) == ("uncached", 0, 0)
        assert (
            attention.control == "attention-only"
            and attention.restored > 0
            and not attention.failed
        )
    (tally,) = [tally for tally in report.tallies() if not tally.not_applicable]
    assert tally.checker == "answers" and tally.opportunities > 100
    assert (
        tally.measured[0].restored_rows > 500
        and 0 < tally.measured[0].restored < tally.measured[0].asked
    )


@pytest.mark.parametrize("places", [1, 2, 6, len(STORIES), 20])
def test_every_configuration_is_told_every_story_once_and_begins_with_another(places: int) -> None:
    """As many stories are met in the first round as there are configurations; the first of all
    is the exact replays.
    """
    (stories,) = [suite for suite in OF_ANSWERS if suite.spread]
    orders = [
        [t.header.name for t in stories.traces_of(SMALL, 0, place, places)]
        for place in range(places)
    ]
    assert all(sorted(names) == sorted(STORIES) for names in orders)
    assert (
        len({names[0] for names in orders}) == min(places, len(STORIES))
        and orders[0][0] == "replays"
    )


@pytest.mark.parametrize("size", sampled([1, 2, 3], 3, 1))
def test_blocks_of_a_few_tokens_are_served_and_a_fault_in_them_is_found(size: int) -> None:
    """No prompt is empty and no request comes twice, though stories ask for a few tokens less
    than a block.
    """
    groups = [changed(group, block_size=size) for group in SMALL.layout.groups]
    configuration = replace(SMALL, layout=changed(SMALL.layout, groups=groups))
    for story in STORIES:
        asked = [
            op
            for op in write(configuration.shape("answers"), story, 0).ops
            if isinstance(op, traces.Submit)
        ]
        assert len({op.r for op in asked}) == len(asked)
        assert all(count > 0 for op in asked for _, _, count in traces.segments(op.prompt))
    report = run("sample", configuration)
    assert (report.exit_code, report.failures) == (0, []) and all(
        suite.activity.hits > 50 for suite in report.suites
    )
    assert run("sample:mutant=snapshot-one-token-early", configuration).exit_code == 1


@pytest.mark.parametrize("control", ["", "caching=off", "model=attention"])
def test_random_traces_of_a_right_engine_have_no_finding(control: str) -> None:
    """Neither the engine nor a control is accused, under pressure and with room; in runs that
    take all, in a hundred traces.
    """
    spec = parse(f"sample:{control}")
    for configuration in configurations():
        for seed in range(fewer(25, 8)):
            trace = random_answers(configuration.shape("answers"), seed)
            for asked in (trace, roomy(trace)) if seed % 5 == 0 else (trace,):
                assert runs(asked, spec).findings == [], (configuration.name, seed)


@pytest.mark.parametrize("fault", sampled([*FAULTS.values()], 2), ids=lambda fault: fault.name)
def test_a_seeded_fault_is_found_as_announced_and_shrinks(fault) -> None:
    """The suites find it; the smallest trace has ten operations at most, and passes without the
    fault.
    """
    option = ",resumes=told" if fault.checker == "resumes" else ""
    report = run(f"sample:mutant={fault.name}{option}", configurations()[1], fail_fast=True)
    assert report.exit_code == 1
    failure = report.failures[0]
    assert (failure.finding.anomaly, failure.finding.checker) == (fault.anomaly, fault.checker)
    assert failure.finding.sentence.startswith("Let ") and failure.finding.sentence.endswith(
        "a contradiction."
    )
    assert len(failure.shrunk.ops) <= 10
    assert runs(failure.shrunk, parse("sample:resumes=told")).findings == []


EDITED = [
    Submit("a", "sys:40", generate=4),
    traces.Finish("a"),
    Submit("b", "sys:33 b:9", generate=4),
    traces.Finish("b"),
]
"""The end of a prompt is edited: the state behind 32 tokens fits, the one behind 40 does not."""


@pytest.mark.parametrize(
    ("pages", "mutant", "lines", "reasons"),
    [
        (64, ":resumes=told", [], ["nothing is kept that the prompt begins with"]),
        (
            64,
            ":resumes=told,mutant=newest-state-tried-alone",
            [
                "request b restored nothing of its 42 tokens: a state behind 32 tokens fits and was"
                " not used"
            ],
            ["nothing is kept that the prompt begins with"],
        ),
        (64, ":mutant=newest-state-tried-alone", [], []),
    ],
)
def test_a_state_that_fits_and_was_not_used_is_no_excuse(
    pages: int, mutant: str, lines: list[str], reasons: list[str]
) -> None:
    """The finding says which; of an engine that does not say what it keeps it cannot be known, and
    where nothing fits the reason is counted.
    """
    trace = Trace(traces.TraceHeader("edited", SMALL.layout, pages, "answers", "", {}), EDITED)
    result = runs(trace, parse(f"sample{mutant}"))
    assert [finding.line for finding in result.findings] == lines
    (tally,) = [tally for tally in result.tallies if tally.checker == "answers"]
    assert [*tally.excused] == [f"nothing restored: {reason}" for reason in reasons]


def test_a_run_that_restores_nothing_says_why() -> None:
    """The end of a prompt is edited, and no state lies in front: exit code 5, with the reason."""
    asked = [Submit("a", "sys:40", generate=4), Submit("b", "sys:7 b:9", generate=4)]
    ops = [one for op in asked for one in (op, traces.Finish(op.r))]
    header = traces.TraceHeader("edited", SMALL.layout, 64, "answers", "", {})
    edited = OF_ANSWERS[0].of_one(Trace(header, ops))
    report = Runner(parse("sample:resumes=told"), [SMALL]).run([edited])
    reason = "nothing restored: nothing is kept that the prompt begins with"
    assert report.exit_code == 5
    assert f"checker answers had nothing to judge: the engine declares {reason}" in report.vacuous


@pytest.mark.parametrize("model", sampled(["hybrid", "attention"], 2))
def test_a_right_engine_that_tells_what_its_requests_go_on_from_passes(model: str) -> None:
    """Every answer that restored something is told with its state, and each of them is judged."""
    report = run(f"sample:model={model},resumes=told")
    tally = next(tally for tally in report.tallies() if tally.checker == "resumes")
    hits = sum(suite.activity.hits for suite in report.suites)
    assert report.exit_code == 0 and tally.opportunities >= hits > 100


@pytest.mark.parametrize("fault", sorted(FAULTS.keys() - {"pad-rows-move-states"}))
def test_a_fault_does_not_raise_the_noise_floor(fault: str) -> None:
    """What is tolerated comes from uncached computation, which a fault of the cache does not
    touch. Padding is a fault of the computation itself, and is found as one.
    """
    header = write(SMALL.shape("answers"), "replays", 0).header
    assert (
        baseline_of(parse(f"sample:mutant={fault}"), header).floor
        == baseline_of(parse("sample"), header).floor
    )


def test_rounding_that_grows_with_the_batch_is_tolerated_up_to_a_ceiling() -> None:
    """Below it the run passes and tells the floor; above it the batch has changed an answer, which
    is a finding of its own: it names the two, and asks of nobody at float64 for a wider dtype.
    """
    quiet, loud = (
        Runner(parse(f"sample:noise={noise}"), [SMALL]).run(OF_ANSWERS[:1])
        for noise in ("1e-8", "1e-4")
    )
    measured = next(tally for tally in quiet.tallies() if tally.checker == "answers").measured[0]
    assert quiet.exit_code == 0 and 1e-9 < measured.floor < measured.tolerance <= measured.ceiling
    assert loud.exit_code == 1
    found = {(failure.finding.anomaly, failure.finding.cause) for failure in loud.failures}
    assert found == {("baseline-differs", "batch")}
    sentence = loud.failures[0].finding.sentence
    assert "asked alone and beside" in sentence and "wider dtype" not in sentence
    assert not any(suite.crashed or suite.open for suite in loud.suites)


@pytest.mark.parametrize(("dtype", "fraction_bits"), [("float16", 10), ("bfloat16", 7)])
def test_one_logit_that_rounds_the_other_way_is_tolerated_in_half_precision(
    dtype: str, fraction_bits: int
) -> None:
    """Logits lie between 16 and 32 here, where neighbours are 2^(4 - bits) apart, and a wrong
    answer moves them by several.
    """
    step = 2.0 ** (4 - fraction_bits)
    least, ceiling = BOUNDS[dtype]
    assert step <= least < 2 * step < ceiling


def test_an_engine_that_restores_nothing_has_checked_nothing() -> None:
    """Answers that are right prove nothing of a cache that is never hit: exit code 5."""
    report = run("sample:caching=off")
    assert report.exit_code == 5
    assert any("an answer with restored tokens" in why for why in report.vacuous)


def test_an_engine_without_a_twin_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to compare its answers with, and the run says so."""
    spec = parse("sample")
    alone = EngineSpec(replace(spec.kind, answers_level=None), {}, "sample")
    report = Runner(alone, [SMALL]).run(OF_ANSWERS)
    assert report.exit_code == 5 and {entry.why for entry in report.not_run} == {
        "engine sample declares no uncached twin"
    }


@pytest.mark.parametrize("story", STORIES)
def test_a_story_can_be_stored_and_replayed_alike(story: str, tmp_path) -> None:
    """A stored trace is the same trace, its history can be judged again, and two runs of it are
    equal.
    """
    trace = write(configurations()[1].shape("answers"), story, 3)
    traces.save(trace, tmp_path / "t.jsonl")
    assert validate.load_trace(tmp_path / "t.jsonl") == trace
    spec = parse("sample:mutant=snapshot-one-token-early")
    one, other = (answered(trace, spec.open(trace.header), spec) for _ in range(2))
    stored.save(one.history, tmp_path / "h.jsonl")
    again = check(validate.load(tmp_path / "h.jsonl")[0])
    assert (
        list(map(key_of, one.findings))
        == list(map(key_of, other.findings))
        == list(map(key_of, again.findings))
        != []
    )


def key_of(finding: Finding) -> tuple[str, str, int]:
    return finding.anomaly, finding.sentence, finding.seq


class WrongWhenDeep(sample.SampleEngine):
    """Answers wrongly where more than twelve blocks are restored."""

    def apply(self, op: Op) -> list[Event]:
        return [self._altered(event) for event in super().apply(op)]

    def _altered(self, event: Event) -> Event:
        assert isinstance(event, Answer)
        if event.restored <= 12 * self.server.block:
            return event
        return changed(
            event, logprobs=[logprob - 0.01 for logprob in event.logprobs if logprob is not None]
        )


def test_a_fault_that_needs_a_deep_hit_is_reached() -> None:
    """By a default run, in every configuration; where blocks are large, a prefix has fewer of
    them.
    """
    kind = replace(sample.ENGINE, name="deep", open=WrongWhenDeep, controls=None)
    report = Runner(EngineSpec(kind, {}, "deep"), configurations(), shrunk=0).run(OF_ANSWERS[:1])
    assert {failure.id for failure in report.failures} == {
        f"answers:replays@{one.name}" for one in configurations()
    }
    for size, blocks in ((16, 13), (256, 8), (1024, 4)):
        layout = Layout(f"of-{size}", [GroupSpec("full", size)], "", "")
        asked = write(Configuration(layout, {}, "").shape("answers"), "replays", 0).ops
        assert max(length_of(op.prompt) for op in asked if isinstance(op, Submit)) // size == blocks


def test_conversations_continue_from_what_the_engine_said() -> None:
    """The prompt of a later turn begins with the prompt of an earlier one and the very tokens of
    its answer.
    """
    trace = write(SMALL.shape("answers"), "conversations", 0)
    result = runs(trace, parse("sample"))
    asked = {
        event.r: event for event in result.history.events if isinstance(event, history.Submitted)
    }
    answers = {
        event.r: event for event in result.history.events if isinstance(event, history.Answer)
    }
    first = asked["a0"].tokens
    answer = answers["a0"].tokens
    assert (
        asked["a1"].tokens[: len(first) + len(answer)] == first + answer
        and len(answer) == asked["a0"].generate
    )


def test_a_search_for_a_smaller_trace_ends_as_the_kind_says() -> None:
    """An engine that takes long to open is not opened thousands of times."""
    spec = parse("sample:mutant=snapshot-one-token-early")
    level = AnswersLevel(uncached={"caching": "off"}, shrinking=20)
    few = EngineSpec(replace(spec.kind, answers_level=level), spec.options, spec.text)
    trace = write(SMALL.shape("answers"), "replays", 0)
    opened = []

    def rerun(candidate: Trace, engine: EngineSpec) -> Finding | None:
        opened.append(candidate)
        return next(iter(runs(candidate, engine).findings), None)

    finding = runs(trace, spec).findings[0]
    smaller = smallest(trace, few, finding, rerun)
    assert len(opened) <= 25 and len(smaller.trace.ops) < len(trace.ops)


def test_restored_tokens_are_compared_with_a_control_and_prompts_asked_again_are_counted() -> None:
    """On the traces that both ran; a model of attention alone restores no less here."""
    report = run("sample", configurations()[0])
    (row,) = [
        row
        for suite in report.suites
        for row in suite.controls
        if suite.name == "answers" and row.control == "attention-only"
    ]
    assert row.tokens >= row.own > 0
    assert f"{row.tokens:,} tokens restored where the engine itself restores" in row.line
    (tally,) = [tally for tally in report.tallies() if tally.checker == "answers"]
    assert tally.measured[0].repeats > tally.measured[0].repeats_restored > 0
