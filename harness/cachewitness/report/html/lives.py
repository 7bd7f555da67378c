"""The lives of the pages that a finding is about, and of others beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from cachewitness.core.checkers.finding import Finding
from cachewitness.core.checkers.wording import count
from cachewitness.core.events import Event, Header, Hit, Read, Release, StepBegin
from cachewitness.core.ledger.reads import span_of
from cachewitness.report.html import words
from cachewitness.report.html.cause import ENDS, Need, cause, need_of, places_at_fault, released_by
from cachewitness.report.html.life import (
    BEHIND_MAX,
    COUNTED,
    EVENTS_MAX,
    Life,
    LifeEvent,
    Mark,
    Place,
    Recorded,
    Recorder,
    claimed,
)

AT_FAULT_MAX = 3
"""Pages at fault whose lives are told with their cause; of more the first ones."""


def lives(
    header: Header,
    events: Sequence[Event],
    finding: Finding | None,
    others: Iterable[Place] = (),
) -> list[Life]:
    """Return the lives of the pages that the finding is about, with the cause marked, and of
    others.

    Where a read finds no page, the column of its block table comes first, then the page that the
    column had before.
    """
    failing = finding.seq if finding else -1
    null = {(pool.id, page) for pool in header.pools for page in (*pool.null, -1)}
    at_fault = places_at_fault(header, events, finding) if finding else []
    read = events[failing] if 0 <= failing < len(events) else None
    column: list[Life] = []
    if isinstance(read, Read) and at_fault and at_fault[0] in null:
        column, at_fault = _without_a_page(header, events[:failing], read, at_fault[0][1])
    places = [place for place in dict.fromkeys(at_fault) if place not in null][:AT_FAULT_MAX]
    followed = dict.fromkeys((*places, *(place for place in others if place not in null)))
    counted = finding is not None and finding.anomaly in COUNTED
    recorder = Recorder(header, followed, failing=failing, counted=counted)
    needs: dict[Place, Need | None] = dict.fromkeys(places)
    for seq, event in enumerate(events):
        if seq == failing:
            needs = {place: need_of(recorder.ledger, event, place) for place in places}
        recorder.play(event, seq)
        if finding and (seq == failing or (failing < 0 and seq == len(events) - 1)):
            _mark(recorder, event, needs, column)
    shown = [_life(header, place, recorder.lives[place].recorded, failing) for place in followed]
    return [*column, *(life for life in shown if life.events)]


def _mark(
    recorder: Recorder, event: Event, needs: Mapping[Place, Need | None], column: list[Life]
) -> None:
    """Mark the cause, and the event that the finding is of."""
    if column:
        released = [released_by(event, recorder.lives[place].recorded) for place in needs]
        changes = column[0].events
        changes[-1].mark = "found"
        for one in [one.shown for one in released if one] or changes[-2:-1]:
            one.mark = "cause"
        return
    for place, need in needs.items():
        # What a page was copied from has no need of its own.
        life = recorder.lives[place].recorded
        here = life[-1].shown if life and life[-1].shown.seq == event.seq else None
        if need is None and not here and isinstance(event, Read):
            continue
        if here and not here.mark:
            here.mark = "found"
        began = cause(recorder, event, place, need)
        if began:
            # A read is an effect, even where nothing in front of it explains it.
            itself: Mark = "found" if isinstance(event, Read) else "both"
            began.shown.mark = itself if began.shown is here else "cause"


def _life(header: Header, place: Place, recorded: Sequence[Recorded], failing: int) -> Life:
    events = [one.shown for one in _without_ends(recorded)]
    marked = {index for index, event in enumerate(events) if event.mark}
    last = len(events)
    if marked and failing >= 0:
        last = min(last, sum(event.seq <= failing for event in events) + BEHIND_MAX)
    keep = marked | {*range(max(0, last - EVENTS_MAX), last)}
    pool = f" of {words.pools(header)[place[0]]}" if len(header.pools) > 1 else ""
    shown = [events[index] for index in sorted(keep)]
    return Life(*place, f"page {place[1]}{pool}", shown, len(events) - len(shown))


def _without_ends(recorded: Sequence[Recorded]) -> Iterator[Recorded]:
    """Yield the events of a life but for ends of requests that release the page next."""
    for index, one in enumerate(recorded):
        released = any(
            later.kind is Release and later.effect.by == one.effect.by for later in recorded[index:]
        )
        if one.shown.mark or not released or one.kind not in ENDS:
            yield one


def _without_a_page(
    header: Header, events: Sequence[Event], read: Read, page: int
) -> tuple[list[Life], list[Place]]:
    """Return the life of the column in which a read finds no page, and the page that it had
    before; `events` are those in front of the read.
    """
    null = {*header.pools[read.pool].null, -1}
    group = header.groups[read.group]
    index = read.pages.index(page)
    first = read.stop - 1 if group.kind == "recurrent" else read.start
    column = first // group.block_size + index
    changes = list(_changes(events, read, column, null))
    what = claimed(group.kind, *span_of(group, read, index))
    text = f"read by {read.r} as {what}; there is no page"
    changes.append(LifeEvent(len(events), read.step, text))
    title = f"column {column} of group {group.id} in the block table of {read.r}"
    # What a request had before it was preempted says nothing of its hit.
    hits = [seq for seq, event in enumerate(events) if isinstance(event, Hit) and event.r == read.r]
    tables = [(seq, page) for seq, page in _tables(events, read, column) if page not in null]
    had = [page for seq, page in tables if seq >= (hits[-1] if hits else 0)]
    return [Life(read.pool, -1, title, changes)], [(read.pool, page) for page in had[-1:]]


def _tables(events: Sequence[Event], read: Read, column: int) -> Iterator[tuple[int, int]]:
    """Yield which page the column has (−1: none) wherever a block table of the request is told,
    with the number of the event.
    """
    for seq, event in enumerate(events):
        tables: list[list[int]] = []
        if isinstance(event, Hit) and event.r == read.r:
            tables = event.pages
        elif isinstance(event, StepBegin):
            tables = next((run.tables for run in event.runs if run.r == read.r), [])
        if tables:
            pages = tables[read.group]
            yield seq, pages[column] if column < len(pages) else -1


def _changes(
    events: Sequence[Event], read: Read, column: int, null: set[int]
) -> Iterator[LifeEvent]:
    stood: int | None = None
    for seq, page in _tables(events, read, column):
        # A table that ends before the column and one that has the null block there say the same.
        now = -1 if page in null else page
        event = events[seq]
        if now == stood and not isinstance(event, Hit):
            continue
        stood = now
        has = "no page" if page < 0 else "the null block" if page in null else f"page {page}"
        if isinstance(event, Hit):
            text = f"hit by {read.r}, {count(event.resume, 'token')}: the column has {has}"
        else:
            text = f"scheduled: the column has {has}"
        yield LifeEvent(seq, event.step, text)
