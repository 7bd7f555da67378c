"""A history step by step: what each request's block table claims, and what the ledger knows of the pages in it.

A frame is taken where something happened to requests, before the runs of a step, and when it has ended. A cell of a block table
is right if its page holds what the engine will read there, by the ledger; a page of a pool is shown with what it holds, who
holds it and which keys name it. What is too long is folded, and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from harness.checkers.finding import Finding
from harness.history.events import (
    Aborted,
    Event,
    Finished,
    Group,
    Header,
    Hit,
    Preempted,
    Read,
    Run,
    StepBegin,
    StepEnd,
    Submitted,
    Write,
)
from harness.ledger.ledger import Ledger
from harness.ledger.records import Content
from harness.picture import words

FRAMES_MAX = 240
"""Frames of one picture; of a longer history those around the failure are shown, or the last ones."""
COLUMNS_MAX = 48
"""Cells of one row of a block table; of a longer row the right ones in the middle are folded."""
PAGES_MAX = 512
"""Pages of one pool that are shown; the lowest numbers."""

Looks = Literal["right", "wrong", "tainted", "not-yet", "left", "null", "fold"]
"""right: it holds what is read there. wrong: it does not. tainted: it does, computed from something wrong. not-yet: computed
later. left: not read any more. fold: several that are right or not read."""


class Cell(msgspec.Struct, omit_defaults=True):
    """A column of a block table: its page (−1: folded), how it looks, what engine and ledger say; `marked`: here it fails."""

    page: int
    looks: Looks
    claim: str = ""
    known: str = ""
    marked: bool = False


class Row(msgspec.Struct):
    """The block table of a request in one group."""

    group: int
    cells: list[Cell]


class Lane(msgspec.Struct):
    """A request in a frame: what it is about to do, or what became of it, and its block tables."""

    r: str
    doing: str
    rows: list[Row]


class PageCell(msgspec.Struct, omit_defaults=True):
    """A page of a pool: its state in a word, and all that the ledger knows of it."""

    page: int
    state: words.PageState
    known: str
    marked: bool = False


class Frame(msgspec.Struct):
    """One moment. `failing`: the one in which the failure was found. `pools` are the pages that anything ever touched."""

    title: str
    lanes: list[Lane]
    pools: list[list[PageCell]]
    failing: bool = False


class Sample(msgspec.Struct):
    """Pages at the end of a step: by pool those that somebody holds, those kept for a key alone, and how many there are."""

    step: int
    pools: list[tuple[int, int, int]]


class Film(msgspec.Struct):
    """The frames of a history, what was left out of them, and the names of groups and pools.

    `samples` and `hits` (step, request, tokens) are of the whole history.
    """

    frames: list[Frame]
    left_out: int
    groups: list[str]
    pools: list[str]
    samples: list[Sample]
    hits: list[tuple[int, str, int]]


def film(header: Header, events: Iterable[Event], finding: Finding | None = None) -> Film:
    """Return a history as frames. `finding` is what was found in it; its event's `seq` says where."""
    projector = _Projector(header, finding.seq if finding else -1)
    frames = list(projector.frames(events))
    place = next((index for index, frame in enumerate(frames) if frame.failing), len(frames) - 1)
    first = max(0, min(place - FRAMES_MAX * 3 // 4, len(frames) - FRAMES_MAX))
    kept = frames[first : first + FRAMES_MAX]
    groups, pools = [words.group(one) for one in header.groups], words.pools(header)
    return Film(kept, len(frames) - len(kept), groups, pools, projector.samples, projector.hits)


class _Projector:
    """Plays events through a ledger and takes frames."""

    def __init__(self, header: Header, failing: int) -> None:
        self.samples: list[Sample] = []
        self.hits: list[tuple[int, str, int]] = []
        self._header, self._failing = header, failing
        self._ledger = Ledger(header)
        self._tables: dict[str, list[list[int]]] = {}
        self._doing: dict[str, str] = {}
        self._upto: dict[str, int] = {}
        self._begun: dict[int, StepBegin] = {}
        self._before: dict[int, Frame] = {}
        """The frame that was taken before the runs of a step that is open."""
        self._title = ""
        self._unmarked: Event | None = None
        """The failing event, if the frame of its moment is still to be taken."""

    def frames(self, events: Iterable[Event]) -> Iterator[Frame]:
        """Yield a frame for each moment: before the runs of a step, and when all has happened that an operation brought about.

        The frame of a step may be marked later, for a read or write of one of its runs.
        """
        for event in events:
            in_a_run = isinstance(event, Read | Write)
            if in_a_run and event.step in self._begun:
                yield from self._moment()
                self._before[event.step] = self._frame(words.step(self._begun.pop(event.step)))
                yield self._before[event.step]
            title = words.title(event)
            if title:
                yield from self._moment()
                self._title = title
            if event.seq == self._failing and in_a_run:
                self._mark(self._before[event.step], event)
            elif event.seq == self._failing:
                self._unmarked = event
            self._follow(event)
            self._ledger.apply(event)
        yield from self._moment()

    def _moment(self) -> Iterator[Frame]:
        """Yield the frame of what has happened since the last one, if that has a title."""
        if self._title:
            frame = self._frame(self._title)
            self._title = ""
            if self._unmarked is not None:
                self._mark(frame, self._unmarked)
                self._unmarked = None
            yield frame

    def _follow(self, event: Event) -> None:
        """Take note of what an event says of requests, before the ledger applies it."""
        match event:
            case Submitted():
                self._doing[event.r] = "waits"
            case Hit():
                self._tables[event.r] = event.pages[: len(self._header.local_groups())]
                self._upto[event.r] = event.resume
                self._doing[event.r] = words.hit(event)
                self.hits.append((event.step, event.r, event.resume))
            case StepBegin():
                self._begin(event)
            case StepEnd():
                self._end(event)
            case Preempted() | Finished() | Aborted():
                self._tables.pop(event.r, None)
                self._upto.pop(event.r, None)
                self._doing[event.r] = words.END[type(event)]

    def _begin(self, event: StepBegin) -> None:
        for run in event.runs:
            self._tables[run.r], self._upto[run.r] = run.tables, run.start
            self._doing[run.r] = f"computes tokens [{run.start}, {run.stop})"
        self._begun[event.step] = event

    def _end(self, event: StepEnd) -> None:
        runs: list[Run] = self._ledger.requests.ran_in(event)
        self._begun.pop(event.step, None)
        self._before.pop(event.step, None)
        holdings, records = self._ledger.holdings, self._ledger.records
        counts = [(holdings.held[pool], len(holdings.idle[pool]), records[pool].capacity) for pool in records]
        self.samples.append(Sample(event.step, counts))
        for run in runs:
            self._upto[run.r] = run.known
            self._doing[run.r] = f"has computed tokens [{run.start}, {run.known})"

    # --- one moment -----------------------------------------------------------------------------------------------------

    def _frame(self, title: str) -> Frame:
        """Take the frame of this moment; who has ended is in it for the last time."""
        lanes = [
            Lane(r, doing, [self._row(group, r) for group in self._header.local_groups()] if r in self._tables else [])
            for r, doing in self._doing.items()
        ]
        for r in [r for r, doing in self._doing.items() if doing in words.END.values()]:
            del self._doing[r]
        return Frame(title, lanes, [self._pool(pool.id) for pool in self._header.pools])

    def _mark(self, frame: Frame, event: Event) -> None:
        """Mark what the failing event is about: pages, and of the block tables that have them the cells that are wrong."""
        frame.failing = True
        places = words.places(self._header, event)
        for pool, pages in zip(self._header.pools, frame.pools, strict=True):
            for one in pages:
                one.marked = (pool.id, one.page) in places
        groups = {group.id: group.pool for group in self._header.groups}
        number, name = getattr(event, "group", -1), getattr(event, "r", "")
        cells = [
            cell
            for lane in frame.lanes
            for row in lane.rows
            for cell in row.cells
            if (groups[row.group], cell.page) in places and number in (-1, row.group) and name in ("", lane.r)
        ]
        for cell in [cell for cell in cells if cell.looks == "wrong"] or cells:
            cell.marked = True

    def _row(self, group: Group, r: str) -> Row:
        tables = self._tables[r]
        pages = tables[group.id] if group.id < len(tables) else []
        return Row(group.id, list(_folded([self._cell(group, r, column, page) for column, page in enumerate(pages)])))

    def _cell(self, group: Group, r: str, column: int, page: int) -> Cell:
        """Return a column: what the block table claims of the tokens that are computed, and what the ledger knows."""
        record = self._ledger.record(group.id, page)
        known = words.content(record) if record is not None else "is the null page, which holds nothing"
        claim, needed = self._claim(group, r, column)
        if needed is None:
            return Cell(page, "null" if record is None else "not-yet" if claim == words.NOT_YET else "left", claim, known)
        if record is None or record.group != group.id or not self._holds(group, r, record, needed):
            return Cell(page, "wrong", claim, known)
        return Cell(page, "tainted" if record.tainted else "right", claim, known)

    def _claim(self, group: Group, r: str, column: int) -> tuple[str, tuple[int, int] | None]:
        """Return what a column is to hold, in words and as tokens [start, stop); None if nobody reads it."""
        upto, size = self._upto.get(r, 0), group.block_size
        start, stop = column * size, min((column + 1) * size, upto)
        if stop <= start:
            return words.NOT_YET, None
        if group.kind == "recurrent":
            latest = column == -(-upto // size) - 1
            return (f"the state after {upto} tokens of {r}", (upto, upto)) if latest else ("an earlier state", None)
        start = max(start, words.oldest(group, upto))
        return (f"tokens [{start}, {stop}) of {r}", (start, stop)) if start < stop else ("out of the window", None)

    def _holds(self, group: Group, r: str, record: Content, needed: tuple[int, int]) -> bool:
        """Whether a page holds what a column needs, by the ledger."""
        contents, node = self._ledger.contents, self._ledger.requests[r].node_of(self._upto[r])
        return (
            contents.holds_state(record, node, needed[1])
            if group.kind == "recurrent"
            else contents.covers(record, node, *needed)
        )

    def _pool(self, pool: int) -> list[PageCell]:
        records = self._ledger.records[pool]
        return [
            PageCell(page, words.state(record), words.page(record))
            for page, record in sorted(records.usable.items())[:PAGES_MAX]
        ]


def _folded(cells: list[Cell]) -> Iterator[Cell]:
    """Yield the cells of a row; of a long one, those in the middle that are all right become one."""
    room = COLUMNS_MAX // 2
    plain = [index for index, cell in enumerate(cells) if cell.looks in ("right", "left", "null")]
    hidden = set(plain) & set(range(room, len(cells) - room)) if len(cells) > COLUMNS_MAX else set[int]()
    told = False
    for index, cell in enumerate(cells):
        if index not in hidden:
            told = False
            yield cell
        elif not told:
            told = True
            until = next((i for i in range(index, len(cells)) if i not in hidden), len(cells))
            yield Cell(-1, "fold", f"{until - index} columns that are right or not read")
