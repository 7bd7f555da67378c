"""Runs in flight whose request ended, or lost its pages: what they read is not judged, what they
overwrite is.
"""

from __future__ import annotations

import pytest

from cachewitness.core.ledger.records import NOTHING
from suites.support.ledger_histories import FULL, HYBRID, R1, found, ledger_after

IN_FLIGHT = (
    FULL + R1 + "publish 0/2 r1:8 @1\naccept r1 9 @r1:1\nacquire r1 | 3\nbegin 2: r1 8..9 | 1 2 3\n"
)


@pytest.mark.parametrize("line", ["abort r1", "finish r1", "preempt r1"])
def test_a_run_in_flight_may_finish_over_pages_that_were_given_back(line: str) -> None:
    """Also if somebody else has the page meanwhile: that one writes it in a later step."""
    rest = (
        f"{line}\nrelease r1\nsubmit r2 b:4\nacquire r2 | 3\nbegin 3: r2 0..4 | 3\nend 2\nend 3\n"
    )
    assert found(IN_FLIGHT + rest) == []


def test_a_run_that_nobody_ended_may_not() -> None:
    """The same without a word about the request: its pages are gone under it."""
    assert "use-after-free" in found(IN_FLIGHT + "release r1\nend 2\n")


def test_a_preempted_request_is_not_advanced_by_the_run_it_left_behind() -> None:
    """It starts again from nothing, whatever the step in flight computed."""
    assert ledger_after(IN_FLIGHT + "preempt r1\nrelease r1\nend 2").requests["r1"].computed == 0


def test_a_state_that_a_run_left_behind_is_not_the_requests() -> None:
    """The run in flight stops at the boundary, the second attempt runs over it: no replay
    boundary is owed.
    """
    left = "submit r1 a:9\nacquire r1 | 1 2 | 4 5\nbegin 1: r1 0..8 | 1 2 | 4 5\npreempt r1\nrelease r1\n"  # noqa: E501
    again = (
        "hit r1 0\nacquire r1 | 6 7 8 | 9 10 11\npublish 0/6 r1:4\npublish 0/7 r1:8\nend 1\n"
        "step 2: r1 0..9 | 6 7 8 | 9 10 11\n"
    )
    assert found(HYBRID + left + again) == []


def test_a_run_in_flight_may_not_overwrite_what_somebody_else_has_computed() -> None:
    """Steps execute in order; if the new owner's step came first, its content is lost."""
    rest = "abort r1\nrelease r1\nsubmit r2 b:5\nacquire r2 | 3 4\nbegin 3: r2 0..4 | 3 4\nend 3\nend 2\n"  # noqa: E501
    assert found(IN_FLIGHT + rest) == ["aliased-write"]


STRAY = FULL + "submit r1 a:4\nacquire r1 | 1\nbegin 1: r1 0..4 | 1\nabort r1\nrelease r1\n"


@pytest.mark.parametrize(("tables", "anomalies"), [("2 1 3", []), ("1 2 3", ["aliased-write"])])
def test_what_a_run_left_behind_in_another_column_is_nobody_s_loss(
    tables: str, anomalies: list[str]
) -> None:
    """The first block of everybody's prefix lies where r2 is to write its second, and r3 is hit on
    it: r3 reads it elsewhere.

    Were it the first block of r3 as well, r2 in the wrong place would destroy what r3 reads.
    """
    writer = (
        "submit r2 a:8\nacquire r2 | 2 1\npublish 0/2 r2:4\npublish 0/1 r2:8\n"
        "begin 2: r2 0..8 | 2 1\nend 1\n"
    )
    first, second, _ = tables.split()
    reader = (
        f"submit r3 a:9\nhit r3 8 | {first} {second}\nacquire r3 | {tables}\n"
        f"begin 3: r3 8..9 | {tables}\nend 2\n"
    )
    assert [name for name in found(STRAY + writer + reader) if name == "aliased-write"] == anomalies


def test_a_state_that_two_runs_left_behind_in_another_column_is_nobody_s_loss() -> None:
    """r2 goes on from its state after three tokens in page 4; page 3, which it took for what
    comes, had been r1's.
    """
    records = "pool 0: 9 pages, null 0\ngroup 0: recurrent block 4\n"
    both = (
        "submit r1 a:6\nsubmit r2 a:6\nacquire r1 | 3\nacquire r2 | 4\n"
        "begin 1: r1 0..3 | 3; r2 0..3 | 4\n"
    )
    again = (
        "begin 2: r1 3..4 | 3; r2 3..4 | 4\nabort r1\nrelease r1\nacquire r2 | 3\n"
        "begin 3: r2 4..5 | 4 3\n"
    )
    assert found(records + both + again + "end 1\nend 2\nend 3\n") == []


def test_what_a_copy_fills_before_its_reader_runs_is_nobody_s_loss() -> None:
    """r2's first attempt has page 2 filled, r1 writes into it, and both are gone; r2 comes back,
    and it is filled anew.
    """
    records = (
        "pool 0: 9 pages, null 0\ngroup 0: full block 4\nsubmit r0 a:4\nacquire r0 | 1\n"
        "step 1: r0 0..4 | 1\n"
    )
    reader = "hit r2 4 | 2\nacquire r2 | 2 3\nbegin {}: r2 4..5 | 2 3; copy 1>2\n"
    between = "preempt r2\nrelease r2\nsubmit r1 b:4\nacquire r1 | 2\nbegin 3: r1 0..4 | 2\nabort r1\nrelease r1\n"  # noqa: E501
    ends = "end 2\nend 3\nend 4\n"
    filled = records + "submit r2 a:5\n" + reader.format(2) + between + reader.format(4)
    assert "aliased-write" not in found(filled + ends)
    assert "aliased-write" in found(
        filled.replace("begin 4: r2 4..5 | 2 3; copy 1>2", "begin 4: r2 4..5 | 2 3") + ends
    )


COPYING = (
    HYBRID + "submit r1 a:6\nacquire r1 | 1 2 | 4\nstep 1: r1 0..3 | 1 | 4\nacquire copy:1 | | 5\n"
)
"""The state after three tokens lies in page 4; a copy of it has page 5."""


@pytest.mark.parametrize(
    "meanwhile", ["", "submit r2 b:4\nacquire r2 | 3 | 4\n"], ids=["nobody", "somebody"]
)
def test_what_a_step_in_flight_copies_from_is_there_until_it_has_run(meanwhile: str) -> None:
    """The request goes while its step is in flight, and the page is free or has another owner
    before the copy is made.
    """
    begun = "begin 2: r1 3..4 | 1 2 | 4; copy 4>5\nabort r1\nrelease r1\n" + meanwhile
    ledger = ledger_after(COPYING + begun + "end 2\n")
    copy = ledger.records[0][5]
    source = ledger.records[0][4]
    assert (copy.state, copy.stop, source.node) == (True, 3, NOTHING)


def test_who_has_the_page_next_keeps_what_it_writes_there_though_a_later_step_copies_from_it_too() -> (  # noqa: E501
    None
):
    """r1's state in page 4 is copied by step 2 and given up; r2 writes its own there, which step 4
    copies and step 5 reads.

    Found on vLLM 0.33.0 with two steps in flight, whose answer was right: the page was taken for
    given up until step 4.
    """
    taken = "submit r2 b:6\nacquire r2 | 3 6 | 4\nacquire copy:2 | | 7\n"
    steps = "begin 2: r1 3..4 | 1 2 | 4; copy 4>5\nabort r1\nrelease r1\n" + taken
    steps += (
        "begin 3: r2 0..3 | 3 6 | 4\nbegin 4: r2 3..4 | 3 6 | 4; copy 4>7\nend 2\nend 3\nend 4\n"
    )
    ledger = ledger_after(COPYING + steps)
    first, copy, source = (ledger.records[0][page] for page in (5, 7, 4))
    assert (first.stop, copy.stop, source.stop, first.writer, copy.writer, source.writer) == (
        3,
        3,
        4,
        "r1",
        "r2",
        "r2",
    )
    assert found(COPYING + steps + "acquire r2 | | 8\nstep 5: r2 4..5 | 3 6 | 4 8\n") == []


def test_what_was_given_up_before_a_step_began_cannot_be_copied() -> None:
    ledger = ledger_after(COPYING + "abort r1\nrelease r1\nbegin 2: ; copy 4>5\nend 2\n")
    assert ledger.records[0][5].node == NOTHING
