"""One fault is found once, and not again in what follows from it."""

from __future__ import annotations

from suites.support.ledger_histories import FULL, found, ledger_after

FAULT = """\
submit r1 a:8
acquire r1 | 1 2
publish 0/1 r1:4
publish 0/2 r1:8
step 1: r1 0..8 | 1 2
submit r2 b:4 c:8
hit r2 4 | 1
acquire r2 | 1 3 4
publish 0/3 r2:8
step 2: r2 4..9 | 1 3 4
"""


def test_a_fault_is_reported_once_and_not_by_what_follows() -> None:
    """r2 reads r1's block in two steps, and r3 is hit on what r2 wrote meanwhile: one finding."""
    later = "step 3: r2 9..12 | 1 3 4\nsubmit r3 b:4 c:8\nhit r3 8 | 1 3\nacquire r3 | 1 3 5\n"
    assert found(FULL + FAULT + later + "step 4: r2 11..12 | 1 3 4") == ["stale-hit"]
    ledger = ledger_after(FULL + FAULT)
    assert [ledger.records[0][page].tainted for page in (1, 2, 3, 4)] == [False, False, True, True]


def test_what_was_written_before_the_fault_is_sound() -> None:
    """A step taints what it writes itself, not the pages of earlier steps."""
    ledger = ledger_after(
        FULL + "submit r1 a:8\nacquire r1 | 1 2\nstep 1: r1 0..4 | 1\nstep 2: r1 4..8 | 0 2"
    )
    assert [ledger.records[0][page].tainted for page in (1, 2)] == [False, True]


def test_whoever_reads_tainted_content_is_tainted() -> None:
    """The taint goes on to a reader of the page, and to what it writes."""
    reader = "submit r3 b:4 c:5\nhit r3 8 | 1 3\nacquire r3 | 1 3 5\nstep 3: r3 8..9 | 1 3 5"
    ledger = ledger_after(FULL + FAULT + reader)
    assert (
        ledger.requests["r1"].tainted,
        ledger.requests["r3"].tainted,
        ledger.records[0][5].tainted,
    ) == (False, True, True)


def test_another_request_over_sound_pages_is_judged_as_ever() -> None:
    """One request's fault does not excuse another's."""
    other = "submit r3 d:8\nhit r3 4 | 2\nacquire r3 | 2 6\nstep 3: r3 4..8 | 2 6"
    assert found(FULL + FAULT + other) == ["stale-hit", "stale-hit"]


def test_a_request_that_starts_again_is_judged_again() -> None:
    """Preempted, it has lost its pages and its taint; the second fault is told as well."""
    again = (
        "preempt r2\nrelease r2\nunpublish 0/3 evict\nhit r2 4 | 2\nacquire r2 | 2 6\n"
        "step 3: r2 4..8 | 2 6"
    )
    assert found(FULL + FAULT + again) == ["stale-hit", "stale-hit"]


def test_content_written_anew_is_sound() -> None:
    """A tainted page that somebody else gets is clean once it is written."""
    ledger = ledger_after(
        FULL + FAULT + "finish r2\nrelease r2\nsubmit r3 d:4\nacquire r3 | 4\nstep 3: r3 0..4 | 4"
    )
    assert not ledger.records[0][4].tainted
