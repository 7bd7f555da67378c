"""Long block tables are read anew without reading all of them again, and nothing of a change in
them is missed.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachewitness.core import event_reader
from cachewitness.core.event_reader import LONG, EventReader
from cachewitness.core.events import (
    Event,
    Finished,
    Group,
    Header,
    Hit,
    Pool,
    Run,
    StepBegin,
    StepEnd,
    Submitted,
)
from cachewitness.core.intake import BadEvents, Intake
from cachewitness.core.malformed import MalformedHistory
from cachewitness.core.trace_format import Step, Submit
from cachewitness.core.well_formed import WellFormedness

HEADER = Header(
    "test", "manager", [Pool(0, 1000, [0])], [Group(0, "full", 1), Group(1, "recurrent", 1)]
)


def _step(
    number: int, *tables: list[Any] | tuple[Any, ...], r: str = "r1", stop: int = 1
) -> StepBegin:
    return StepBegin(step=number, asked=[(r, 1)], runs=[Run(r, 0, stop, list(tables))])  # type: ignore[arg-type]


def _whole(answer: list[Event]) -> list[Event]:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(answer), type=list[Event])


CHANGES = st.sampled_from(["none", "append", "replace", "shorten", "other request", "end"])
NUMBERS = st.integers(-1, 1 << 33)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(CHANGES, st.integers(0, 2 * LONG), NUMBERS, st.booleans()), max_size=12))
def test_what_is_read_is_what_was_told(script: list[tuple[str, int, int, bool]]) -> None:
    """Whatever becomes of rows about as long as a long one, events are those that reading all of
    them gives.
    """
    reader = EventReader()
    rows = [list(range(LONG - 1)), list(range(70_000, 70_000 + 2 * LONG))]
    r = "r1"
    for number, (change, place, value, fixed) in enumerate(script, start=1):
        row = rows[place % 2]
        if change == "append":
            row.append(value)
        elif change == "replace":
            row[place % len(row)] = value
        elif change == "shorten":
            del row[max(place % len(row), 1) :]
        elif change == "other request":
            r = "r2" if r == "r1" else "r1"
        events: list[Event] = [_step(number, *(tuple(row) if fixed else row for row in rows), r=r)]
        events += [Finished(r=r, step=number)] if change == "end" else []
        assert reader.read(events) == _whole(events)


def test_an_answer_may_have_thousands_of_steps() -> None:
    """A reset that waits for loads runs many steps in one operation."""
    events: list[Event] = [_step(number, list(range(LONG))) for number in range(1, 3_001)]
    assert EventReader().read(events) == _whole(events)


def test_nothing_is_shared_with_the_engine() -> None:
    """An engine that goes on writing into its own table changes nothing of what was read."""
    reader = EventReader()
    row = list(range(2 * LONG))
    (first,) = reader.read([_step(1, row)])
    row[5] = 999
    (second,) = reader.read([_step(2, row)])
    assert isinstance(first, StepBegin) and isinstance(second, StepBegin)
    assert (first.runs[0].tables[0][5], second.runs[0].tables[0][5]) == (5, 999)


@pytest.mark.parametrize("value", [1.5, "5", None, [5]])
def test_what_is_no_page_is_told_with_its_place(value: Any) -> None:
    """A wrong type in the middle of a row that was right in the step before: one line that names
    the field.
    """
    intake = Intake(HEADER)
    row = list(range(1, 2 * LONG))
    intake.take([Submitted(r="r1", tokens=[1, 2])], Submit(r="r1", prompt="a:2"), 0)
    hit = Hit(r="r1", reported=0, resume=0, pages=[[], []], step=1)
    intake.take([hit, _step(1, row, [1]), StepEnd(step=1)], Step(run=[("r1", 1)]), 1)
    row[7] = value
    with pytest.raises(BadEvents, match=r"operation 3 \(step\), event 1 \(step_begin\).*\.tables"):
        intake.take([_step(2, row, [1])], Step(run=[("r1", 1)]), 2)


def test_a_page_that_does_not_exist_is_told_in_a_long_row() -> None:
    """Rows that were followed are not followed again; a row in which one page is another one is."""
    sense = WellFormedness(HEADER, live=True)
    row = list(range(1, 2 * LONG))
    sense.follow(Submitted(r="r1", tokens=[1, 2]))
    sense.follow(_step(1, row, [1]))
    sense.follow(_step(2, row, [1]))
    with pytest.raises(MalformedHistory, match=r"page 1000 does not exist - at `\$\.runs`"):
        sense.follow(_step(3, [*row[:-1], 1000], [1]))


def test_tables_of_requests_that_ended_are_forgotten() -> None:
    """Neither the reader nor the validator keeps a table of who is over."""
    reader = EventReader()
    sense = WellFormedness(HEADER, live=True)
    for number in range(1, 4):
        r = f"r{number}"
        events: list[Event] = [
            Submitted(r=r, tokens=[1], step=number - 1),
            _step(number, list(range(1, 2 * LONG)), [1], r=r),
            Finished(r=r, step=number),
        ]
        for event in reader.read(events):
            sense.follow(event)
    assert (reader._rows, sense._followed) == ({}, {})


class _Raises:
    """As a tensor of several elements does, of whose comparison nobody can say whether it is
    true.
    """

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


def test_what_cannot_be_compared_is_no_page_and_no_crash() -> None:
    """In a row that was right in the step before: the reader raises what the intake makes a line
    of.
    """
    reader = EventReader()
    row = list[Any](range(2 * LONG))
    reader.read([_step(1, row)])
    row[7] = _Raises()
    with pytest.raises(TypeError, match="_Raises"):
        reader.read([_step(2, row)])


def test_a_row_that_changes_while_it_is_read_is_remembered_as_it_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread of the engine writes into its own table behind the reading: the next step says
    what it wrote.
    """
    reader = EventReader()
    row = list(range(2 * LONG))
    read = event_reader._read_pages

    def read_and_changed(pages: list[int]) -> list[int]:
        answer = read(pages)
        row[5] = 999
        return answer

    monkeypatch.setattr(event_reader, "_read_pages", read_and_changed)
    (first,) = reader.read([_step(1, row)])
    (second,) = reader.read([_step(2, row)])
    assert isinstance(first, StepBegin) and isinstance(second, StepBegin)
    assert (first.runs[0].tables[0][5], second.runs[0].tables[0][5]) == (5, 999)
