"""A recording is read in whatever form a router writes it, and judged with the numbers of its
messages.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cachewitness._util.errors import UsageError
from cachewitness.core.events import KvCleared, KvRemoved, KvStored
from cachewitness.core.recorded_events import RecordedEvents
from cachewitness.engines.event_recording import read

STORED: dict[str, Any] = {
    "type": "BlockStored",
    "block_hashes": [1, 2],
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
}
REMOVED: dict[str, Any] = {"type": "BlockRemoved", "block_hashes": [2], "medium": "GPU"}
CLEARED = {"type": "AllBlocksCleared"}


def packed(*messages: Any) -> bytes:
    return b"".join(map(msgspec.msgpack.encode, messages))


def lines(*messages: Any) -> bytes:
    return b"\n".join(json.dumps(message).encode() for message in messages)


def framed(number: int, *events: Any) -> list[Any]:
    """Return the parts that ZMQ brings."""
    return [b"kv", number.to_bytes(8, "big"), packed([1.5, list(events), 0])]


def numbered(number: int, *events: Any, rank: int | None = None) -> dict[str, Any]:
    return {"seq": number, "ts": 1.5, "events": list(events), "data_parallel_rank": rank}


def judged(path: Path, content: bytes, *, once: bool = False) -> RecordedEvents:
    path.write_bytes(content)
    recorded = RecordedEvents(once=once)
    recorded.take(read(path))
    return recorded


def found(path: Path, content: bytes) -> list[str]:
    """Return anomalies and lines of what is found in a recording."""
    return [f"{one.anomaly}: {one.line}" for one in judged(path, content).findings]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "recording"


AS_LISTS = [
    ["BlockStored", [1, 2], None, [1, 2, 3, 4], 2, None, "GPU"],
    ["BlockRemoved", [2], "GPU"],
    ["AllBlocksCleared"],
]
"""As vLLM published events before 0.29."""


@pytest.mark.parametrize(
    "content",
    [
        packed([0.5, [STORED, REMOVED, CLEARED]]),
        packed([0.5, [STORED, REMOVED, CLEARED], 0]),
        packed(framed(0, STORED, REMOVED, CLEARED)),
        packed([0.5, AS_LISTS, None]),
        lines(STORED, REMOVED, CLEARED),
        lines([STORED, REMOVED, CLEARED]),
        lines(*AS_LISTS),
        lines(numbered(0, STORED), numbered(1, REMOVED, CLEARED)),
        lines({"topic": "kv", "seq": 0, "payload": [0.5, [STORED, REMOVED, CLEARED]]}),
    ],
    ids=["batch", "rank", "frames", "lists", "events", "document", "rows", "numbered", "payload"],
)
def test_every_form_says_the_same(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert [event for message in read(path) for event in message.events] == [
        KvStored(step=0, hashes=["1", "2"], tokens=[1, 2, 3, 4], block_size=2),
        KvRemoved(step=0, hashes=["2"]),
        KvCleared(step=0),
    ]
    assert judged(path, content).findings == []


def test_what_an_event_says_of_itself_is_kept(path: Path) -> None:
    more = {
        "block_hashes": [b"\x01\xff"],
        "token_ids": [1, 2],
        "lora_name": "tuned",
        "extra_keys": [["tuned", ["cat", 1], "salt"]],
        "medium": "CPU",
        "locality": "REMOTE",
        "group_idx": 1,
        "kv_cache_spec_kind": "mamba",
    }
    path.write_bytes(packed([0.5, [{**STORED, **more}]]))
    (event,) = read(path)[0].events
    assert event == KvStored(
        step=0,
        hashes=["01ff"],
        tokens=[1, 2],
        block_size=2,
        group=1,
        adapter="tuned",
        salt="salt",
        media=[[("cat", 1)]],
        medium="CPU REMOTE",
        kind="mamba",
    )


@pytest.mark.parametrize(
    ("event", "why"),
    [
        ({**STORED, "token_ids": None}, "`token_ids` of BlockStored is None, which is no list"),
        ({**STORED, "token_ids": ["a"]}, "`token_ids` of BlockStored are not all numbers"),
        ({**STORED, "block_size": "2"}, "`block_size` of BlockStored is '2', which is no number"),
        ({**STORED, "extra_keys": [1]}, "`extra_keys` of BlockStored are not one entry for each"),
        ({**REMOVED, "block_hashes": [None]}, "a hash of BlockRemoved is None, which is no name"),
        ({"type": "Moved"}, "an event is of type 'Moved', which is none of BlockStored, Block"),
        (3, "an event is neither an object nor a list with its type"),
    ],
)
def test_an_event_that_a_router_cannot_read_is_a_finding(path: Path, event: Any, why: str) -> None:
    recorded = judged(path, packed([0.5, [event]]))
    assert [one.anomaly for one in recorded.findings] == ["malformed-key-event"]
    assert why in recorded.findings[0].sentence


@pytest.mark.parametrize("content", [b"[1, 2]", b'{"a": 1}', b"{", packed(7), packed([b"", -1, 1])])
def test_what_is_no_recording_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(UsageError):
        read(path)


def test_a_message_that_is_missing_is_found_and_what_it_may_have_told_is_held_against_nobody(
    path: Path,
) -> None:
    content = lines(numbered(0, STORED), numbered(3, {**REMOVED, "block_hashes": [9]}))
    assert found(path, content) == [
        "lost-key-event: message 2 (number 3); 2 messages between 0 and 3 never came"
    ]
    assert judged(path, content).tally().excused == {"blocks that may have been stored unseen": 1}


def test_who_joins_late_cannot_know_what_was_stored_before(path: Path) -> None:
    recorded = judged(path, lines(numbered(7, REMOVED)))
    assert recorded.findings == []
    assert recorded.notes() == ["the recording begins behind a publisher's first message: 1 time"]
    assert found(path, lines(numbered(0, REMOVED)))


def test_messages_that_come_again_are_taken_once(path: Path) -> None:
    again = [numbered(0, STORED), numbered(1, REMOVED), numbered(1, REMOVED)]
    assert found(path, lines(*again, numbered(2, STORED), numbered(1, REMOVED))) == []
    other = lines(numbered(0, STORED), numbered(0, REMOVED))
    assert found(path, other) == [
        "malformed-key-event: message 2 (number 0); number 0 came twice, with other events"
    ]


def test_an_engine_that_starts_anew_has_nothing_of_before(path: Path) -> None:
    start = [numbered(0, STORED), numbered(1, CLEARED)]
    assert found(path, lines(*start, numbered(0, STORED), numbered(1, REMOVED))) == []
    assert len(found(path, lines(*start, numbered(0, REMOVED)))) == 1


def test_publishers_are_told_apart(path: Path) -> None:
    """Rank 1 removes what rank 0 stored."""
    both = [numbered(0, STORED), numbered(0, STORED, rank=1), numbered(1, REMOVED, rank=1)]
    assert found(path, lines(*both)) == []
    (one,) = found(path, lines(numbered(0, STORED), numbered(0, REMOVED, rank=1)))
    assert one == "false-key-event: message 2 (number 0) of rank 1; no event stored '2'"


def test_where_groups_do_not_say_what_they_are_several_may_be_pruned(path: Path) -> None:
    """VLLM before 0.29 does not; of one group alone nothing is left out."""
    gap = {**STORED, "block_hashes": [2], "group_idx": 0}
    other = {**STORED, "group_idx": 1}
    assert found(path, lines(gap, other)) == []
    assert len(found(path, lines(gap))) == 1
    full = {**gap, "kv_cache_spec_kind": "full_attention"}
    assert len(found(path, lines(full, {**other, "kv_cache_spec_kind": "mamba"}))) == 1


def test_what_is_stored_again_is_noted_and_found_on_demand(path: Path) -> None:
    content = lines(STORED, STORED)
    recorded = judged(path, content)
    assert recorded.findings == []
    assert recorded.notes()[-1].startswith("blocks that were there were stored again 2 times")
    assert len(judged(path, content, once=True).findings) == 1
