"""Requests that go on after an answer are left out if it is too short: that is told, and a story
without them does not pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from cachewitness.cli.replay import reasons
from cachewitness.core.events import Answer, Event
from cachewitness.core.result import exit_code
from cachewitness.core.trace_format import Level, Op, Trace
from cachewitness.engines.registry import EngineSpec
from cachewitness.parity.answers.compare import runs
from cachewitness.report import terminal
from cachewitness.report.one_trace import report_of
from cachewitness.report.summary import Report
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.suites import SUITES
from cachewitness.systems.sample import engine as sample
from cachewitness.workloads.answer_stories import write
from cachewitness.workloads.configurations import Configuration

CONFIGURATION = sample.configurations()[0]
SHORT = 3
"""Tokens after which an answer ends by itself."""
Ends = Callable[[Answer], bool]
"""Whether an answer ends after a few tokens."""


class Terse(sample.SampleEngine):
    """The sample engine, of which some answers end by themselves after a few tokens, cached or
    not.
    """

    def __init__(self, header: Any, options: Any, ends: Ends) -> None:
        super().__init__(header, options)
        self._ends = ends

    def apply(self, op: Op) -> list[Event]:
        return [self._shortened(event) for event in super().apply(op)]

    def _shortened(self, event: Event) -> Event:
        assert isinstance(event, Answer)
        if len(event.tokens) <= SHORT or not self._ends(event):
            return event
        return changed(
            event, tokens=event.tokens[:SHORT], logprobs=event.logprobs[:SHORT], ended="stop"
        )


def terse(ends: Ends) -> EngineSpec:
    """Return the engine; each has a name of its own, by which its baseline is kept."""
    name = f"sample-{ends.__name__}"
    kind = replace(
        sample.ENGINE,
        name=name,
        open=lambda header, options: Terse(header, options, ends),
        controls=None,
    )
    return EngineSpec(kind, {}, name)


def always(answer: Answer) -> bool:
    return True


def never(answer: Answer) -> bool:
    return False


def odd(answer: Answer) -> bool:
    return answer.tokens[0] % 2 > 0


def run(spec: EngineSpec, *stories: str, ceiling: bool = False, seed: int = 0) -> Report:
    def traces(configuration: Configuration, level: Level, seed: int) -> Iterator[Trace]:
        return (write(configuration.shape(level), name, seed) for name in stories)

    suite = replace(
        next(suite for suite in SUITES if suite.name == "answers"),
        traces=traces,
        spread=0,
        ceiling=ceiling,
    )
    return Runner(spec, [CONFIGURATION], seed=seed).run([suite])


def test_a_story_of_which_nothing_was_asked_does_not_pass() -> None:
    """Another story was told to its end, and the report names the one that was not."""
    report = run(terse(always), "conversations", "replays")
    why = (
        "none of 6 requests that go on after an earlier answer was asked, as that answer was too"
        " short"
    )
    assert not report.failures and report.exit_code == 5
    assert report.vacuous[0] == f"answers:conversations@sample-8: {why}"
    assert (
        "6 of 6 requests that go on after an earlier answer left out, as that answer was too short"
        in terminal.covered(report)
    )


def test_requests_that_are_left_out_are_counted() -> None:
    """Some answers end early, and behind others the story goes on: a pass, which says what is
    not part of it.
    """
    whole = run(terse(never), "answered-prompts")
    assert whole.exit_code == 0 and "left out" not in terminal.covered(whole)
    report = run(terse(odd), "answered-prompts")
    assert report.exit_code == 0 and (report.activity.continued, report.activity.left_out) == (8, 4)
    assert "4 of 12 requests that go on after an earlier answer left out" in terminal.covered(
        report
    )


@pytest.mark.parametrize(("ends", "code"), [(always, 5), (never, 0)])
def test_a_trace_of_which_nothing_was_asked_does_not_pass_when_it_is_replayed(
    ends: Ends, code: int
) -> None:
    """Although the requests before it were judged."""
    trace = write(CONFIGURATION.shape("answers"), "answered-prompts", 0)
    result = runs(trace, terse(ends))
    assert (
        exit_code(result)
        == report_of(result, trace, "sample", "replay", seconds=0).exit_code
        == code
    )
    assert [line.partition(" of ")[0] for line in reasons(result)] == ["none"] * bool(code)


def test_a_random_trace_need_not_go_on_behind_an_answer() -> None:
    """Nobody wrote it for that; a run in which nobody else does is no pass."""
    alone = run(terse(odd), "replays", ceiling=True, seed=3)
    assert (alone.exit_code, alone.activity.continued, alone.activity.left_out) == (5, 0, 1)
    report = run(terse(odd), "answered-prompts", ceiling=True, seed=3)
    assert (report.exit_code, report.vacuous) == (0, [])
    assert report.activity.continued and report.activity.left_out > 1
