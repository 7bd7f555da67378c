"""What an engine hands over is taken in as a history, whatever objects it is made of."""

from __future__ import annotations

from cachewitness.core.checkers.finding import Finding
from cachewitness.core.checkers.protocol import Checker, Handler
from cachewitness.core.driving import judge
from cachewitness.core.events import Acquire, Event, Header, Publish, Read, Submitted, Write
from cachewitness.core.intake import Intake
from cachewitness.core.trace_format import Op, Step, Submit
from cachewitness.core.worker import Worker
from cachewitness.report.expected import Entry, Expectations
from cachewitness.workloads.notation import parse

KEY = "publish 0/1 r1:4\n"
ONE_KEY = f"""
pool 0: 4 pages, null 0
group 0: full block 4
submit r1 a:5
hit r1 0 |
acquire r1 | 1 2
{KEY}step 1: r1 0..5 | 1 2
"""
SUBMIT = Submit("r1", "a:5")
STEP = Step(run=[("r1", 5)])


def reported(text: str) -> tuple[Header, list[Event]]:
    """Return what an engine reports of a history: all that the worker does not add."""
    history = parse(text)
    return history.header, [
        event for event in history.events if not isinstance(event, Read | Write)
    ]


def taken(header: Header, *answers: tuple[Op, list[Event]]) -> list[Event]:
    intake = Intake(header)
    return [
        event
        for index, (op, answer) in enumerate(answers)
        for event in intake.take(answer, op, index)
    ]


def test_one_object_reported_twice_in_a_row_is_two_events() -> None:
    """It is judged as two equal events are."""
    header, events = reported(ONE_KEY)
    twice = [event for event in events for _ in range(1 + isinstance(event, Publish))]
    mine = taken(header, (SUBMIT, twice[:1]), (STEP, twice[1:]))
    assert len({id(event) for event in mine}) == len(mine) == len(events) + 1
    result = judge(header, Worker(header).extend(mine))
    other = parse(ONE_KEY.replace(KEY, KEY + KEY))
    alike = judge(other.header, other.events)
    assert (result.outcome, result.tallies) == (alike.outcome, alike.tallies)


def test_what_an_engine_does_to_its_events_later_reaches_nobody() -> None:
    """A list that it keeps, and changes in the next operation, is as it was when it was
    reported.
    """
    header, events = reported(ONE_KEY)
    take = next(event for event in events if isinstance(event, Acquire))
    mine = taken(header, (SUBMIT, events[:1]), (STEP, events[1:]))
    take.pages.append(99)
    assert [event.pages for event in mine if isinstance(event, Acquire)] == [[1, 2]]


def test_an_event_of_a_class_of_ones_own_is_the_event_that_it_says() -> None:
    """A checker that goes by the class sees it all the same."""

    class Mine(Acquire, tag="acquire"):
        """An adapter's own, with something to remember."""

        why: str = ""

    header, events = reported(ONE_KEY)
    own = [
        (
            Mine(pool=0, group=0, pages=[1, 2], holder="r1", step=1, why="room")
            if type(e) is Acquire
            else e
        )
        for e in events
    ]
    mine = taken(header, (SUBMIT, own[:1]), (STEP, own[1:]))
    assert [type(event) for event in mine] == [type(event) for event in events]


def test_what_costs_work_alone_hides_no_wrong_answer_behind_it() -> None:
    """The first finding is the gravest, whenever it came; among equals the earliest is."""

    class Finds(Checker):
        name = "finds"
        summary = "finds what it is told to"
        anomalies = ("lost-replay-boundary", "stale-hit", "leak", "cross-identity-hit")

        def handlers(self) -> dict[type, Handler]:
            return {Submitted: lambda _, e: [Finding(anomaly=self.anomalies[e.seq], sentence="")]}

    history = parse(
        "pool 0: 4 pages\ngroup 0: full block 4\n" + "".join(f"submit r{n} a:5\n" for n in range(4))
    )
    found = judge(history.header, history.events, [Finds()]).findings
    assert [one.anomaly for one in found] == [
        "stale-hit",
        "cross-identity-hit",
        "leak",
        "lost-replay-boundary",
    ]
    listed = [Entry(pattern="*:*", anomaly="stale-hit", reason="known")]
    weighed = Expectations(listed).weigh("run:a", found)
    assert weighed and weighed[0].anomaly == "cross-identity-hit"
