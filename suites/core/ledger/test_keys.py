"""What becomes of a key: pending, committed, unbacked, withdrawn, reset, outdated, unpublished."""

from __future__ import annotations

import pytest

from cachewitness.core.events import Publish
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.workloads.notation import parse
from suites.support.ledger_histories import FULL, HYBRID, R1, keys_of, ledger_after


def test_a_key_is_pending_until_its_step_ends() -> None:
    """Pending, then committed; withdrawn if its request was."""
    begun = FULL + "submit r1 a:8\nacquire r1 | 1 2\npublish 0/1 r1:4\nbegin 1: r1 0..8 | 1 2\n"
    states = [
        keys_of(ledger_after(begun + end))[0].state for end in ("", "end 1", "end 1 withdraw r1")
    ]
    assert states == ["pending", "committed", "withdrawn"]


@pytest.mark.parametrize(("length", "state"), [(4, "committed"), (8, "unbacked")])
def test_a_key_published_afterwards_is_committed_if_its_content_is_there(
    length: int, state: str
) -> None:
    """Page 1 holds the first block, and not the second."""
    ledger = ledger_after(
        FULL + R1.replace("publish 0/1 r1:4\n", "") + f"publish 0/1 r1:{length} @1"
    )
    assert [key.state for key in keys_of(ledger)] == [state]


def test_a_key_is_backed_by_its_own_groups_content() -> None:
    """What the layers of another group wrote, of the same tokens, is not what the key names."""
    window = HYBRID.replace("recurrent block 4", "sliding block 4 window 8")
    ledger = ledger_after(
        window
        + "submit r1 a:8\nacquire r1 | 1 2 | 3 4\npublish 1/1 r1:4\nstep 1: r1 0..8 | 1 2 | 3 4"
    )
    assert [key.state for key in keys_of(ledger, 1)] == ["unbacked"]


def test_of_two_pages_with_one_key_either_is_left() -> None:
    """Unpublishing one duplicate leaves the other; unpublishing both remembers why the last
    went.
    """
    text = (
        f"{FULL}{R1}submit r2 a:5\nacquire r2 | 3 4\npublish 0/3 r2:4\nstep 2: r2 0..5 | 3 4\n"
        "unpublish 0/1 evict\n"
    )
    one = ledger_after(text)
    assert [key.page for key in keys_of(one)] == [3]
    none = ledger_after(text + "unpublish 0/3 reset")
    assert (keys_of(none), [ended.reason for ended in none.keys.ended[0].values()]) == (
        [],
        ["reset"],
    )


@pytest.mark.parametrize(
    ("line", "state"),
    [("reset ok", "reset"), ("reset failed", "committed"), ("reset ok tier cpu", "committed")],
)
def test_a_reset_ends_the_keys_of_its_tier_if_it_succeeded(line: str, state: str) -> None:
    """A reset that was refused, or that names another tier, ends none."""
    assert [key.state for key in keys_of(ledger_after(FULL + R1 + line))] == [state]


@pytest.mark.parametrize(("end", "state"), [("reset ok", "reset"), ("version 1", "outdated")])
@pytest.mark.parametrize("withdraw", ["", " withdraw r1"])
def test_a_step_in_flight_brings_back_no_key_that_has_ended(
    end: str, state: str, withdraw: str
) -> None:
    """Its content is there when the step ends, and it has ended all the same: nothing is decided
    of it any more.
    """
    written = (
        FULL + "submit r1 a:8\nacquire r1 | 1 2\nstep 1: r1 0..4 | 1 2\npublish 0/1 r1:4\n"
        "begin 2: r1 4..8 | 1 2\n"
    )
    ledger = ledger_after(f"{written}{end}\nend 2{withdraw}")
    assert [key.state for key in keys_of(ledger)] == [state]


@pytest.mark.parametrize(("end", "state"), [("reset ok", "reset"), ("version 1", "outdated")])
def test_a_key_that_was_published_twice_ends_twice(end: str, state: str) -> None:
    """An engine may say once more what it has published: no key of the page outlives the reset."""
    ledger = ledger_after(FULL + R1.replace("publish 0/1 r1:4\n", "publish 0/1 r1:4\n" * 2) + end)
    record = ledger.record(0, 1)
    assert record is not None and [key.state for key in record.keys] == [state, state]


@pytest.mark.parametrize("extra_pages", [[0], [1], [3, 3], [0, 3, 1]])
def test_a_key_takes_every_page_once_and_no_null_page(extra_pages: list[int]) -> None:
    """Whatever a history says of further pages: they are let go as they were taken."""
    history = parse(FULL + R1 + "unpublish 0/1 evict")
    ledger = Ledger(history.header)
    for event in history.events:
        if isinstance(event, Publish):
            event.extra_pages = extra_pages
        ledger.apply(event)
    assert [
        record.keys
        for records in ledger.records.values()
        for record in records.values()
        if record.keys
    ] == []
