"""What an engine hands over is taken in as a history, whatever objects it is made of."""

from __future__ import annotations

from harness.history.events import Event, Publish
from harness.history.notation import parse
from harness.run.execute import Observer, judge

KEY = "publish 0/1 r1:4\n"
ONE_KEY = f"""
pool 0: 4 pages, null 0
group 0: full block 4
submit r1 a:5
take r1 | 1 2
{KEY}step 1: r1 0..5 | 1 2
"""


def test_one_object_reported_twice_in_a_row_is_two_events() -> None:
    """It is judged as two equal events are, and the history tells them apart."""
    history, said_twice = parse(ONE_KEY), parse(ONE_KEY.replace(KEY, KEY + KEY))
    events: list[Event] = []
    for event in history.events:
        events += [event, event] if isinstance(event, Publish) else [event]
    observer = Observer(history.header)
    observer.see(events[:4], 0)
    observer.see(events[4:], 1)
    result, alike = observer.close(None), judge(said_twice.header, said_twice.events)
    assert [event.seq for event in result.history.events] == list(range(len(said_twice.events)))
    assert (result.outcome, result.tallies) == (alike.outcome, alike.tallies)
