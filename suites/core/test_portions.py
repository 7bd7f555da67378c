"""Operations are carried out a few ahead of their judgement, and nothing that is found depends
on how many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness.core import driving
from cachewitness.core.driving import Stopped, drive
from cachewitness.core.engine import Engine
from cachewitness.core.engine_failure import NoAnswer, OwnMistake
from cachewitness.core.events import Acquire, Event, Header, StepBegin
from cachewitness.core.intake import BadEvents
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Op, Step, Submit, Trace, TraceHeader
from cachewitness.core.trace_format import load as load_trace
from cachewitness.engines.registry import parse
from cachewitness.workloads.layouts import load

HEADER = TraceHeader(name="portions", layout=load("full-mamba"), pages=16)
OPS: list[Op] = [
    Submit("r1", "a:40"),
    *[Step(run=[("r1", 16)])] * 9,
    Submit("r2", "a:40"),
    *[Step(run=[("r2", 16)])] * 9,
]
TRACE = Trace(HEADER, OPS)
WITNESS = Path(__file__).parents[2] / "fixtures" / "traces" / "mutants" / "block-leaked.jsonl"
NO_BLOCK = RuntimeError("no block")
Change = Callable[[int, list[Event]], list[Event]]


@dataclass
class Changed:
    """The reference whose events are changed, by the number of the operation; it may raise
    there.
    """

    change: Change = lambda number, events: events

    def __post_init__(self) -> None:
        self.engine: Engine = parse("reference").open(HEADER)
        self.asked = 0

    def describe(self) -> Header:
        return self.engine.describe()

    def apply(self, op: Op) -> list[Event]:
        self.asked += 1
        return self.change(self.asked - 1, self.engine.apply(op))

    def close(self) -> None:
        self.engine.close()


def _raises_at(number: int, error: Exception = NO_BLOCK) -> Change:
    def change(at: int, events: list[Event]) -> list[Event]:
        if at == number:
            raise error
        return events

    return change


def _nonsense_at(number: int, then: Change) -> Change:
    """Take a page that does not exist in an operation, and go on as `then` says."""

    def change(at: int, events: list[Event]) -> list[Event]:
        return (
            [Acquire(pool=0, group=0, pages=[999], holder="r1", step=1), *events]
            if at == number
            else then(at, events)
        )

    return change


def _outcome(monkeypatch: pytest.MonkeyPatch, portion: int, engine: Any) -> tuple[bytes, str]:
    monkeypatch.setattr(driving, "PORTION", portion)
    try:
        result = drive(TRACE, engine)
        line = ""
    except Stopped as stopped:
        result = stopped.result
        line = str(stopped)
    return msgspec.json.encode(result), line


@pytest.mark.parametrize(
    ("change", "operations", "message", "found"),
    [
        (lambda number, events: events, 20, "", []),
        (_raises_at(7), 8, "", ["engine-crashed"]),
        (_raises_at(0), 1, "", ["engine-crashed"]),
        (_nonsense_at(5, lambda number, events: events), 6, "operation 6", []),
        (_nonsense_at(5, _raises_at(7)), 6, "operation 6", []),
        (_nonsense_at(5, _raises_at(7, UsageError("not with drafts"))), 6, "operation 6", []),
        (_nonsense_at(5, _raises_at(7, EngineMissing("no torch"))), 6, "operation 6", []),
        (_nonsense_at(5, _raises_at(7, BadEvents("refused"))), 6, "operation 6", []),
        (_nonsense_at(7, _raises_at(5)), 6, "", ["engine-crashed"]),
        (lambda number, events: "none" if number == 6 else events, 7, "operation 7", []),
    ],
)
def test_what_is_found_does_not_depend_on_the_portion(
    monkeypatch: pytest.MonkeyPatch, change: Change, operations: int, message: str, found: list[str]
) -> None:
    """Whatever comes first in the trace is told, and only operations up to there count, however
    far the engine has gone.
    """
    alone, line = _outcome(monkeypatch, 1, Changed(change))
    result = msgspec.json.decode(alone, type=Result)
    assert (result.activity.operations, [finding.anomaly for finding in result.findings]) == (
        operations,
        found,
    )
    assert message in line and bool(message) == bool(line)
    for portion in (2, 5, 16, 64):
        assert _outcome(monkeypatch, portion, Changed(change)) == (alone, line)


def test_findings_are_of_the_same_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault is found in the same operations, with the same words."""
    trace = load_trace(WITNESS)
    results = []
    for portion in (1, 16):
        monkeypatch.setattr(driving, "PORTION", portion)
        results.append(drive(trace, parse("reference:mutant=block-leaked").open(trace.header)))
    assert results[0].findings
    assert msgspec.json.encode(results[0]) == msgspec.json.encode(results[1])


def test_an_engine_may_change_later_what_it_has_returned() -> None:
    """What it reports is read at once: what it does with its lists in later operations changes
    nothing.
    """
    returned: list[Event] = []

    def spoil(number: int, events: list[Event]) -> list[Event]:
        for event in returned:
            for run in event.runs if isinstance(event, StepBegin) else ():
                run.tables[0][:] = [0] * len(run.tables[0])
        returned[:] = msgspec.convert(msgspec.to_builtins(events), list[Event])
        return returned

    sound = drive(TRACE, Changed())
    spoilt = drive(TRACE, Changed(spoil))
    assert sound.outcome == spoilt.outcome == "pass"
    assert sound.history.events == spoilt.history.events


def test_who_stops_at_a_finding_is_not_carried_further() -> None:
    """With `until`, the engine is asked for nothing behind the operation that raised the
    finding.
    """
    engine = Changed(_raises_at(3))
    drive(TRACE, engine, until=lambda finding: True)
    assert engine.asked == 4


@pytest.mark.parametrize(
    "error", [UsageError("not with drafts"), EngineMissing("no torch"), OwnMistake("ours")]
)
def test_what_passes_through_ends_the_run_at_once(error: Exception) -> None:
    """An engine that refuses an operation, and nothing before it that cannot be followed: its
    own line is the answer.
    """
    with pytest.raises(type(error), match=str(error)):
        drive(TRACE, Changed(_raises_at(7, error)))


def test_an_answer_that_is_none_comes_first() -> None:
    """A process that floods its pipe has said nothing that counts, so what it said before is not
    what is told.
    """
    with pytest.raises(NoAnswer, match="nothing that was asked"):
        drive(
            TRACE,
            Changed(_nonsense_at(5, _raises_at(7, NoAnswer("answers nothing that was asked")))),
        )
