"""What is asked before an event is answered from the ledger as it was, and nobody asks too late."""

from __future__ import annotations

import pytest

from cachewitness.core.events import Event, Hit, Publish, Read, StepEnd, Write
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.workloads.notation import parse
from suites.support.ledger_histories import FULL, R1

HIT = FULL + R1 + "submit r2 a:8\nhit r2 4 | 1\nacquire r2 | 1 3\nstep 2: r2 4..8 | 1 3\n"
JUDGED = (Read, Write, Publish, Hit, StepEnd)


def _until(text: str, kind: type[Event], number: int = 0) -> tuple[Ledger, Event]:
    """Return an event of a history, and the ledger before it."""
    history = parse(text)
    ledger = Ledger(history.header)
    event = [event for event in history.events if isinstance(event, kind)][number]
    for earlier in history.events[: history.events.index(event)]:
        ledger.apply(earlier)
    return ledger, event


@pytest.mark.parametrize("kind", JUDGED)
def test_an_event_that_is_past_is_refused(kind: type[Event]) -> None:
    """Asked before, asked again, applied: then the answer would be of another state, so there is
    none.
    """
    ledger, event = _until(HIT, kind)
    assert ledger.before(event) is ledger.before(event)  # type: ignore[call-overload]
    ledger.apply(event)
    with pytest.raises(RuntimeError, match=f"already past this {kind.__name__}"):
        ledger.before(event)  # type: ignore[call-overload]


def test_an_answer_is_of_the_moment_at_which_it_is_asked() -> None:
    """The same read is valid, then its page is taken over by another text, and the read is asked
    about again.
    """
    ledger, read = _until(HIT, Read, -1)
    assert isinstance(read, Read)
    assert list(ledger.before(read).invalid) == []
    other = parse(
        FULL + "submit r0 a:1\nsubmit r3 b:4\nacquire r3 | 1\nstep 3: r3 0..4 | 1\n"
    ).events
    for event in other:
        ledger.apply(event)
    assert list(ledger.before(read).invalid) == [0]


def test_a_view_cannot_be_changed() -> None:
    """What one checker is told, the next is told too."""
    ledger, event = _until(HIT, StepEnd)
    assert isinstance(event, StepEnd)
    with pytest.raises(AttributeError):
        ledger.before(event).pending = ()  # type: ignore[misc]


def test_the_end_of_a_step_decides_its_keys() -> None:
    """Both keys are pending; the one whose block is not written is unbacked, the withdrawn one
    is nobody's fault.
    """
    begun = "submit r1 a:8\nacquire r1 | 1 2\npublish 0/1 r1:4\npublish 0/2 r1:8\nbegin 1: r1 0..4 | 1 2\n"  # noqa: E501
    ledger, event = _until(FULL + begun + "end 1", StepEnd)
    assert isinstance(event, StepEnd)
    before = ledger.before(event)
    assert [key.length for key in before.pending] == [4, 8]
    assert [key.length for key in before.unbacked] == [8]
    ledger, event = _until(FULL + begun + "end 1 withdraw r1", StepEnd)
    assert isinstance(event, StepEnd)
    assert list(ledger.before(event).unbacked) == []
    assert [key.length for key in ledger.before(event).withdrawn] == [4, 8]


def test_a_hit_names_the_keys_that_were_ended_under_it() -> None:
    """A reset ended the only key of page 1; another key of the same prefix would be enough."""
    hit = "submit r2 a:8\nhit r2 4 | 1\n"
    ledger, event = _until(FULL + R1 + "reset ok\n" + hit, Hit)
    assert isinstance(event, Hit)
    assert [(key.r, key.state) for key in ledger.before(event).invalidated] == [("r1", "reset")]
    ledger, event = _until(FULL + R1 + hit, Hit)
    assert isinstance(event, Hit)
    assert list(ledger.before(event).invalidated) == []
