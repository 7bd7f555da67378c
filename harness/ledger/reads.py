"""Which columns of a read are invalid: their page is not the request's, or does not hold what the request needs of it."""

from __future__ import annotations

from harness.history.events import Group, Read
from harness.ledger.contents import Contents
from harness.ledger.records import PageRecord, PoolRecords


def invalid_columns(read: Read, group: Group, nodes: list[int], records: PoolRecords, contents: Contents) -> list[int]:
    """Return the indices into `read.pages` that are invalid, in ascending order.

    `nodes` are the prefixes of the run that reads, `records` those of the group's pool.
    """
    if group.kind == "recurrent":
        return [] if _state_is_valid(read, nodes, records, contents) else [0]
    touched, r, size, last = records.usable.get, read.r, group.block_size, read.stop
    owner, invalid = group.id, []
    start, stop = read.start, read.start - read.start % size + size
    for index, page in enumerate(read.pages):
        if stop > last:
            stop = last
        record = touched(page)
        valid = (
            record is not None
            and record.node == nodes[stop]
            and record.start <= start
            and record.group == owner
            and r in record.holders
        )
        if not valid and not _block_is_valid(record, read, nodes, start, stop, contents):
            invalid.append(index)
        start, stop = stop, stop + size
    return invalid


def _state_is_valid(read: Read, nodes: list[int], records: PoolRecords, contents: Contents) -> bool:
    record = records.usable.get(read.pages[0])
    if record is None or read.r not in record.holders:
        return False
    return record.group == read.group and contents.holds_state(record, nodes[read.stop], read.stop)


def _block_is_valid(record: PageRecord | None, read: Read, nodes: list[int], start: int, stop: int, contents: Contents) -> bool:
    """Look again at a page whose newest run is not just what tokens [start, stop) need."""
    if record is None or read.r not in record.holders:
        return False
    return record.group == read.group and contents.covers(record, nodes[stop], start, stop)
