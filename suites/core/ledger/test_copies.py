"""Copies and zeros: what has arrived, and when."""

from __future__ import annotations

import pytest

from cachewitness.core.ledger.records import NOTHING
from suites.support.ledger_histories import FULL, R1, ledger_after


def test_a_copy_is_one_permutation() -> None:
    """Two pages that are copied onto each other change places."""
    ledger = ledger_after(FULL + R1 + "copy 1 whole 1>2 2>1")
    one = ledger.records[0][1]
    two = ledger.records[0][2]
    assert (one.start, one.stop, two.start, two.stop) == (4, 8, 0, 4)


@pytest.mark.parametrize(
    ("source", "spans"),
    [
        ("r1 0..4 | 2", [(2, 4), (0, 2)]),
        ("r1 0..1 | 2", [(2, 4), (0, 1)]),
        ("r1 2..4 | 2", [(2, 4)]),
    ],
    ids=["of a whole page", "of less than is copied", "of nothing that is copied"],
)
def test_of_a_page_its_first_tokens_may_be_copied_alone(
    source: str, spans: list[tuple[int, int]]
) -> None:
    """What the target holds behind them stays; what it holds at their places does not."""
    text = "submit r1 a:8\nacquire r1 | 2 5\n"
    text += f"submit r2 b:4\nwrite 0 r2 0..4 | 5\nwrite 0 {source}\ncopy 1 whole 2>5:2"
    ledger = ledger_after(FULL + text)
    held = ledger.records[0][5].spans()
    assert [(span.start, span.stop) for span in held if span.node != NOTHING] == spans
    theirs = ledger.requests["r2"].nodes
    assert held[0].node == theirs[4]


@pytest.mark.parametrize(
    ("lines", "arrived"),
    [
        ("copy 1 begin 1>5", False),
        ("copy 1 begin 1>5\ncopy 1 end 1>5", True),
        ("copy 1 begin 1>5\ncopy 1 fail 1>5", False),
        ("copy 1 begin 1>5\nsubmit r2 b:4\nwrite 0 r2 0..4 | 1\ncopy 1 end 1>5", False),
        ("copy 1 begin 1>5\nwrite 0 r1 0..4 | 1\ncopy 1 end 1>5", True),
        ("copy 1 begin 3>5\nwrite 0 r1 0..4 | 3\ncopy 1 end 3>5", False),
    ],
    ids=[
        "under way",
        "ended",
        "failed",
        "source overwritten",
        "source written again",
        "source written after the begin",
    ],
)
def test_an_asynchronous_copy_arrives_when_it_ends_and_its_source_stayed(
    lines: str, arrived: bool
) -> None:
    """Nothing is there before the end, after a failure, or if the source changed in between."""
    assert (
        ledger_after(FULL + R1 + "acquire copy:1 | 5\n" + lines).records[0][5].node != NOTHING
    ) == arrived


def test_tokens_behind_those_that_were_there_do_not_disturb_a_copy() -> None:
    """What has arrived is what the source held at the begin, and no more."""
    grown = (
        "submit r2 b:4\nacquire r2 | 4\nwrite 0 r2 0..2 | 4\ncopy 1 begin 4>5\n"
        "write 0 r2 2..4 | 4\ncopy 1 end 4>5"
    )
    record = ledger_after(FULL + "acquire copy:1 | 5\n" + grown).records[0][5]
    assert (record.start, record.stop) == (0, 2)


def test_what_a_copy_fills_holds_nothing_until_it_ends() -> None:
    record = ledger_after(FULL + R1 + "copy 1 begin 1>2").records[0][2]
    assert record.node == NOTHING


def test_a_failed_copy_leaves_nothing_behind() -> None:
    """Whatever the destination held may be half overwritten."""
    assert (
        ledger_after(FULL + R1 + "copy 1 begin 1>2\ncopy 1 fail 1>2").records[0][2].node == NOTHING
    )


def test_zeros_are_not_content() -> None:
    """A page that was zeroed holds nothing, and says that it is zeroed."""
    record = ledger_after(FULL + R1 + "zero 0/1").records[0][1]
    assert (record.node, record.zeroed) == (NOTHING, True)
