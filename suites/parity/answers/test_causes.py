"""A failure names what has to be left out for it to pass, a list of expected failures may name
it, and traces can avoid it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.driving import attempt
from cachewitness.core.engine_failure import EngineFailure
from cachewitness.core.events import Answer, Event
from cachewitness.core.trace_format import Abort, Finish, Op, Step, Submit, Trace
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.parity.answers import causes
from cachewitness.parity.answers.baseline import BaselineFailed
from cachewitness.parity.answers.causes import find
from cachewitness.parity.answers.compare import runs
from cachewitness.report.expected import Entry
from cachewitness.sessions.run.minimize import smallest
from cachewitness.systems.sample import engine as sample
from cachewitness.workloads.answer_random import random_answers
from cachewitness.workloads.answer_stories import STORIES, write
from cachewitness.workloads.avoided import (
    AVOIDABLE,
    MEANINGS,
    UNSPLIT,
    avoiding,
    describe_cause,
    is_cause,
)
from suites.support.sampled import fewer

WHOLE, SPLIT = (configuration.shape("answers") for configuration in sample.configurations())
CAUSES = {
    "snapshot-one-token-early": (write(WHOLE, "replays", 0), "cache"),
    "cancelled-block-keeps-its-name": (write(SPLIT, "cancelled", 0), "aborts+chunks"),
    "restored-into-another-slot": (random_answers(WHOLE, 0), "company"),
    "preempted-is-lost": (write(SPLIT, "pressure", 0), "company+pressure"),
}


@pytest.mark.parametrize(
    ("fault", "trace", "cause"), [(fault, *case) for fault, case in CAUSES.items()]
)
def test_a_fault_has_its_cause(fault: str, trace: Trace, cause: str) -> None:
    """It is what the mechanism of the fault needs."""
    spec = parse(f"sample:mutant={fault}")
    findings = runs(trace, spec).findings
    find(trace, spec, findings)
    assert findings[0].cause == cause


class SplitWrongly(sample.SampleEngine):
    """Answers wrongly where a prompt took several steps, with its cache or without it."""

    def apply(self, op: Op) -> list[Event]:
        chunk = self.server.chunk
        events = super().apply(op)
        return [_less_probable(event) if chunk < 64 else event for event in events]


def _less_probable(event: Event) -> Event:
    assert isinstance(event, Answer)
    return changed(
        event, logprobs=[logprob - 0.01 for logprob in event.logprobs if logprob is not None]
    )


def test_what_fails_without_the_cache_is_the_batch() -> None:
    """The control fails too, and the cause says that the cache is not to blame."""

    def opened(header: Any, options: Any) -> SplitWrongly:
        return SplitWrongly(header, options)

    spec = EngineSpec(replace(sample.ENGINE, open=opened), {}, "sample")
    trace = write(SPLIT, "replays", 0)
    findings = runs(trace, spec).findings
    find(trace, spec, findings)
    assert {finding.cause for finding in findings} == {"batch"}

    off = replace(spec, options={"caching": "off"})
    findings = runs(trace, off).findings
    find(trace, off, findings)
    assert {finding.cause for finding in findings} == {"batch+chunks"}


class Crowded(sample.SampleEngine):
    """With its cache it does not bear that somebody comes while others run."""

    def apply(self, op: Op) -> list[Event]:
        if isinstance(op, Submit) and self.server.running and self.server.cache.enabled:
            self.beside(op)
        return super().apply(op)

    def beside(self, op: Submit) -> None:
        raise RuntimeError("no room")


class WrongTwice(Crowded):
    """Answers wrongly beside others, and to who was asked before."""

    wrong = ""
    asked = ""

    def beside(self, op: Submit) -> None:
        self.wrong = op.r

    def apply(self, op: Op) -> list[Event]:
        if isinstance(op, Submit):
            replays = op.prompt == self.asked and self.server.cache.enabled
            self.wrong = op.r if replays else self.wrong
            self.asked = op.prompt
        events = super().apply(op)
        return [_less_probable(event) if event.r == self.wrong else event for event in events]


@pytest.mark.parametrize(
    ("engine", "anomaly", "cause"),
    [
        (Crowded, "engine-crashed", "company"),
        (WrongTwice, "answer-differs", "replays&company"),
    ],
)
def test_a_crash_has_a_cause_and_two_things_may_be_one_together(
    engine: type[Crowded], anomaly: str, cause: str
) -> None:
    """A list that names the cause excuses it, and for two things `cache` does as well."""
    spec = EngineSpec(replace(sample.ENGINE, open=engine), {}, "sample")
    ops: list[Op] = [Submit("a", "x:9", generate=4), Step(), Submit("b", "x:9", generate=1)]
    trace = write(WHOLE, "idle", 0).with_ops([*ops, Finish("b"), Finish("a")])
    findings = list(attempt(lambda: runs(trace, spec))[0].findings)
    find(trace, spec, findings)
    assert [(one.anomaly, one.cause) for one in findings if one.anomaly == anomaly] == [
        (anomaly, cause)
    ]
    excused = {
        named: Entry(pattern="*", anomaly=anomaly, cause=named, reason="").excuses(findings[0])
        for named in (cause, "cache", "replays")
    }
    assert excused == {cause: True, "cache": "&" in cause, "replays": False}


class Intervals(sample.SampleEngine):
    """Answers wrongly what it restores, of prompts of some lengths, where states lie further apart
    than blocks; and of others always.
    """

    def __init__(self, header: Any, options: Any) -> None:
        full, recurrent = header.layout.groups
        self.apart = recurrent.block_size > full.block_size
        super().__init__(changed(header, layout=changed(header.layout, groups=[full])), options)
        self.lengths = dict[str, int]()

    def apply(self, op: Op) -> list[Event]:
        if isinstance(op, Submit):
            self.lengths[op.r] = len(op.tokens)
        events = super().apply(op)
        return [
            _less_probable(event) if self.restores_wrongly(event) else event for event in events
        ]

    def restores_wrongly(self, event: Event) -> bool:
        return isinstance(event, Answer) and bool(
            event.restored and (self.apart or self.lengths[event.r] > 30)
        )


def test_what_is_right_where_each_block_has_a_state_is_told_from_other_wrong_hits() -> None:
    """A list of what an engine does between its states excuses nothing else."""

    def opened(header: Any, options: Any) -> Intervals:
        return Intervals(header, options)

    spec = EngineSpec(replace(sample.ENGINE, open=opened), {}, "sample")
    ops: list[Op] = []
    for r, prompt in {"a": "x:20", "b": "x:20 y:3", "c": "x:20 z:20"}.items():
        ops += [Submit(r, prompt, generate=2), *[Step()] * 9, Finish(r)]
    trace = write(WHOLE, "idle", 0).with_ops(ops)
    full, recurrent = trace.header.layout.groups
    wide = changed(recurrent, block_size=2 * recurrent.block_size)
    layout = changed(trace.header.layout, groups=[full, wide])
    trace = Trace(changed(trace.header, layout=layout), trace.ops)
    findings = runs(trace, spec).findings
    find(trace, spec, findings)
    assert {one.r: one.cause for one in findings} == {"b": "intervals", "c": "cache"}
    excused = {
        named: [
            Entry(pattern="*", anomaly="answer-differs", cause=named, reason="").excuses(one)
            for one in findings
        ]
        for named in ("intervals", "cache")
    }
    assert excused == {"intervals": [True, False], "cache": [True, True]}


@pytest.mark.parametrize("name", AVOIDABLE)
@pytest.mark.parametrize("shape", [WHOLE, SPLIT])
def test_what_is_avoided_is_gone(name: str, shape: Any) -> None:
    """Whatever the trace; every request is still submitted, and a right engine still passes."""
    for trace in [write(shape, story, 1) for story in STORIES] + [
        random_answers(shape, seed) for seed in range(fewer(20, 6))
    ]:
        other = AVOIDABLE[name][1](trace)
        asked = [op.r for op in other.ops if isinstance(op, Submit)]
        assert asked == [op.r for op in trace.ops if isinstance(op, Submit)]
        assert CHECKS[name](other), trace.header.name
        assert AVOIDABLE[name][1](other) == other


def _apart(trace: Trace) -> bool:
    under_way: set[str] = set()
    for op in trace.ops:
        if isinstance(op, Submit):
            under_way.add(op.r)
        elif isinstance(op, Finish | Abort):
            under_way.discard(op.r)
        if len(under_way) > 1:
            return False
    return all(isinstance(op, Submit | Finish | Abort | Step) for op in trace.ops)


def _replays(trace: Trace) -> int:
    """Count prompts that an earlier request computed whole, by the ids that a right engine gives
    them.
    """
    seen: list[list[int]] = []
    count = 0
    for event in runs(trace, parse("sample")).history.events:
        if type(event).__name__ == "Submitted":
            count += any(text[: len(event.tokens)] == event.tokens for text in seen)
            seen.append(list(event.tokens))
    return count


CHECKS = {
    "continuations": lambda trace: (
        not any("@" in op.prompt.replace("@~", "") for op in trace.ops if isinstance(op, Submit))
    ),
    "aborts": lambda trace: not any(isinstance(op, Abort) for op in trace.ops),
    "replays": lambda trace: _replays(trace) == 0,
    "company": _apart,
    "pressure": lambda trace: trace.header.pages >= 4096,
    "chunks": lambda trace: trace.header.options["chunk"] == UNSPLIT,
    "intervals": lambda trace: len({group.block_size for group in trace.header.layout.groups}) == 1,
}


def test_causes_are_known_words() -> None:
    """Each has a meaning that a report tells, and nothing else can be avoided."""
    assert set(MEANINGS) == {*AVOIDABLE, "batch", "cache", "decoding"}
    assert is_cause("company+batch") and is_cause("aborts&company")
    assert not any(map(is_cause, ("", "aborts&", "aborts&batch", "aborts&company&replays")))
    assert describe_cause("aborts&company").startswith("it passes if no client goes away and if")
    with pytest.raises(UsageError, match="did you mean 'aborts'"):
        avoiding(write(WHOLE, "idle", 0), "abort")


def test_an_expected_failure_names_a_cause_and_traces_can_avoid_it(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Listed by its cause it is expected in every configuration; without it nothing is left to
    be found.
    """
    monkeypatch.chdir(tmp_path)
    asked = [
        "run",
        "--engine",
        "sample:mutant=cancelled-block-keeps-its-name",
        "--suite",
        "answers",
    ]
    assert invoke([*asked, "--layout", "sample-16", "--fail-fast"]) == 1
    assert "the cause: aborts+chunks, as it passes if no client goes away" in " ".join(
        capsys.readouterr().out.split()
    )
    (tmp_path / "expected.txt").write_text(
        "*:*  answer-differs,aborts+chunks  # names are published before they are written\n"
    )
    assert invoke([*asked, "--layout", "sample-16", "--expected", "expected.txt"]) == 0
    (tmp_path / "expected.txt").write_text("*:*  answer-differs,replays  # another cause\n")
    assert (
        invoke([*asked, "--layout", "sample-16", "--expected", "expected.txt", "--fail-fast"]) == 1
    )
    assert invoke([*asked, "--layout", "sample-16", "--option", "avoid=aborts"]) == 0


def test_a_smaller_trace_avoids_what_the_whole_one_avoids() -> None:
    """Two requests fail, at once as well; drawn without company they are found in turn, and stay
    so when they are shrunk.
    """
    asked: list[Op] = [Submit(f"r{n}", "a:9", generate=1) for n in (1, 2)]
    finding = Finding(anomaly="answer-differs", sentence="", op=-1)
    trace = avoiding(Trace(write(WHOLE, "idle", 0).header, asked), "company")

    def rerun(candidate: Trace, engine: EngineSpec) -> Finding | None:
        last = len(candidate.ops) - 1
        return (
            changed(finding, op=last)
            if sum(isinstance(op, Submit) for op in candidate.ops) == 2
            else None
        )

    kinds = [
        [type(op) for op in smallest(trace, parse("sample"), finding, rerun, avoid).trace.ops]
        for avoid in ("", "company")
    ]
    assert kinds == [[Submit, Submit], [Submit, Finish, Submit, Finish]]


@pytest.mark.parametrize(
    "failure",
    [
        EngineFailure("engine-crashed", "answers 500"),
        BaselineFailed("does not answer"),
        UsageError("busy"),
    ],
)
def test_an_engine_that_fails_while_its_cause_is_looked_for_keeps_its_finding(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cause stays what was found until then."""

    class Failing:
        @property
        def decoded(self) -> float:
            raise failure

    dropped = list[object]()
    monkeypatch.setattr(causes, "baseline_of", lambda *_: Failing())
    monkeypatch.setattr(causes, "drop", dropped.append)
    finding = Finding(anomaly="answer-differs", r="a", sentence="", cause="continuations")
    causes._blame_decoding(write(WHOLE, "conversations", 0), parse("sample"), [finding])
    assert finding.cause == "continuations" and len(dropped) == 1


def test_an_engine_that_cannot_be_opened_again_for_its_cause_keeps_its_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object) -> None:
        raise EngineFailure("engine-crashed", "does not open")

    monkeypatch.setattr(causes, "baseline_of", fails)
    finding = Finding(anomaly="answer-differs", r="a", sentence="", cause="continuations")
    causes._blame_decoding(write(WHOLE, "conversations", 0), parse("sample"), [finding])
    assert finding.cause == "continuations"
