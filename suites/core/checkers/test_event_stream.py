"""What events for routers prove by themselves, and the lawful look-alikes of it."""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness.core.checkers.event_stream import FULL, EventStream
from cachewitness.core.events import KeyEvents, KvRemoved, KvStored

TOKENS = [1, 2, 3, 4]
PLAIN = KeyEvents()
OPEN = KeyEvents(gaps=True, orphans=True)


def stored(hashes: str = "a b", tokens: list[int] | None = None, **more: Any) -> KvStored:
    """Return an event of blocks of 2."""
    fields = {"step": 0, "block_size": 2, **more}
    return KvStored(hashes=hashes.split(), tokens=TOKENS if tokens is None else tokens, **fields)


def removed(hashes: str, **more: Any) -> KvRemoved:
    return KvRemoved(step=0, hashes=hashes.split(), **more)


def problems(*events: KvStored | KvRemoved | str, allowed: KeyEvents = PLAIN) -> list[str]:
    """Return the anomalies and reasons of a stream; a word in it is a method to be called."""
    stream = EventStream()
    found = []
    for event in events:
        if isinstance(event, KvStored):
            found += stream.stored(event, allowed)
        elif isinstance(event, KvRemoved):
            found += stream.removed(event)
        else:
            getattr(stream, event)()
    return [f"{problem.anomaly}: {problem.why}" for problem in found]


def test_blocks_come_and_go() -> None:
    behind = stored("c", [5, 6], parent="b")
    assert problems(stored(), behind, removed("c b"), behind, removed("a c")) == []


def test_two_pages_of_one_prefix_are_told_twice_and_go_twice() -> None:
    assert problems(stored(), stored(), removed("a a")) == []
    assert problems(stored(), stored(), removed("a a a")) == [
        "false-key-event: 'a' was removed as often as it was stored"
    ]


def test_an_engine_that_tells_of_each_block_once_does_not_tell_of_it_again() -> None:
    strict = EventStream(once=True)
    assert [*strict.stored(stored("a", [1, 2]), PLAIN)] == []
    (problem,) = strict.stored(stored("a", [1, 2]), PLAIN)
    assert problem.why == "'a' is there already, and no event removed it meanwhile"
    assert [*strict.removed(removed("a a"))] == []
    assert [*strict.stored(stored("a", [1, 2]), PLAIN)] == []


def test_what_was_never_stored_cannot_go() -> None:
    assert problems(removed("a")) == ["false-key-event: no event stored 'a'"]
    assert problems("missed", removed("a")) == []


@pytest.mark.parametrize(
    ("gone", "where"),
    [
        (removed("a", group=1, medium="CPU"), "of CPU, group 0"),
        (removed("a", group=0), "of CPU, group 0"),
    ],
    ids=["group", "medium"],
)
def test_a_block_goes_where_it_was(gone: KvRemoved, where: str) -> None:
    there = stored("a", [1, 2], group=0, medium="CPU")
    assert problems(there, removed("a", group=0, medium="CPU")) == []
    assert problems(there, gone) == [f"false-key-event: 'a' is a block {where} alone"]


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (stored("a b c"), "it has 3 hashes for 4 tokens in blocks of 2"),
        (stored(tokens=[1, 2, 3]), "it has 2 hashes for 3 tokens in blocks of 2"),
        (stored("a"), "it has 1 hash for 2 blocks, and does not say of which"),
        (stored("a a"), "it has the same hash twice"),
        (stored("a", [], kind=FULL), "it has 1 hash for 0 tokens in blocks of 2"),
        (stored(parent="z"), "its parent 'z' is a block that no event told"),
    ],
)
def test_hashes_go_with_tokens_and_blocks_with_what_is_in_front(event: KvStored, why: str) -> None:
    assert problems(event) == [f"malformed-key-event: {why}"]


def test_a_group_that_is_pruned_leaves_out_blocks_and_parents() -> None:
    assert problems(stored("b", parent="z", kind="sliding_window"), allowed=OPEN) == []
    found = problems(stored("b", kind=FULL), allowed=OPEN)
    assert found == ["malformed-key-event: it has 1 hash for 2 blocks, and does not say of which"]


def test_a_name_without_tokens_is_for_whoever_declares_it() -> None:
    bare = stored("a", [], kind=FULL)
    assert problems(bare, removed("a"), allowed=KeyEvents(bare=True)) == []
    assert len(problems(bare)) == 1


@pytest.mark.parametrize(
    ("event", "what"),
    [
        (stored("a b", [1, 2, 3, 5]), "other tokens"),
        (stored("b", [3, 4], parent="c"), "another parent"),
        (stored("b", [3, 4], parent="a", adapter="x"), "another adapter"),
        (stored("a", [1, 2], salt="x"), "another salt"),
        (stored("b", [3, 4], parent="a", media=[[("cat", 1)]]), "other images"),
        (stored("b", [9, 9], parent="a", medium="CPU"), "other tokens"),
    ],
)
def test_a_name_stands_for_one_block(event: KvStored, what: str) -> None:
    first = stored("a b", salt="y", media=[[("dog", 0)], [("dog", -2)]])
    others = stored("c", [7, 8])
    name = event.hashes[-1]
    assert problems(first, others, event) == [
        f"false-key-event: {name!r} was stored before with {what}"
    ]


def test_the_same_block_is_stored_on_another_medium_in_other_pieces_and_less_is_said_of_it() -> (
    None
):
    """A chunk of two blocks on the host ends with the same tokens; its event names no salt."""
    chunk = KvStored(step=0, hashes=["b"], tokens=TOKENS, block_size=4, medium="CPU")
    assert problems(stored(salt="y"), chunk, removed("a b"), removed("b", medium="CPU")) == []


def test_events_of_a_medium_all_name_a_group_or_none_does() -> None:
    assert problems(stored(), stored("c", [5, 6], parent="b", medium="CPU", group=0)) == []
    assert problems(stored(), removed("a", group=0)) == [
        "malformed-key-event: it names a group, and other events of the device name none",
        "false-key-event: 'a' is a block of the device alone",
    ]


def test_a_group_keeps_its_kind() -> None:
    one = stored("a", [1, 2], group=0, kind=FULL)
    other = stored("c", [5, 6], group=0, kind="mamba")
    assert problems(one, one) == []
    assert problems(one, other) == [
        "malformed-key-event: group 0 is of kind mamba, and was of full_attention"
    ]


def test_after_everything_was_cleared_nothing_is_there() -> None:
    assert problems(stored(), "cleared", stored(), removed("a")) == []
    assert problems(stored(), "cleared", removed("a")) == [
        "false-key-event: 'a' was removed as often as it was stored"
    ]


def test_where_there_are_two_media_nobody_says_which_was_cleared() -> None:
    assert problems(stored(), stored(medium="CPU"), "cleared", removed("a", medium="CPU")) == []
