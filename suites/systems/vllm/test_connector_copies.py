"""What stands in for the copies of a connector's worker, and for its memory, without a vLLM."""

from __future__ import annotations

import pytest

from cachewitness.core.events import (
    Aborted,
    Acquire,
    Copy,
    Event,
    Group,
    Header,
    Move,
    Pool,
    Preempted,
    Publish,
    Release,
    Rules,
    Run,
    StepBegin,
    StepEnd,
    Submitted,
    TierRules,
)
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.worker import Worker
from cachewitness.engines.cache_state import Claim
from cachewitness.systems.vllm.connectors.copies import Copies
from cachewitness.systems.vllm.connectors.tier import Books, KeyNames, ObservedMemory

LOAD = Move(3, 5, 1, 0)
STORE = Move(5, 3, 0, 1)


def test_a_job_is_over_with_the_last_of_its_steps() -> None:
    copies = Copies(delay=2)
    job = copies.begin([3, 3], [5, 5], stores=False)
    copies.advance([])
    assert (job.over, copies.begun, copies.ended) == (False, [(1, LOAD), (2, LOAD)], [])
    copies.begin_step()
    copies.advance([])
    assert (job.over, copies.begun, copies.ended, copies.under_way) == (True, [], [1, 2], [])


def test_a_load_fails_when_its_job_is_over_and_says_which_block_is_lost() -> None:
    copies = Copies(delay=2)
    copies.begin([5], [3], stores=True)
    copies.begin([3, 4], [5, 6], stores=False)
    copies.advance([1, 7])
    assert copies.failed == []
    copies.begin_step()
    copies.advance([])
    assert (copies.ended, copies.failed, copies.lost) == ([1, 2], [3], [6])


def test_a_load_that_its_step_waits_for_fails_in_the_step_that_it_began_with() -> None:
    """What arrived is there before the runs; the other copy begins and fails with the step."""
    copies = Copies(delay=3)
    copies.begin_step([1, 9])
    copies.wait([copies.begin([3, 4], [5, 6], stores=False)])
    copies.advance([1])
    assert (len(copies.before), [number for number, _ in copies.begun]) == (1, [2])
    assert (copies.failed, copies.lost, copies.ended, copies.flushed) == ([2], [6], [], [])


def test_what_is_waited_for_is_over_before_the_runs_and_so_is_what_began_before_it() -> None:
    copies = Copies(delay=3)
    first = copies.begin([3], [5], stores=False)
    other = copies.begin([5], [3], stores=True)
    copies.advance([])
    copies.begin_step()
    second = copies.begin([3], [5], stores=False)
    copies.wait([second])
    assert (first.over, second.over, other.over) == (True, True, False)
    assert (copies.flushed, copies.before, copies.begun) == ([1], [LOAD], [])


def test_the_worker_ends_a_flushed_copy_before_anybody_runs() -> None:
    header = Header(
        engine="t",
        level="scheduler",
        pools=[Pool(id=0, pages=8, null=[0]), Pool(id=1, pages=8, tier="cpu")],
        groups=[
            Group(id=0, kind="full", block_size=4),
            Group(id=1, kind="full", block_size=4, pool=1, source_group=0),
        ],
    )
    begun = [StepBegin(step=1, begun=[(1, STORE)]), StepEnd(step=1)]
    flushed = [StepBegin(step=2, flushed=[1], runs=[Run("r", 0, 4, [[5], []])]), StepEnd(step=2)]
    done: list[Event] = Worker(header).extend([*begun, *flushed])
    assert [(type(event).__name__, event.phase) for event in done if isinstance(event, Copy)] == [
        ("Copy", "begin"),
        ("Copy", "end"),
    ]
    assert [type(event).__name__ for event in done[3:]] == [
        "StepBegin",
        "Copy",
        "Write",
        "Read",
        "StepEnd",
    ]


def test_a_store_that_is_told_of_takes_no_step_before_it_is_asked_for_and_is_flushed_first_of_all() -> (  # noqa: E501
    None
):
    copies = Copies(delay=1)
    job = copies.begin([5], [3], stores=True, asked=False)
    copies.advance([])
    assert not job.over
    copies.begin_step()
    job.begun = True
    copies.wait([job])
    assert (job.over, copies.flushed, copies.before, copies.ended) == (True, [1], [], [])


def test_as_many_pages_are_copied_from_as_to() -> None:
    with pytest.raises(RuntimeError, match=r"to copy 2 pages, \[1, 2\], into 1, \[3\]"):
        Copies(delay=1).begin([1, 2], [3], stores=False)


class Memory:
    """A memory whose books are written by hand."""

    now = Books({}, {}, 4)

    def books(self) -> Books:
        return self.now


def test_what_becomes_of_a_memory_is_told_page_by_page() -> None:
    memory = Memory()
    observed = ObservedMemory(memory, 1)
    memory.now = Books({}, {2: 1}, 3)
    taken = observed.changes(1, lambda page: 0)
    memory.now = Books({(0, 2, "key"): Claim(4, "r")}, {}, 4)
    kept = observed.changes(1, lambda page: 0)
    memory.now = Books({}, {}, 4)
    lost = observed.changes(2, lambda page: 0, "reset")
    assert [event.__struct_config__.tag for event in [*taken, *kept, *lost]] == [
        *("acquire", "counts"),
        *("publish", "release", "counts"),
        *("unpublish", "counts"),
    ]
    assert observed.changes(2, lambda page: 0) == []


class Request:
    """A request with two hashes."""

    request_id = "r"
    block_hashes = ["a", "b"]


def test_a_hash_names_the_request_that_got_it_last() -> None:
    names = KeyNames(4)
    later = Request()
    later.request_id = "s"
    names.learn([Request(), later])
    assert names.claim("b") == Claim(8, "s")
    names.forget()
    names.learn([Request()])
    assert names.claim("b") == Claim(8, "r")


def ledger_behind(events: list[Event], *, fenced: bool = True) -> Ledger:
    """Return the ledger after what a scheduler and its worker did, with a tier of one group."""
    header = Header(
        engine="t",
        level="scheduler",
        pools=[Pool(id=0, pages=8, null=[0]), Pool(id=1, pages=8, tier="cpu")],
        groups=[
            Group(id=0, kind="full", block_size=4),
            Group(id=1, kind="full", block_size=4, pool=1, source_group=0),
        ],
        rules=Rules(tier=TierRules(chunk=4, fenced=fenced)),
    )
    ledger = Ledger(header)
    for event in Worker(header).extend(events):
        ledger.apply(event)
    return ledger


def has_first_block(ledger: Ledger, r: str = "r") -> bool:
    """Whether page 3 of the tier has the first four tokens of a request."""
    group = ledger.groups[1]
    return ledger.contents.content_matches(group, 3, ledger.requests[r].node_of(4), 4)


def stored(*, fenced: bool, flushed: bool) -> bool:
    """Give a page to somebody else while it is stored, and say whether the store has brought
    what was there.
    """
    over = {"flushed": [1]} if flushed else {"ended": [1]}
    events: list[Event] = [
        Submitted(r="r", tokens=[1, 2, 3, 4, 5]),
        Submitted(r="s", tokens=[6, 7, 8, 9, 10]),
        Acquire(pool=0, group=0, pages=[5], holder="r", step=1),
        StepBegin(step=1, runs=[Run("r", 0, 4, [[5], []])], begun=[(1, STORE)]),
        StepEnd(step=1),
        Release(pool=0, group=0, pages=[5], holder="r", step=1),
        Acquire(pool=0, group=0, pages=[5], holder="s", step=2),
        StepBegin(step=2, runs=[Run("s", 0, 4, [[5], []])], **over),
        StepEnd(step=2),
    ]
    return has_first_block(ledger_behind(events, fenced=fenced))


def test_a_fenced_store_may_read_a_page_until_it_is_overwritten() -> None:
    """Whoever gets the page waits for the store; if nobody waits, or stores were to hold their
    pages, nothing has arrived.
    """
    assert stored(fenced=True, flushed=True)
    assert not stored(fenced=True, flushed=False)
    assert not stored(fenced=False, flushed=True)


@pytest.mark.parametrize("writer", ["r", "s"])
def test_a_run_that_its_request_did_not_outlive_completes_the_block_that_is_stored(
    writer: str,
) -> None:
    """The client goes away under the step that fills the block: the step runs all the same, and
    the store behind it copies the whole block. A run of somebody else there completes nothing.
    """
    events: list[Event] = [
        Submitted(r="r", tokens=[1, 2, 3, 4, 5]),
        Submitted(r="s", tokens=[1, 2, 3, 4, 6]),
        Acquire(pool=0, group=0, pages=[5], holder="r", step=1),
        StepBegin(step=1, runs=[Run("r", 0, 3, [[5], []])]),
        StepEnd(step=1),
        StepBegin(step=2, runs=[Run(writer, 3, 4, [[5], []])], begun=[(1, STORE)]),
        Aborted(r="r", step=2),
        Release(pool=0, group=0, pages=[5], holder="r", step=2),
        StepEnd(step=2),
        StepBegin(step=3, ended=[1]),
        StepEnd(step=3),
    ]
    assert has_first_block(ledger_behind(events)) == (writer == "r")


def test_a_store_of_what_its_step_writes_is_not_early() -> None:
    """It begins behind the runs."""
    events: list[Event] = [
        Submitted(r="r", tokens=[1, 2, 3, 4, 5]),
        Acquire(pool=0, group=0, pages=[5], holder="r", step=1),
        Publish(group=0, page=5, r="r", length=4, step=1),
        StepBegin(step=1, runs=[Run("r", 0, 4, [[5], []])], begun=[(1, STORE)]),
        StepEnd(step=1),
        StepBegin(step=2, ended=[1]),
        StepEnd(step=2),
    ]
    ledger = ledger_behind(events)
    assert has_first_block(ledger) and not ledger.records[1][3].early


def test_a_run_that_its_request_did_not_outlive_writes_what_a_key_names() -> None:
    """What the request had left there in an earlier life does not take it."""
    events: list[Event] = [
        Submitted(r="r", tokens=[1, 2, 3, 4, 5, 6, 7, 8, 9]),
        Acquire(pool=0, group=0, pages=[5], holder="r", step=1),
        StepBegin(step=1, runs=[Run("r", 0, 4, [[5], []])]),
        StepEnd(step=1),
        Preempted(r="r", step=2),
        Release(pool=0, group=0, pages=[5], holder="r", step=2),
        Acquire(pool=0, group=0, pages=[4, 5], holder="r", step=2),
        Publish(group=0, page=5, r="r", length=8, step=2),
        StepBegin(step=2, runs=[Run("r", 0, 8, [[4, 5], []])]),
        Aborted(r="r", step=2),
        Release(pool=0, group=0, pages=[4, 5], holder="r", step=2),
        StepEnd(step=2),
    ]
    ledger = ledger_behind(events)
    assert [key.state for key in ledger.records[0][5].keys] == ["committed"]
