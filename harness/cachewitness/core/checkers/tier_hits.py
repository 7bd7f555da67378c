"""What requests load from another tier, held against what routers were told is there.

A router that was never told of a block in a host's memory sends the request elsewhere, where it is
computed again. So what a request is given from there must have been told: of each whole block of a
group of full attention, an event must stand that has its tokens, or has a name that stood for these
tokens in another event. Of other groups events say too little for that.

Source: vLLM 0.33.0, `v1/simple_kv_offload/manager.py`, `take_events`;
`distributed/kv_transfer/kv_connector/v1/offloading/events.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from cachewitness.core.checkers.event_stream import EventStream
from cachewitness.core.checkers.wording import count
from cachewitness.core.events import Group, Hit
from cachewitness.core.ledger.ledger import Ledger

UNGROUPED = -1
"""What an event names that is of no group."""


def unreported(ledger: Ledger, hit: Hit, events: EventStream) -> tuple[str, str]:
    """Return what is loaded for a request of which no router knows: the tokens, and how many blocks
    there are; ("", "") if all is told.
    """
    tokens = ledger.requests[hit.r].tokens[: hit.reported]
    missing = [
        (start, stop)
        for group in ledger.header.local_groups()
        if group.kind == "full"
        for start, stop in _loaded(ledger, hit, group)
        if stop <= len(tokens) and not _is_reported(events, group.id, tokens, start)
    ]
    if not missing:
        return "", ""
    start, stop = missing[0]
    return f"[{start}, {stop})", count(len(missing), "block")


def _loaded(ledger: Ledger, hit: Hit, group: Group) -> Iterator[tuple[int, int]]:
    """Yield the tokens, first and behind the last, of each block that is loaded for a group."""
    size = group.block_size
    columns = {
        column
        for stored in ledger.stored[group.id]
        if stored < len(hit.pages)
        for column, page in enumerate(hit.pages[stored])
        if page >= 0 and ledger.groups[stored].pool != group.pool
    }
    for column in sorted(columns):
        yield column * size, (column + 1) * size


def _is_reported(events: EventStream, group: int, tokens: list[int], start: int) -> bool:
    """Whether an event told of the block that a token lies in, whatever the size of its blocks."""
    return any(
        events.has((group, UNGROUPED), tokens[start // size * size : (start // size + 1) * size])
        for size in events.sizes
    )
