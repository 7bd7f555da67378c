"""What is loaded from another tier, and what routers were told of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cachewitness.core.checkers.event_stream import EventStream
from cachewitness.core.checkers.tier_hits import unreported
from cachewitness.core.events import Group, Hit, KeyEvents, KvRemoved, KvStored

TOKENS = [*range(100, 113)]
DEVICE = Group(0, "full", 4)
MEMORY = Group(1, "full", 4, pool=1, source_group=0)


def loaded(events: EventStream, *pages: int) -> str:
    """Return the first tokens that are loaded untold; −1 is a page that is not loaded."""
    ledger: Any = SimpleNamespace(
        requests={"a": SimpleNamespace(tokens=TOKENS)},
        header=SimpleNamespace(local_groups=lambda: [DEVICE]),
        stored=[[0, 1], []],
        groups=[DEVICE, MEMORY],
    )
    hit = Hit(r="a", reported=12, resume=12, pages=[[1, 2, 3], [*pages]], tier="second")
    return unreported(ledger, hit, events)[0]


def stored(place: int, size: int = 4, medium: str = "CPU", group: int = 0) -> KvStored:
    """Return the event of one block."""
    tokens = TOKENS[place * size : (place + 1) * size]
    parent = f"h{place - 1}" if place else ""
    return KvStored(
        hashes=[f"h{place}"],
        tokens=tokens,
        block_size=size,
        group=group,
        medium=medium,
        parent=parent,
    )


def heard(*events: KvStored | KvRemoved, bare: bool = False) -> EventStream:
    """Return what a router knows who heard these events."""
    stream = EventStream()
    stream.full = frozenset({0})
    for event in events:
        if isinstance(event, KvRemoved):
            assert not [*stream.removed(event)]
        elif event.medium:
            assert not [*stream.stored(event, KeyEvents(bare=bare, tiers=True))]
        else:
            stream.heard(event)
    return stream


def test_what_is_loaded_was_told() -> None:
    assert loaded(heard(stored(0), stored(1)), 5, 6, -1) == ""
    assert loaded(heard(stored(0)), 5, 6, -1) == "[4, 8)"
    assert loaded(heard(), 5, -1, -1) == "[0, 4)"
    assert loaded(heard(), -1, -1, -1) == ""


def test_what_was_removed_does_not_count() -> None:
    gone = KvRemoved(hashes=["h0"], group=0, medium="CPU")
    assert loaded(heard(stored(0), gone), 5, -1, -1) == "[0, 4)"
    assert loaded(heard(stored(0), stored(0), gone), 5, -1, -1) == ""


def test_chunks_of_several_blocks_and_events_without_a_group_are_told_too() -> None:
    assert loaded(heard(stored(0, size=8)), 5, 6, -1) == ""
    assert loaded(heard(stored(0, group=-1)), 5, -1, -1) == ""
    assert loaded(heard(stored(0, group=1)), 5, -1, -1) == "[0, 4)"


def test_a_name_alone_is_enough_if_the_device_told_its_tokens() -> None:
    name = KvStored(hashes=["h0"], tokens=[], block_size=4, group=0, medium="CPU")
    assert loaded(heard(stored(0, medium=""), name, bare=True), 5, -1, -1) == ""
    assert loaded(heard(name, bare=True), 5, -1, -1) == "[0, 4)"
    assert loaded(heard(stored(0, medium="")), 5, -1, -1) == "[0, 4)"


def test_a_block_without_tokens_that_had_some_before_its_removal_is_told_apart() -> None:
    nameless = KvStored(hashes=["h0"], tokens=[], block_size=0, group=0, medium="CPU")
    gone = KvRemoved(hashes=["h0"], group=0, medium="CPU")
    for events, dropped in (((stored(0), gone), True), ((stored(0),), False), ((), False)):
        problems = [*heard(*events).stored(nameless, KeyEvents())]
        assert [problem.dropped for problem in problems] == [dropped]
