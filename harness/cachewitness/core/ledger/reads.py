"""Which columns of a read are invalid: their page is not the request's, or does not hold what the
request needs of it.

A request that decodes reads its whole prefix again for every token. So what was right in a long
read is remembered (`Verified`), and not looked at again while it is read over the same pages and as
the same prefix. Whatever changes a page that the request holds, or takes the page from it, ends
that memory first (`PoolRecords.changes`, `PoolRecords.parts`). The last blocks are always looked
at: they are still being written, and drafts in them fall.
"""

from __future__ import annotations

from cachewitness.core.events import Group, Read
from cachewitness.core.ledger.contents import Contents
from cachewitness.core.ledger.records import NOTHING, PageRecord, PoolRecords, Verified

LONG = 32
"""A read of fewer columns is looked at whole: to remember it would cost more."""
OPEN = 4
"""So many blocks at the end of a read are not remembered."""


def invalid_columns(
    read: Read, group: Group, nodes: list[int], records: PoolRecords, contents: Contents
) -> list[int]:
    """Return the indices into `read.pages` that are invalid, in ascending order.

    `nodes` are the prefixes of the run that reads, `records` those of the group's pool.
    """
    if group.kind == "recurrent":
        record = records.usable.get(read.pages[0])
        if record is None or read.r not in record.holders or record.group != read.group:
            return [0]
        return [] if contents.holds_state(record, nodes[read.stop], read.stop) else [0]
    if len(read.pages) < LONG:
        return _invalid_from(0, read, group, nodes, records, contents)
    known = records.verified.get((read.r, read.group))
    if known is not None and not _still_right(known, read, nodes, group.block_size):
        del records.verified[read.r, read.group]
        known = None
    first = read.start // group.block_size
    invalid = _invalid_from(
        known.stop // group.block_size - first if known else 0,
        read,
        group,
        nodes,
        records,
        contents,
    )
    if invalid:
        records.verified.pop((read.r, read.group), None)
    else:
        _remember(known, read, nodes, group, records)
    return invalid


def span_of(group: Group, read: Read, index: int) -> tuple[int, int]:
    """Return the tokens [start, stop) that a column of a read must hold; for a state, start ==
    stop.
    """
    if group.kind == "recurrent":
        return read.stop, read.stop
    column = read.start // group.block_size + index
    return max(read.start, column * group.block_size), min(
        read.stop, (column + 1) * group.block_size
    )


def surely_invalid_columns(
    read: Read,
    group: Group,
    node: int,
    length: int,
    records: PoolRecords,
    contents: Contents,
    since: int,
) -> list[int]:
    """Return the indices into `read.pages` that are invalid beyond doubt, of a run that its request
    did not outlive.

    It runs as the prefix `node` of `length` tokens. What it held was given back, so nothing is said
    of pages of which the content is forgotten, was written in the step `since` or later, or that
    somebody took in a later step than that of the run.
    """
    state = group.kind == "recurrent"
    invalid = []
    for index, page in enumerate(read.pages):
        start, stop = span_of(group, read, index)
        if start > length or (start == length and not state):
            break
        stop, record = min(stop, length), records.usable.get(page)
        if record is None:
            invalid.append(index)
        elif record.node != NOTHING and record.step < since and record.used_in <= read.step:
            right = (
                contents.holds_state(record, node, stop)
                if state
                else contents.covers(record, node, start, stop)
            )
            if not right or record.group != read.group:
                invalid.append(index)
    return invalid


def _still_right(known: Verified, read: Read, nodes: list[int], size: int) -> bool:
    """Whether a read covers what was verified, as the same prefix and over the same pages."""
    if read.start != known.start or read.stop < known.stop or nodes[known.stop] != known.node:
        return False
    columns = known.stop // size - known.start // size
    return (
        read.pages is known.pages
        or read.pages == known.pages
        or read.pages[:columns] == known.pages[:columns]
    )


def _remember(
    known: Verified | None, read: Read, nodes: list[int], group: Group, records: PoolRecords
) -> None:
    """Remember a read that is right, but for its last blocks."""
    stop = (read.stop // group.block_size - OPEN) * group.block_size
    if known is None and stop > read.start:
        records.verified[read.r, read.group] = Verified(read.start, stop, nodes[stop], read.pages)
    elif known is not None:
        known.pages = read.pages
        if stop > known.stop:
            known.stop = stop
            known.node = nodes[stop]


def _invalid_from(
    column: int,
    read: Read,
    group: Group,
    nodes: list[int],
    records: PoolRecords,
    contents: Contents,
) -> list[int]:
    """Return the indices into `read.pages` from `column` on that are invalid."""
    touched = records.usable.get
    r = read.r
    size = group.block_size
    last = read.stop
    owner = group.id
    invalid = []
    start = read.start
    stop = read.start - read.start % size + size
    if column:
        start, stop = stop + (column - 1) * size, stop + column * size
    pages = read.pages if column == 0 else read.pages[column:]
    for index, page in enumerate(pages, column):
        if stop > last:
            stop = last
        record = touched(page)
        if (
            record is None
            or record.node != nodes[stop]
            or record.start > start
            or record.group != owner
            or r not in record.holders
        ) and not _block_is_valid(record, read, nodes, start, stop, contents):
            invalid.append(index)
        start, stop = stop, stop + size
    return invalid


def _block_is_valid(
    record: PageRecord | None,
    read: Read,
    nodes: list[int],
    start: int,
    stop: int,
    contents: Contents,
) -> bool:
    """Look again at a page whose newest run is not just what tokens [start, stop) need."""
    if record is None or read.r not in record.holders:
        return False
    return record.group == read.group and contents.covers(record, nodes[stop], start, stop)
