"""Reads what a router recorded of an engine's events: batches as vLLM publishes them over ZMQ.

A file has messages one behind the other, in MessagePack, or in JSON: a message on a line, or one
document with a list of them. A message is the payload, `[time, events, rank]`, or an object with
these fields; or the parts that ZMQ brought, `[topic, number, payload]`; or a single event. Events
are objects with a `type`, or lists that begin with it, as vLLM had them before 0.29.

Whatever an event lacks or has otherwise is a finding, as a router would drop or misread it. Only
what is no recording is refused.

Source: vLLM 0.24.0 to 0.33.0, `distributed/kv_events.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from cachewitness._util import msgpack, reading
from cachewitness._util.errors import UsageError
from cachewitness.core.events import Event, KvCleared, KvRemoved, KvStored
from cachewitness.core.recorded_events import Message
from cachewitness.engines.key_events import NO_GROUP, identity, medium_named

STORED, REMOVED, CLEARED = "BlockStored", "BlockRemoved", "AllBlocksCleared"
FIELDS: Mapping[str, tuple[str, ...]] = {
    STORED: (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
        "locality",
        "ownership",
    ),
    REMOVED: ("block_hashes", "medium", "group_idx", "locality", "ownership"),
    CLEARED: (),
}
"""The fields of an event that is a list, in their order."""
MOST = 1 << 31
"""Bytes; a recording is read whole."""


class _Unreadable(Exception):
    """An event is not what its type says."""


def read(path: Path) -> list[Message]:
    """Return the messages of a recording.

    Raises UsageError, with the place, for a file that is none.
    """
    content = reading.whole(path, MOST)
    if content.lstrip()[:1] in (b"{", b"["):
        found = _json(content, str(path))
    else:
        found = msgpack.messages(content, str(path))
    return [
        _message(message, f"{path}: message {number}") for number, message in enumerate(found, 1)
    ]


def _json(content: bytes, path: str) -> Iterator[object]:
    """Yield the messages of JSON lines, or of a document that is a list of messages."""
    try:
        document = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        for number, line in enumerate(content.splitlines(), 1):
            if line.strip():
                try:
                    yield msgspec.json.decode(line)
                except (msgspec.DecodeError, RecursionError) as error:
                    raise UsageError(f"{path}:{number}: {error}") from None
        return
    several = isinstance(document, list) and all(isinstance(one, dict | list) for one in document)
    yield from document if several else [document]


def _message(found: Any, place: str) -> Message:
    """Return a message of whatever form."""
    topic = ""
    number = None
    if isinstance(found, list) and len(found) == 3 and isinstance(found[0], str | bytes):
        if not (isinstance(found[0], str) and found[0] in FIELDS):
            topic = _text(found[0])
            number = _number(found[1], place)
            found = _payload(found[2], place)
    elif isinstance(found, dict) and "type" not in found:
        topic = _text(found.get("topic") or "")
        number = _number(found.get("seq"), place)
        if "payload" in found:
            found = _payload(found["payload"], place)
    events, rank = _batch(found, place)
    publisher = " ".join(filter(None, (topic, f"rank {rank}" if rank else "")))
    read: list[Event] = []
    problems: list[str] = []
    for event in events:
        try:
            read.append(_event(event))
        except _Unreadable as problem:
            problems.append(str(problem))
    return Message(publisher, number, read, problems)


def _batch(found: Any, place: str) -> tuple[list[Any], Any]:
    """Return the events of a batch, and the rank of who published it."""
    if isinstance(found, dict) and isinstance(found.get("events"), list):
        return found["events"], found.get("data_parallel_rank")
    if isinstance(found, dict) and "type" in found:
        return [found], None
    if isinstance(found, list) and found and isinstance(found[0], str):
        return [found], None
    if isinstance(found, list) and len(found) in (2, 3) and isinstance(found[1], list):
        return found[1], found[2] if len(found) > 2 else None
    raise UsageError(
        f"{place}: is no batch of events: [time, events, rank], an object with `events`, or an"
        " event"
    )


def _payload(found: Any, place: str) -> Any:
    if not isinstance(found, bytes):
        return found
    try:
        return msgspec.msgpack.decode(found)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{place}: its payload: {error}") from None


def _number(found: Any, place: str) -> int | None:
    if isinstance(found, bytes):
        return int.from_bytes(found, "big")
    if found is None or (isinstance(found, int) and not isinstance(found, bool) and found >= 0):
        return found
    raise UsageError(f"{place}: its sequence number is {found!r}, which is no number")


def _text(found: Any) -> str:
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found)


def _event(found: Any) -> Event:
    """Return an event. Raises _Unreadable for what a router cannot read."""
    if isinstance(found, list) and found and isinstance(found[0], str):
        kind = found[0]
        fields = dict(zip(FIELDS.get(kind, ()), found[1:], strict=False))
    elif isinstance(found, dict):
        kind = str(found.get("type"))
        fields = found
    else:
        raise _Unreadable("an event is neither an object nor a list with its type")
    if kind not in FIELDS:
        raise _Unreadable(f"an event is of type {kind!r}, which is none of {', '.join(FIELDS)}")
    if kind == CLEARED:
        return KvCleared(step=0)
    medium = " ".join(filter(None, map(str, (medium_named(fields.get("medium")), _remote(fields)))))
    group = _whole(kind, fields, "group_idx", NO_GROUP)
    hashes = [_name(kind, name) for name in _list(kind, fields, "block_hashes")]
    if kind == REMOVED:
        return KvRemoved(step=0, hashes=hashes, group=group, medium=medium)
    return _stored(fields, hashes, group, medium)


def _stored(fields: Mapping[str, Any], hashes: list[str], group: int, medium: str) -> KvStored:
    tokens = _list(STORED, fields, "token_ids")
    if not all(isinstance(token, int) for token in tokens):
        raise _Unreadable(f"`token_ids` of {STORED} are not all numbers")
    parent = fields.get("parent_block_hash")
    adapter = str(fields.get("lora_name") or fields.get("lora_id") or "")
    extra = fields.get("extra_keys") or [None] * len(hashes)
    if not isinstance(extra, list) or len(extra) != len(hashes):
        raise _Unreadable(f"`extra_keys` of {STORED} are not one entry for each hash")
    identities = [identity(keys, adapter) for keys in extra]
    return KvStored(
        step=0,
        hashes=hashes,
        tokens=tokens,
        block_size=_whole(STORED, fields, "block_size", None),
        group=group,
        parent="" if parent is None else _name(STORED, parent),
        adapter=adapter,
        salt=next((salt for salt, _ in identities if salt), ""),
        media=[items for _, items in identities] if any(items for _, items in identities) else [],
        medium=medium,
        kind=str(fields.get("kv_cache_spec_kind") or ""),
    )


def _remote(fields: Mapping[str, Any]) -> str:
    """Return whose medium it is, if it is not the publisher's own."""
    parts = (fields.get("ownership"), fields.get("locality"))
    return " ".join(str(part) for part in parts if part not in (None, "", "LOCAL"))


def _list(kind: str, fields: Mapping[str, Any], field: str) -> list[Any]:
    found = fields.get(field)
    if not isinstance(found, list):
        raise _Unreadable(f"`{field}` of {kind} is {_short(found)}, which is no list")
    return found


def _whole(kind: str, fields: Mapping[str, Any], field: str, missing: int | None) -> int:
    found = fields.get(field)
    if found is None and missing is not None:
        return missing
    if not isinstance(found, int) or isinstance(found, bool):
        raise _Unreadable(f"`{field}` of {kind} is {_short(found)}, which is no number")
    return found


def _name(kind: str, found: Any) -> str:
    if isinstance(found, bytes):
        return found.hex()
    if isinstance(found, int | str) and not isinstance(found, bool) and found != "":
        return str(found)
    raise _Unreadable(f"a hash of {kind} is {_short(found)}, which is no name of a block")


def _short(found: Any) -> str:
    text = repr(found)
    return text if len(text) <= 40 else text[:40] + "…"
