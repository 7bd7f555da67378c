"""What an engine declares or does that leaves little to judge: it is counted, said in one line,
and not taken for a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count

import pytest
from msgspec.structs import replace

from cachewitness.core.checkers.finding import excused, reused
from cachewitness.core.driving import drive
from cachewitness.core.engine import Engine
from cachewitness.core.events import (
    Aborted,
    Event,
    Eviction,
    Finished,
    Header,
    ResetDone,
    StepBegin,
    Submitted,
    Unpublish,
)
from cachewitness.core.intake import BadEvents
from cachewitness.core.result import EXIT_FAIL, EXIT_NOTHING_CHECKED, EXIT_PASS
from cachewitness.core.trace_format import (
    Abort,
    Finish,
    Op,
    Reset,
    Step,
    Submit,
    Trace,
    TraceHeader,
)
from cachewitness.engines import policy as policies
from cachewitness.engines.kind import EngineKind
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.report.expected import Entry, Expectations
from cachewitness.report.summary import Report
from cachewitness.report.terminal import covered, reasons
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import SUITES
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.layouts import load

FULL = Configuration(load("full"))
INVARIANTS = [suite for suite in SUITES if suite.name == "invariants"]


class Changed:
    """The reference, which says something else of itself, and gives up the requests that
    `engine_aborts` picks by their number.
    """

    ends: type[Abort | Finish] = Abort

    def __init__(
        self,
        header: TraceHeader,
        say: Callable[[Header], Header],
        engine_aborts: Callable[[int], bool],
    ) -> None:
        self._engine = parse("reference").open(header)
        self._say = say
        self._engine_aborts = engine_aborts
        self._numbers = count()

    def describe(self) -> Header:
        return self._say(self._engine.describe())

    def apply(self, op: Op) -> list[Event]:
        events = self._engine.apply(op)
        if isinstance(op, Submit) and self._engine_aborts(next(self._numbers)):
            # An `Aborted` that calls itself asked for is marked as what it is.
            events = [event for event in events if isinstance(event, Submitted)] + [
                *self._engine.apply(self.ends(op.r))
            ]
        return events

    def close(self) -> None:
        self._engine.close()


class EndsEarly(Changed):
    """The same, which says of the requests that it gives up that they have ended as intended."""

    ends = Finish


def declaring(
    say: Callable[[Header], Header],
    engine_aborts: Callable[[int], bool] = lambda number: False,
    changed: type[Changed] = Changed,
) -> Report:
    """Run the scenarios of one layout on the reference that says so, or gives requests up."""

    def opened(header: TraceHeader, options: Mapping[str, str]) -> Engine:
        return changed(header, say, engine_aborts)

    spec = EngineSpec(
        EngineKind("changed", "a reference", ("manager",), opened, replays=False), {}, "changed"
    )
    return Runner(spec, [FULL]).run(INVARIANTS)


def evicting(eviction: Eviction) -> Callable[[Header], Header]:
    return lambda header: replace(
        header, pools=[replace(pool, eviction=eviction) for pool in header.pools]
    )


def taking(most: int) -> Callable[[Header], Header]:
    return lambda header: replace(header, rules=replace(header.rules, max_prompt=most))


def test_a_window_over_answers_that_the_trace_does_not_ask_for_is_refused() -> None:
    """An engine that says of itself that it may forget its answers is not judged by that."""
    with pytest.raises(
        BadEvents, match=r"answer_window 4 - at `\$.groups`; the trace's option rswa_window is 0"
    ):
        declaring(
            lambda header: replace(
                header, groups=[replace(group, answer_window=4) for group in header.groups]
            )
        )


@pytest.mark.parametrize("changed", [Changed, EndsEarly])
def test_an_engine_that_gives_requests_up_is_found(changed: type[Changed]) -> None:
    """Every second one, though the pool has room for each: nobody asked for it, however the
    engine calls their end.
    """
    report = declaring(lambda header: header, lambda number: number % 2 == 0, changed)
    assert report.exit_code == EXIT_FAIL
    assert {failure.finding.anomaly for failure in report.failures} == {"no-progress"}
    assert "gave" in report.failures[0].finding.sentence
    assert "requests aborted by the engine" in covered(report)


def aborting(header: Header) -> Header:
    return replace(header, rules=replace(header.rules, engine_aborts=True))


def test_who_declares_that_it_gives_requests_up_does_so_for_want_of_room_alone() -> None:
    """Every fourth request is given up, in pools that have room for it beside all others."""
    report = declaring(aborting, lambda number: number % 4 == 0)
    assert {failure.finding.anomaly for failure in report.failures} == {"no-progress"}
    assert "had room beside the others" in report.failures[0].finding.sentence


def test_requests_given_up_for_want_of_room_are_counted() -> None:
    """The first two requests leave no room for the third, which is aborted when it comes."""
    header = TraceHeader("full", FULL.layout, pages=9)
    ops: list[Op] = [Submit("a", "a:48"), Submit("b", "b:40"), Step(run=[("a", 48), ("b", 40)])]
    result = drive(
        Trace(header, [*ops, Submit("c", "c:40")]), Changed(header, aborting, lambda n: n == 2)
    )
    assert not result.findings and "progress 1 times by engine_aborts" in excused(result.tallies)


@pytest.mark.parametrize("changed", [Changed, EndsEarly])
def test_an_engine_that_takes_no_prompt_was_not_checked(changed: type[Changed]) -> None:
    """Where it declares that it takes no prompt of more than a token, it may give up all of
    them, and nothing was judged.
    """
    report = declaring(taking(1), lambda number: True, changed)
    assert report.exit_code == EXIT_NOTHING_CHECKED
    assert any("requests, more than half" in line for line in report.vacuous)


def test_what_is_longer_than_the_engine_takes_is_given_up_lawfully() -> None:
    """A prompt beyond `max_model_len`, and one beyond the pool: neither can ever run."""
    header = TraceHeader("long", FULL.layout, pages=9, options={"max_model_len": 100})
    result = drive(
        Trace(
            header,
            [Submit("a", "doc:100"), Submit("b", "doc:40"), Step(run=[("b", 40)]), Finish("b")],
        ),
        opened(header),
    )
    assert [
        event.r for event in result.history.events if isinstance(event, Aborted) and event.by_engine
    ] == ["a"]
    assert not result.findings and (
        result.activity.requests,
        result.activity.aborted_by_engine,
    ) == (2, 1)


def test_what_has_grown_as_long_as_the_engine_lets_it_ends_lawfully() -> None:
    """A prompt of 99 tokens where a request may have 100: its first token is its last, and the
    engine ends it.
    """
    header = TraceHeader(
        "grown", FULL.layout, pages=20, level="scheduler", options={"max_model_len": 100}
    )
    result = drive(Trace(header, [Submit("a", "doc:99"), Step(), Step()]), opened(header))
    assert [event.by_engine for event in result.history.events if isinstance(event, Finished)] == [
        False
    ]
    assert not result.findings and not result.activity.aborted_by_engine


def opened(header: TraceHeader) -> Engine:
    return parse("reference").open(header)


def test_a_client_that_goes_away_is_no_request_given_up() -> None:
    """Whether it goes between two steps, or while one is scheduled."""
    header = TraceHeader("gone", FULL.layout, pages=20)
    ops = [
        Submit("a", "doc:40"),
        Submit("b", "doc:40"),
        Step(run=[("a", 9), ("b", 9)], cancel=["a"]),
        Abort("b"),
    ]
    result = drive(Trace(header, ops), opened(header))
    assert [event.by_engine for event in result.history.events if isinstance(event, Aborted)] == [
        False,
        False,
    ]


def test_what_a_declared_order_switches_off_is_said() -> None:
    """The line that the gate repeats names the rule, the declaration, and how often each was and
    was not judged.
    """
    report = declaring(evicting(Eviction("random")))
    assert report.exit_code == EXIT_PASS
    assert "not judged, as the engine declares: eviction" in covered(
        report
    ) and "by order random" in covered(report)
    assert "not judged" not in covered(declaring(lambda header: header))


def denying(header: Header) -> Header:
    return replace(header, not_applicable={**header.not_applicable, "eviction": "trust me"})


@pytest.mark.parametrize("policy", ["vllm", "openvino_genai"])
def test_a_rule_that_applies_and_is_denied_was_not_checked(policy: str) -> None:
    """An engine that declares how keys end, and that nothing of it is to be judged, is told so;
    unless the list of expected failures lets it.
    """

    def opened(header: TraceHeader, options: Mapping[str, str]) -> Engine:
        return Changed(header, denying, nobody)

    kind = EngineKind("denying", "a reference", ("manager",), opened, replays=False)
    configuration = policies.get(policy).configurations()[0]
    line = "not judged at all, as the engine declares: eviction (trust me)"

    def run(expected: Expectations) -> Report:
        spec = EngineSpec(kind, {}, "denying")
        return Runner(spec, [configuration], expected=expected, policy=policy).run(INVARIANTS)

    report = run(Expectations())
    assert report.exit_code == EXIT_NOTHING_CHECKED and line in covered(report)
    assert reasons(report) == [
        "rule eviction applies, and the engine declares that it does not: trust me"
    ]
    listed = Entry(pattern="*", anomaly="denied-rule", cause="eviction", reason="by design")
    report = run(Expectations([listed]))
    assert report.exit_code == EXIT_PASS and line in covered(report)


class Flushing(Changed):
    """Forgets every key with each step and each request that ends, and calls that an eviction."""

    def apply(self, op: Op) -> list[Event]:
        events = self._engine.apply(op)
        if not isinstance(op, Finish | Step):
            return events
        more = [event for event in self._engine.apply(Reset()) if not isinstance(event, ResetDone)]
        return events + [
            replace(event, reason="evict") if isinstance(event, Unpublish) else event
            for event in more
        ]


REPLAYED = [
    op
    for r in "abc"
    for op in (Submit(r, f"doc:40 {r}:3"), Step(run=[(r, 43)]), Step(run=[(r, 1)]), Finish(r))
]


@pytest.mark.parametrize(
    ("eviction", "line"),
    [
        (Eviction("lru", watermark=0.01), "by watermark 0.01"),
        (Eviction("lru-used", free_first=False, watermark=0.5), "by free_first false"),
    ],
)
def test_keys_that_ended_while_a_page_was_free_are_counted(eviction: Eviction, line: str) -> None:
    """Lawful by what the engine declares, and said."""
    header = TraceHeader("replayed", FULL.layout, pages=20)
    result = drive(
        Trace(header, REPLAYED), Flushing(header, evicting(eviction), lambda number: False)
    )
    assert not result.findings and line in excused(result.tallies)
    assert "0 tokens got, 0 owed by what was kept; 64 had been computed before" in reused(
        result.tallies
    )


def test_a_request_may_not_be_declared_shorter_than_nothing() -> None:
    header = TraceHeader("short", FULL.layout, pages=9)
    with pytest.raises(BadEvents, match="max_prompt"):
        drive(Trace(header, []), Changed(header, taking(-1), lambda number: False))


class Starving(Changed):
    """Runs the first request of a trace alone, and answers that it was asked for the others as
    well.
    """

    first = ""

    def apply(self, op: Op) -> list[Event]:
        if isinstance(op, Submit):
            self.first = self.first or op.r
        if not isinstance(op, Step):
            return super().apply(op)
        events = super().apply(
            replace(op, run=[(r, tokens) for r, tokens in op.run if r == self.first])
        )
        return [
            replace(event, asked=op.run) if isinstance(event, StepBegin) else event
            for event in events
        ]


def patient(steps: int) -> Callable[[Header], Header]:
    return lambda header: replace(header, rules=replace(header.rules, progress_steps=steps))


def reserving(share: float) -> Callable[[Header], Header]:
    """Say that so large a share of the pool, of which a page is left, is reserved."""
    return lambda header: replace(
        header, rules=replace(header.rules, reserved_pages=int(share * (header.pools[0].pages - 1)))
    )


def nobody(number: int) -> bool:
    return False


BOUNDS = [
    (patient(1024), "progress_steps 1024"),
    (reserving(1), "reserved_pages of more than half a pool"),
]


@pytest.mark.parametrize(
    ("changed", "say", "declaration"),
    [(Changed, *BOUNDS[0]), (Starving, *BOUNDS[0]), (Changed, *BOUNDS[1])],
)
def test_a_patience_that_no_trace_is_long_enough_for_was_not_checked(
    changed: type[Changed], say: Callable[[Header], Header], declaration: str
) -> None:
    """Of an engine that starves everybody but one, and of one without a fault, the run says that
    it could not tell.
    """
    report = declaring(say, nobody, changed)
    assert (report.failures, report.exit_code) == ([], EXIT_NOTHING_CHECKED)
    assert [
        line
        for line in report.vacuous
        if f"checker progress could not judge once, as the engine declares {declaration}" in line
    ]
    assert f"by {declaration}" in covered(report)


@pytest.mark.parametrize("say", [patient(4), patient(16), reserving(0.5), BOUNDS[1][0]])
def test_a_patience_that_traces_are_long_enough_for_is_judged(
    say: Callable[[Header], Header],
) -> None:
    """Whatever is reserved beside others, who has the pool alone runs as it declares."""
    assert {failure.finding.anomaly for failure in declaring(say, nobody, Starving).failures} == {
        "no-progress"
    }
    if say is not BOUNDS[1][0]:
        report = declaring(say)
        assert report.exit_code == EXIT_PASS and "progress" not in covered(report)
