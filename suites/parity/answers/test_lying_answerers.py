"""Whatever an engine answers, or does instead of it, is a verdict or one line, never a pass or a
crash of the harness.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace as changed

from cachewitness._util import data
from cachewitness._util.errors import UsageError
from cachewitness.cli import invoke
from cachewitness.core import trace_format as traces
from cachewitness.core import validate
from cachewitness.core.checkers.answers import compare
from cachewitness.core.declared import check_declared
from cachewitness.core.engine_failure import EngineFailure
from cachewitness.core.events import Answer, Cold, Event, Header
from cachewitness.core.intake import BadEvents
from cachewitness.core.malformed import MalformedHistory
from cachewitness.core.trace_format import Finish, Op, Step
from cachewitness.engines.answers_level import AnswersLevel
from cachewitness.engines.isolation import engine as child_engine
from cachewitness.engines.isolation.engine import Isolation
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.parity.answers.compare import runs
from cachewitness.report.expected import Entry, Expectations
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import SUITES
from cachewitness.systems.sample import engine as sample
from cachewitness.workloads.answer_stories import STORIES, write
from cachewitness_faults.sample.server_faults import FAULTS
from suites.support.foreign_engine import mortal  # noqa: F401
from suites.support.sampled import chosen

CONFIGURATION = sample.configurations()[0]
TRACE = write(CONFIGURATION.shape("answers"), "cancelled", 0)
OF_ANSWERS = [replace(suite, ceiling=False) for suite in SUITES if suite.level == "answers"]
Say = Callable[[Answer], Any]


class Liar:
    """The sample engine; what it answers goes through `say`."""

    def __init__(self, header: Any, options: Any, say: Say) -> None:
        self.engine = sample.SampleEngine(header, options)
        self.say = say if options.get("caching") != "off" else None

    def describe(self) -> Header:
        return self.engine.describe()

    def apply(self, op: Op) -> list[Event]:
        events = self.engine.apply(op)
        return [self.say(event) for event in events] if self.say else events

    def close(self) -> None:
        self.engine.close()


def liar(say: Say) -> EngineSpec:
    kind = replace(sample.ENGINE, open=lambda header, options: Liar(header, options, say))
    return EngineSpec(kind, {}, "sample")


def raises(answer: Answer) -> Answer:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


WRONG: dict[str, tuple[Say, str]] = {
    "another token": (
        lambda a: changed(a, tokens=[(a.tokens[0] + 1) % 89, *a.tokens[1:]], logprobs=[]),
        "answer-differs",
    ),
    "no tokens": (lambda a: changed(a, tokens=[], logprobs=[], ended="stop"), "answer-differs"),
    "a token less": (
        lambda a: changed(a, tokens=a.tokens[:-1], logprobs=a.logprobs[:-1], ended="stop"),
        "answer-differs",
    ),
    "no numbers after a hit": (
        lambda a: changed(a, logprobs=[]) if a.restored > 0 else a,
        "answer-differs",
    ),
    "no number": (lambda a: changed(a, logprobs=[math.nan, *a.logprobs[1:]]), "answer-differs"),
    "infinity": (lambda a: changed(a, logprobs=[-math.inf, *a.logprobs[1:]]), "answer-differs"),
    "a missing number": (lambda a: changed(a, logprobs=[None, *a.logprobs[1:]]), "answer-differs"),
    "a token of no vocabulary": (
        lambda a: changed(a, tokens=[10**9, *a.tokens[1:]]),
        "answer-differs",
    ),
    "a little less probable": (
        lambda a: changed(a, logprobs=[p - 1e-5 for p in a.logprobs]),
        "answer-differs",
    ),
    "refused": (
        lambda a: changed(a, tokens=[], logprobs=[], ended="refused") if a.restored else a,
        "answer-missing",
    ),
    "cancelled": (
        lambda a: changed(a, tokens=[], logprobs=[], ended="cancelled"),
        "answer-missing",
    ),
}
UNREADABLE: dict[str, tuple[Say, str]] = {
    "nothing": (lambda a: None, "event 1 (a NoneType)"),
    "a text": (lambda a: "hello", "event 1 (a str)"),
    "tokens that are texts": (lambda a: changed(a, tokens=["a"]), "at `$.tokens[0]`"),
    "a stranger": (lambda a: changed(a, r="nobody"), "request 'nobody' was never submitted"),
    "logprobs of other tokens": (lambda a: changed(a, logprobs=[0.0] * 99), "99 of"),
    "tokens without end": (
        lambda a: changed(a, tokens=[1] * 1000, logprobs=[]),
        "1000 tokens - at `$.tokens`",
    ),
    "more restored than there is": (
        lambda a: changed(a, restored=10**6),
        "1000000 - at `$.restored`",
    ),
    "restored below nothing": (lambda a: changed(a, restored=-7), "at `$.restored`"),
    "a token below nothing": (
        lambda a: changed(a, tokens=[-1, *a.tokens[1:]]),
        "a token id outside 0 to",
    ),
    "fewer tokens, and no end": (
        lambda a: changed(a, tokens=a.tokens[:1], logprobs=a.logprobs[:1]),
        "'length' after 1 tokens - at `$.ended`",
    ),
}


@pytest.mark.parametrize(("say", "anomaly"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_answer_is_a_finding_of_the_engine(say: Say, anomaly: str) -> None:
    """It is never a failure of the harness, whatever the answer looks like."""
    report = Runner(liar(say), [CONFIGURATION], fail_fast=True).run(OF_ANSWERS[:1])
    assert report.exit_code == 1 and report.failures[0].finding.anomaly == anomaly


@pytest.mark.parametrize(("say", "message"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_an_answer_that_cannot_be_followed_is_one_line(say: Say, message: str) -> None:
    """It names the engine, the operation and the field; the exit code is 4."""
    report = Runner(liar(say), [CONFIGURATION]).run(OF_ANSWERS[:1])
    assert report.exit_code == 4 and message in report.bad_events[0]
    assert report.bad_events[0].startswith("trace replays: engine sample, operation ")


def test_an_exception_is_a_death_and_the_run_goes_on() -> None:
    """Every trace is run, and each fails with `engine-crashed`."""
    spec = liar(raises)
    report = Runner(spec, [CONFIGURATION]).run(OF_ANSWERS[:1])
    assert report.exit_code == 1 and {failure.finding.anomaly for failure in report.failures} == {
        "engine-crashed"
    }
    assert (
        report.suites[0].traces
        == len([one for one in report.failures if not one.engine])
        == len(STORIES)
    )


def test_a_twin_that_restores_is_one_line() -> None:
    """An engine that does not heed that its cache is to be off would be compared with its own
    mistakes.
    """
    kind = replace(sample.ENGINE, answers_level=AnswersLevel({"caching": "on"}), controls=None)
    report = Runner(EngineSpec(kind, {}, "sample"), [CONFIGURATION]).run(OF_ANSWERS[:1])
    assert (
        report.exit_code == 4
        and "goes on from 8 tokens that are kept; it must compute every prompt whole"
        in str(report.bad_events)
    )


class Twinned(Liar):
    """What its baseline answers goes through `say` as well."""

    def __init__(self, header: Any, options: Any, say: Say) -> None:
        super().__init__(header, options, say)
        self.say = say


NAMES = (f"twinned-{number}" for number in count())
"""A baseline is kept by the name of its engine, so each of these has its own."""


def twinned(say: Say) -> EngineSpec:
    name = next(NAMES)
    return EngineSpec(
        replace(
            sample.ENGINE, name=name, open=lambda header, options: Twinned(header, options, say)
        ),
        {},
        name,
    )


ALIKE: dict[str, Say] = {
    "one answer for all": lambda a: changed(
        a, tokens=[7] * len(a.tokens), logprobs=[-0.5] * len(a.tokens)
    ),
    "no number, and one token": lambda a: changed(
        a, tokens=[0] * len(a.tokens), logprobs=[math.nan] * len(a.tokens)
    ),
    "no token": lambda a: changed(a, tokens=[], logprobs=[], ended="stop"),
}


@pytest.mark.parametrize("say", ALIKE.values(), ids=ALIKE.keys())
def test_an_engine_that_answers_every_prompt_alike_is_one_line(say: Say) -> None:
    """Such answers agree whatever was read, so nothing is shown."""
    report = Runner(twinned(say), [CONFIGURATION]).run(OF_ANSWERS[:1])
    assert report.exit_code == 4 and "answers 5 different prompts alike" in report.bad_events[0]


def test_tokens_that_share_everything_are_no_tie() -> None:
    """Two tokens cannot both have more than half: equal logprobs of 0 do not make them as likely
    as each other.
    """
    certain = twinned(lambda a: changed(a, logprobs=[0.0] * len(a.tokens)))
    assert Runner(certain, [CONFIGURATION]).run(OF_ANSWERS[:1]).exit_code == 0

    class Early(Twinned):
        def __init__(self, header: Any, options: Any, say: Say) -> None:
            super().__init__(header, options, say)
            if options.get("caching") != "off":
                FAULTS["snapshot-one-token-early"].plant(self.engine)

    say = certain.kind.open(TRACE.header, {}).say
    early = replace(
        certain.kind, name=next(NAMES), open=lambda header, options: Early(header, options, say)
    )
    report = Runner(EngineSpec(early, {}, early.name), [CONFIGURATION], fail_fast=True).run(
        OF_ANSWERS[:1]
    )
    assert report.exit_code == 1 and report.failures[0].finding.anomaly == "answer-differs"


@pytest.mark.parametrize(
    ("logprob", "kind"),
    [
        (-0.7, "near-tie"),
        (math.log(0.5) + 1e-4, "near-tie"),
        (-0.6, "token"),
        (-math.inf, "token"),
        (None, "token"),
    ],
)
def test_two_tokens_as_likely_as_each_other_have_half_at_most(
    logprob: float | None, kind: str
) -> None:
    answer = Answer(r="a", tokens=[1], logprobs=[logprob])
    right = Cold(r="a", tokens=[2], logprobs=[logprob], tolerance=2e-4)
    assert compare(answer, right).kind == kind


def test_whoever_is_given_up_with_nobody_else_there_is_missing() -> None:
    """`engine_aborts` says that requests end for want of room beside others."""
    spec = liar(lambda a: changed(a, tokens=[], logprobs=[], ended="refused") if a.restored else a)

    def opened(header: Any, options: Any) -> Any:
        engine = spec.kind.open(header, options)
        declared = engine.describe()
        engine.describe = lambda: changed(
            declared, rules=changed(declared.rules, engine_aborts=True)
        )
        return engine

    report = Runner(
        replace(spec, kind=replace(spec.kind, open=opened)), [CONFIGURATION], fail_fast=True
    ).run(OF_ANSWERS[:1])
    assert report.exit_code == 1 and report.failures[0].finding.anomaly == "answer-missing"


def test_an_engine_cannot_declare_that_its_answers_are_not_judged() -> None:
    header = sample.SampleEngine(TRACE.header, {}).describe()
    with pytest.raises(MalformedHistory, match="it applies to every cache"):
        check_declared(changed(header, not_applicable={"answers": "they are good"}))


def test_the_engine_makes_steps_with_nothing_to_do() -> None:
    """As the story `idle` has it: what it does then to its cache is seen."""
    steps = list[int]()

    class Counted(Liar):
        def apply(self, op: Op) -> list[Event]:
            steps.append(isinstance(op, Step))
            return super().apply(op)

    kind = replace(
        sample.ENGINE, open=lambda header, options: Counted(header, options, lambda a: a)
    )
    idle = write(CONFIGURATION.shape("answers"), "idle", 0)
    assert runs(idle, EngineSpec(kind, {}, "sample")).findings == []
    assert sum(steps) == sum(isinstance(op, Step) for op in idle.ops) > 3


def test_an_engine_that_hangs_as_expected_was_not_checked_to_the_end() -> None:
    """After three hangs a run ends, with `--fail-fast` too, which stops at what is not expected
    alone.
    """
    spec = liar(hangs)
    known = Expectations([Entry(pattern="*", anomaly="hung", reason="known")])
    for fail_fast in (False, True):
        report = Runner(spec, [CONFIGURATION], expected=known, fail_fast=fail_fast).run(
            OF_ANSWERS[:1]
        )
        assert report.exit_code == 5 and any(
            "the engine hung in 3 traces" in line for line in report.vacuous
        )


def hangs(answer: Answer) -> Answer:
    raise EngineFailure("hung", "does not answer")


def test_an_engine_that_does_not_say_what_it_restored_has_checked_nothing() -> None:
    """Right answers alone do not show that anything was restored."""
    report = Runner(liar(lambda a: changed(a, restored=-1)), [CONFIGURATION]).run(OF_ANSWERS[:1])
    assert report.exit_code == 5


ENDS = {
    "segfault": "engine-crashed",
    "abort": "engine-crashed",
    "flood": "engine-crashed",
    "exit-0": "engine-crashed",
    "hang": "hung",
}


@pytest.mark.usefixtures("mortal")
@pytest.mark.parametrize(
    ("how", "anomaly"), chosen([*ENDS.items()], ("segfault", "engine-crashed"), ("hang", "hung"))
)
def test_an_engine_that_ends_its_process_gets_a_verdict_and_the_run_goes_on(
    how: str, anomaly: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies when a client goes away; stories in which none does still run."""
    monkeypatch.setattr(child_engine, "HURRIED_MIN", 0.4)
    spec = parse(f"mortal-answers:how={how},at=abort").isolated(Isolation(deadline=1.0))
    report = Runner(spec, [CONFIGURATION]).run(OF_ANSWERS[:1])
    assert report.exit_code == 1 and [failure.finding.anomaly for failure in report.failures] == [
        anomaly
    ]
    assert report.suites[0].traces == len(STORIES)
    assert len(report.failures[0].shrunk.ops) <= 2


@pytest.mark.usefixtures("mortal")
def test_garbage_on_its_pipe_is_one_line() -> None:
    """Exit code 4, with the line."""
    spec = parse("mortal-answers:how=garbage,at=abort").isolated(Isolation(deadline=20.0))
    with pytest.raises(UsageError, match="its answers"):
        Runner(spec, [CONFIGURATION]).run(OF_ANSWERS[:1])


REFUSED = {
    '{"op":"submit","r":"a","prompt":"x:4"}': (
        "0 - at `$.generate`; at answers level a request generates at least one token"
    ),
    '{"op":"submit","r":"a","prompt":"x:4","generate":2,"tokens":[1,2]}': (
        "ids - at `$.tokens`; the harness fills them in"
    ),
    '{"op":"step","run":[["a",4]]}': "at answers level the engine schedules",
    '{"op":"preempt","r":"a"}': "at answers level nobody is preempted by request",
}


@pytest.mark.parametrize(("line", "message"), REFUSED.items())
def test_a_trace_that_asks_for_what_there_is_not_is_refused(
    line: str, message: str, tmp_path
) -> None:
    """With file, line and field."""
    first = '{"op":"submit","r":"a","prompt":"x:4","generate":2}'
    lines = [
        traces.dump(TRACE).splitlines()[0].decode(),
        *([first] if "submit" not in line else []),
        line,
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(UsageError) as refused:
        validate.load_trace(path)
    assert str(refused.value).startswith(f"{path}:{len(lines)}: ") and message in str(refused.value)


def test_generate_is_refused_at_other_levels(tmp_path) -> None:
    """There a request generates as long as the trace has steps for it."""
    header = changed(TRACE.header, level="scheduler", policy="vllm")
    path = tmp_path / "t.jsonl"
    traces.save(traces.Trace(header, [traces.Submit("a", "x:4", generate=2), Finish("a")]), path)
    with pytest.raises(UsageError, match="only at answers level requests end by themselves"):
        validate.load_trace(path)


def test_an_event_of_pages_is_refused() -> None:
    """An engine that tells pages is judged by them, at another level."""
    header = sample.SampleEngine(TRACE.header, {}).describe()
    with pytest.raises(BadEvents, match="an engine at answers level tells no pages"):
        runs(TRACE, EngineSpec(replace(sample.ENGINE, open=lambda *_: Paged(header)), {}, "sample"))


class Paged:
    """Describes itself with a pool."""

    def __init__(self, header: Header) -> None:
        self.header = changed(header, pools=[{"id": 0, "pages": 4}])

    def describe(self) -> Header:
        from cachewitness.core.events import Pool

        return changed(self.header, pools=[Pool(0, 4)])


def test_the_command_line_runs_and_replays(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """`run` picks the suites by level, keeps the failure, and the command that it prints
    replays it.
    """
    monkeypatch.chdir(tmp_path)
    assert invoke(["run", "--engine", "sample", "--suite", "answers", "--layout", "sample-8"]) == 0
    assert "control uncached: 0 of 4 traces have a finding" in capsys.readouterr().out
    failing = "sample:mutant=snapshot-one-token-early"
    assert invoke(["run", "--engine", failing, "--fail-fast", "--report", "r"]) == 1
    out = capsys.readouterr().out
    command = next(line for line in out.splitlines() if line.startswith("replay: ")).split()[2:]
    assert invoke(command) == 1
    assert invoke(["replay", command[1], "--engine", "sample"]) in (0, 5)
    stored = sorted((tmp_path / "r" / "failures").glob("*.history.jsonl"))
    assert invoke(["check", str(stored[0])]) == 1
    assert data.fixtures().is_dir()
