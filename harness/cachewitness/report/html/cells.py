"""A cell of a block table: what it claims, what the ledger knows, and whether a read found
something else there.

Only a read makes a cell wrong. A page may be claimed long before it holds anything: a copy from
another tier fills it, or the request beside it in the step does. And the table of a request that
does not run may name pages that moved meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from cachewitness.core.attention_span import spans_read
from cachewitness.core.events import Group, Read
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.records import PageRecord
from cachewitness.report.html import words

COLUMNS_MAX = 48
"""Cells of one row of a block table; of a longer row the right ones in the middle are folded."""

Looks = Literal["right", "wrong", "tainted", "not-yet", "unread", "left", "null", "fold"]
"""right: it holds what is read there. wrong: it was read, and did not. tainted: it does, computed
from something wrong. not-yet: computed later. unread: it does not hold that at this moment, and
no read found that so. left: not read any more. fold: several that are right or not read."""


class Cell(msgspec.Struct, omit_defaults=True):
    """A column of a block table: its page (−1: folded), how it looks, what engine and ledger
    say; `marked`: here it fails.
    """

    page: int
    looks: Looks
    claim: str = ""
    known: str = ""
    marked: bool = False


class Row(msgspec.Struct):
    """The block table of a request in one group."""

    group: int
    cells: list[Cell]


def cell_of(ledger: Ledger, group: Group, r: str, column: int, page: int, upto: int) -> Cell:
    """Return a column: what the block table claims of the tokens [0, upto) that are computed,
    and what the ledger knows.
    """
    record = ledger.record(group.id, page)
    known = words.content(record) if record is not None else "is the null page, which holds nothing"
    if record is not None and r not in record.holders:
        known += f"; {r} does not hold it"
    claim, needed = claim_of(group, r, column, upto, ledger.requests[r].prompt_tokens)
    if needed is None:
        return Cell(
            page,
            "null" if record is None else "not-yet" if claim == words.NOT_YET else "left",
            claim,
            known,
        )
    if record is None or not _holds(ledger, group, r, record, upto, needed):
        return Cell(page, "unread", claim, known)
    return Cell(page, "tainted" if record.tainted else "right", claim, known)


def claim_of(
    group: Group, r: str, column: int, upto: int, prompt: int
) -> tuple[str, tuple[int, int] | None]:
    """Return what a column is to hold, in words and as tokens [start, stop); None if nobody
    reads it.
    """
    size = group.block_size
    start = column * size
    stop = min((column + 1) * size, upto)
    if stop <= start:
        return words.NOT_YET, None
    if group.kind == "recurrent":
        latest = column == -(-upto // size) - 1
        return (
            (f"the state after {upto} tokens of {r}", (upto, upto))
            if latest
            else ("an earlier state", None)
        )
    read = [
        (max(start, first), min(stop, last))
        for first, last in spans_read(group, upto, upto, prompt)
    ]
    read = [(first, last) for first, last in read if first < last]
    if not read:
        return "out of the window", None
    return f"tokens [{read[0][0]}, {read[-1][1]}) of {r}", (read[0][0], read[-1][1])


def _holds(
    ledger: Ledger, group: Group, r: str, record: PageRecord, upto: int, needed: tuple[int, int]
) -> bool:
    """Whether a page is the request's and holds what a column needs, by the ledger."""
    if record.group != group.id or r not in record.holders:
        return False
    node = ledger.requests[r].node_of(upto)
    if group.kind == "recurrent":
        return ledger.contents.holds_state(record, node, needed[1])
    return ledger.contents.covers(record, node, *needed)


def read_in_vain(ledger: Ledger, group: Group, read: Read, row: Row) -> None:
    """Call the columns wrong in which a read does not find what it needs; what the ledger knows
    of them is as of the read.
    """
    first = (read.stop - 1 if group.kind == "recurrent" else read.start) // group.block_size
    for index in ledger.before(read).invalid:
        column = first + index
        page = read.pages[index]
        while len(row.cells) <= column:
            row.cells.append(
                Cell(-1, "unread", "nothing: the block table ends before it", "is missing")
            )
        stood = row.cells[column]
        now = cell_of(ledger, group, read.r, column, page, read.stop)
        stood.looks, stood.known = "wrong", now.known if page >= 0 else stood.known
        stood.claim = stood.claim if stood.claim != words.NOT_YET else now.claim


def folded(cells: list[Cell]) -> Iterator[Cell]:
    """Yield the cells of a row; of a long one, those in the middle that are all right become
    one.
    """
    room = COLUMNS_MAX // 2
    plain = [
        index
        for index, cell in enumerate(cells)
        if cell.looks in ("right", "left", "null") and not cell.marked
    ]
    hidden = (
        set(plain) & set(range(room, len(cells) - room)) if len(cells) > COLUMNS_MAX else set[int]()
    )
    folding = False
    for index, cell in enumerate(cells):
        if index not in hidden:
            folding = False
            yield cell
        elif not folding:
            folding = True
            until = next((i for i in range(index, len(cells)) if i not in hidden), len(cells))
            yield Cell(-1, "fold", f"{until - index} columns that are right or not read")
