"""A history step by step: what each request's block table claims, and what the ledger knows of the
pages in it.

A frame is taken where something happened to requests, before the runs of a step, and when it has
ended. A cell of a block table is wrong if a read of its step did not find there what it needs
(`cells`); a page of a pool is shown with what it holds, who holds it and which keys name it. What
is too long is folded, and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from cachewitness.core.checkers.finding import Finding
from cachewitness.core.checkers.wording import count
from cachewitness.core.events import (
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
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.report.html import words
from cachewitness.report.html.cells import Row, cell_of, folded, read_in_vain

FRAMES_MAX = 240
"""Frames of one picture; of a longer history those around the failure are shown, or the last ones.
"""
PAGES_MAX = 512
"""Pages of one pool that are shown; the lowest numbers."""


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
    """One moment. `failing`: the one in which the failure was found. `pools` are the pages that
    anything ever touched.

    `seq` is the number of the event that it is of: the one that its title names, or the first that
    a run of its `step` reads or writes. `step` is −1 of all but one moment of each step, that in
    front of its runs.
    """

    title: str
    lanes: list[Lane]
    pools: list[list[PageCell]]
    failing: bool = False
    seq: int = -1
    step: int = -1


class Sample(msgspec.Struct):
    """Pages at the end of a step: by pool those that somebody holds, those kept for a key alone,
    and how many there are.
    """

    step: int
    pools: list[tuple[int, int, int]]


class Film(msgspec.Struct):
    """The frames of a history, what was left out of them, and the names of groups and pools.

    `pool_ids` are the pools' own numbers, `pool_of` those of the groups' pools.
    `samples` and `hits` (step, request, tokens) are of the whole history.
    """

    frames: list[Frame]
    left_out: int
    groups: list[str]
    pools: list[str]
    pool_ids: list[int]
    pool_of: list[int]
    samples: list[Sample]
    hits: list[tuple[int, str, int]]


def film(header: Header, events: Sequence[Event], finding: Finding | None = None) -> Film:
    """Return a history as frames. `finding` is what was found in it; its event's `seq` says where.

    The history is played twice: first to learn which moments there are, then to look at those alone
    that are shown.
    """
    failing = next((event for event in events if finding and event.seq == finding.seq), None)
    moments = list(_Projector(header, failing, range(0)).frames(events))
    place = next((index for index, frame in enumerate(moments) if frame.failing), len(moments) - 1)
    first = max(0, min(place - FRAMES_MAX * 3 // 4, len(moments) - FRAMES_MAX))
    shown = range(first, min(first + FRAMES_MAX, len(moments)))
    projector = _Projector(header, failing, shown)
    kept = [frame for index, frame in enumerate(projector.frames(events)) if index in shown]
    if finding and kept and not any(frame.failing for frame in kept):
        kept[-1].failing = True  # found when everything had happened
    for row in [row for frame in kept for lane in frame.lanes for row in lane.rows]:
        row.cells = list(folded(row.cells))
    groups = [words.group(one) for one in header.groups]
    pools = words.pools(header)
    return Film(
        kept,
        len(moments) - len(kept),
        groups,
        pools,
        [pool.id for pool in header.pools],
        [one.pool for one in header.groups],
        projector.samples,
        projector.hits,
    )


class _Projector:
    """Plays events through a ledger and takes frames, of which only those that are `shown` have
    anything in them.
    """

    def __init__(self, header: Header, failing: Event | None, shown: range) -> None:
        self._shown = shown
        self._taken = 0
        self.samples: list[Sample] = []
        self.hits: list[tuple[int, str, int]] = []
        self._header = header
        self._failing = failing.seq if failing is not None else -1
        self._apart = (
            failing.step if failing is not None and not isinstance(failing, Read | Write) else -1
        )
        """The step of a failing event that lies in front of its runs, or is of no run: the moment
        before is a frame of its own, and not the one that fails."""
        self._ledger = Ledger(header)
        self._tables: dict[str, list[list[int]]] = {}
        self._doing: dict[str, str] = {}
        self._upto: dict[str, int] = {}
        self._begun: dict[int, StepBegin] = {}
        self._before: dict[int, Frame] = {}
        """The frame that was taken before the runs of a step that is open."""
        self._title = ""
        self._titled: tuple[int, int] = (-1, -1)
        """The event of the title, and its step if that has no other frame."""
        self._titled_in = -1
        """In which step it happened."""
        self._unmarked: Event | None = None
        """The failing event, if the frame of its moment is still to be taken."""

    def frames(self, events: Iterable[Event]) -> Iterator[Frame]:
        """Yield a frame for each moment: before the runs of a step, and when all has happened that
        an operation brought about.

        The frame of a step may be marked later, for a read or write of one of its runs.
        """
        for seq, event in enumerate(events):
            in_a_run = isinstance(event, Read | Write)
            if self._title and self._titled_in < event.step == self._apart:
                yield from self._moment()
                self._title = f"step {event.step} is scheduled"
                self._titled = seq, -1
                self._titled_in = event.step
            if in_a_run and event.step in self._begun:
                yield from self._moment()
                begun = self._ledger.requests.open_steps.get(event.step, self._begun[event.step])
                del self._begun[event.step]
                self._before[event.step] = self._frame(
                    words.step(begun), (seq, event.step), {run.r: run for run in begun.runs}
                )
                yield self._before[event.step]
            title = words.title(event)
            if title:
                yield from self._moment()
                self._title = title
                self._titled_in = event.step
                over = isinstance(event, StepEnd) and event.step in self._begun
                self._titled = seq, event.step if over else -1
            before = self._before.get(event.step) if in_a_run else None
            if before and isinstance(event, Read):
                self._read(before, event)
            if event.seq == self._failing and before:
                self._mark(before, event)
            elif event.seq == self._failing:
                self._unmarked = event
            self._follow(event)
            self._ledger.apply(event)
        yield from self._moment()

    def _moment(self) -> Iterator[Frame]:
        """Yield the frame of what has happened since the last one, if that has a title."""
        if self._title:
            frame = self._frame(self._title, self._titled)
            self._title = ""
            if self._unmarked is not None:
                self._mark(frame, self._unmarked)
                self._unmarked = None
            yield frame

    def _read(self, frame: Frame, event: Read) -> None:
        """Note in the frame of a step what a read of one of its runs does not find."""
        if frame.lanes and self._ledger.before(event).invalid:
            rows = [
                row
                for lane in frame.lanes
                if lane.r == event.r
                for row in lane.rows
                if row.group == event.group
            ]
            for row in rows:
                read_in_vain(self._ledger, self._header.groups[event.group], event, row)

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
            self._tables[run.r] = run.tables
            self._upto[run.r] = run.start
            self._doing[run.r] = words.computes(run)
        for r, tokens in words.left_waiting(event):
            if self._doing.get(r, "").startswith("waits"):
                self._doing[r] = f"waits: asked for {count(tokens, 'token')}, got no place"
        self._begun[event.step] = event

    def _end(self, event: StepEnd) -> None:
        runs: list[Run] = self._ledger.requests.ran_in(event)
        self._begun.pop(event.step, None)
        self._before.pop(event.step, None)
        holdings = self._ledger.holdings
        records = self._ledger.records
        counts = [
            (holdings.held[pool], len(holdings.idle[pool]), records[pool].capacity)
            for pool in records
        ]
        self.samples.append(Sample(event.step, counts))
        for run in runs:
            self._upto[run.r] = run.known
            self._doing[run.r] = f"has computed tokens [{run.start}, {run.known})"

    # --- one moment -------------------------------------------------------------------------------

    def _frame(
        self, title: str, place: tuple[int, int], runs: Mapping[str, Run] | None = None
    ) -> Frame:
        """Take the frame of this moment; who has ended is in it for the last time. `place` is its
        event and its step.

        `runs` are those of the step that is about to run: one in flight behind it may have been
        scheduled already.
        """
        shown = self._taken in self._shown
        self._taken += 1
        lanes = (
            [self._lane(r, doing, (runs or {}).get(r)) for r, doing in self._doing.items()]
            if shown
            else []
        )
        for r in [r for r, doing in self._doing.items() if doing in words.END.values()]:
            del self._doing[r]
        pools = [self._pool(pool.id) if shown else [] for pool in self._header.pools]
        return Frame(title, lanes, pools, seq=place[0], step=place[1])

    def _lane(self, r: str, doing: str, run: Run | None) -> Lane:
        if r not in self._tables:
            return Lane(r, doing, [])
        tables, upto = (run.tables, run.start) if run else (self._tables[r], self._upto.get(r, 0))
        rows = [self._row(group, r, tables, upto) for group in self._header.local_groups()]
        return Lane(r, words.computes(run) if run else doing, rows)

    def _mark(self, frame: Frame, event: Event) -> None:
        """Mark what the failing event is about: the cells that are wrong in block tables with its
        pages, and the pages.

        Where a cell is wrong, the other pages that the event read beside it are not.
        """
        frame.failing = True
        places = words.places(self._header, event)
        groups = {group.id: group.pool for group in self._header.groups}
        number = getattr(event, "group", -1)
        name = getattr(event, "r", "")
        cells = [
            ((groups[row.group], cell.page), cell)
            for lane in frame.lanes
            for row in lane.rows
            for cell in row.cells
            if (cell.page < 0 or (groups[row.group], cell.page) in places)
            and number in (-1, row.group)
            and name in ("", lane.r)
        ]
        wrong, unread = (
            [found for found in cells if found[1].looks == looks] for looks in ("wrong", "unread")
        )
        # A failing read names many pages and one of them is at fault. Where none is known to be,
        # all are marked rather than none.
        for _, cell in wrong or unread or cells:
            cell.marked = True
        at_fault = {place for place, _ in wrong} or places
        for pool, pages in zip(self._header.pools, frame.pools, strict=True):
            for one in pages:
                one.marked = (pool.id, one.page) in at_fault

    def _row(self, group: Group, r: str, tables: list[list[int]], upto: int) -> Row:
        pages = tables[group.id] if group.id < len(tables) else []
        return Row(
            group.id,
            [
                cell_of(self._ledger, group, r, column, page, upto)
                for column, page in enumerate(pages)
            ],
        )

    def _pool(self, pool: int) -> list[PageCell]:
        records = self._ledger.records[pool]
        return [
            PageCell(page, words.state(record), words.page(record))
            for page, record in sorted(records.usable.items())[:PAGES_MAX]
        ]
