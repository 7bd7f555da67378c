"""Which pages a finding is about, and with which event of a page's life it began.

What a read does not find was lost, or was never there. If it was there, the cause is who took it
away, or who gave the page to them while somebody still held it or a key still named it. If it never
was, the cause is who said so: a key, or a hit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cachewitness.core.checkers.finding import Finding
from cachewitness.core.events import (
    Aborted,
    Acquire,
    Copy,
    Counts,
    Event,
    Finished,
    Header,
    Hit,
    Preempted,
    Publish,
    Read,
    Release,
    ResetDone,
    StepEnd,
    Unpublish,
    Version,
    Write,
    Zero,
)
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.reads import span_of
from cachewitness.core.ledger.records import Content, Key
from cachewitness.report.html import words
from cachewitness.report.html.life import KeyThen, Place, Recorded, Recorder, record_of

HOPS_MAX = 4
"""Copies that are followed back from a page to where its content came from."""
ENDED = (StepEnd, ResetDone, Version)
"""Events with which a key can lose its right without being taken back."""
ENDS = (Finished, Aborted, Preempted)
STAYED = ("withdrawn", "reset", "outdated")
"""States of keys that have lost it so."""


class Need(NamedTuple):
    """What a read needs of a page: tokens [start, stop) of the prefix `node`, or the state at
    `stop`.
    """

    r: str
    group: int
    state: bool
    node: int
    start: int
    stop: int

    def met_by(self, ledger: Ledger, content: Content) -> bool:
        """Whether a page with this content has it."""
        if content.group != self.group:
            return False
        if self.state:
            return ledger.contents.holds_state(content, self.node, self.stop)
        return ledger.contents.covers(content, self.node, self.start, self.stop)


def places_at_fault(header: Header, events: Sequence[Event], finding: Finding) -> list[Place]:
    """Return the pages with which something is wrong where the finding is, and behind each those
    that its content was copied from.
    """
    ledger = Ledger(header)
    counted: dict[Place, int] = {}
    copies: list[tuple[Place, Place]] = []
    places: list[Place] = []
    for seq, event in enumerate(events):
        if seq == finding.seq:
            places = _places(ledger, event, finding)
            if isinstance(event, Read):
                return [source for place in places for source in _sources(copies, place)]
            if not isinstance(event, Acquire | Release):
                break
        elif 0 <= finding.seq < seq and words.title(event):
            break
        if isinstance(event, Counts):
            counted |= {(event.pool, page): number for page, number in event.refs}
        elif isinstance(event, Copy):
            copies += [((one.dst_pool, one.dst), (one.src_pool, one.src)) for one in event.moves]
        ledger.apply(event)
    if finding.seq < 0:
        places = _held_by(ledger, finding.r)
    # Of pages that were acquired or released together, the engine may have counted all but one.
    known = [place for place in places if place in counted]
    wrong = [place for place in known if counted[place] != _held(ledger, place)]
    return wrong or places or _named_in(header, finding)


def _places(ledger: Ledger, event: Event, finding: Finding) -> list[Place]:
    match event:
        case Read():
            return [(event.pool, event.pages[index]) for index in ledger.before(event).invalid]
        case Write():
            return [(event.pool, page) for page in _overwritten(ledger, event)]
        case Acquire():
            filled = ledger.contents.filling
            every = [(event.pool, page) for page in event.pages]
            return [place for place in every if place in filled] or every
        case Counts():
            counts = [((event.pool, page), number) for page, number in event.refs]
            return [place for place, number in counts if number != _held(ledger, place)]
        case StepEnd():
            wrong = _places_of(ledger, ledger.before(event).unbacked)
            return wrong or (_held_by(ledger, finding.r) if finding.anomaly == "leak" else [])
        case Hit():
            return _places_of(ledger, ledger.before(event).invalidated)
    return sorted(words.places(ledger.header, event))


def _places_of(ledger: Ledger, keys: Sequence[Key]) -> list[Place]:
    return [(ledger.groups[key.group].pool, key.page) for key in keys]


def _overwritten(ledger: Ledger, event: Write) -> list[int]:
    """Return of the pages that a write is about those that others hold, whose content it ends; if
    there are none, those that it does not hold alone.
    """
    size = ledger.groups[event.group].block_size
    before = ledger.before(event)
    records = {page: record_of(ledger, (event.pool, page)) for page in event.pages}
    shared = [page for page, record in records.items() if [*record.holders] != [event.r]]
    ended = []
    for index, page in enumerate(event.pages):
        column = event.start // size + index
        start = max(event.start, column * size)
        stop = min(event.stop, (column + 1) * size)
        if page in shared and before.destroyed(records[page], start, stop):
            ended.append(page)
    return ended or shared or event.pages


def _sources(copies: Sequence[tuple[Place, Place]], place: Place) -> list[Place]:
    """Return a page and those that it was copied from, back to the first."""
    chain = [place]
    for target, source in reversed(copies):
        if target == chain[-1] and len(chain) <= HOPS_MAX:
            chain.append(source)
    return chain


def _named_in(header: Header, finding: Finding) -> list[Place]:
    """Return the pages that the line of a finding names, if they can be of one pool alone."""
    if len(header.pools) != 1:
        return []
    named = re.findall(r"\bpages? (\d+(?:, \d+)*)", finding.line)
    pages = [int(page) for pages in named for page in pages.split(", ")]
    return [(header.pools[0].id, page) for page in pages if page < header.pools[0].pages]


def _held(ledger: Ledger, place: Place) -> int:
    return sum(record_of(ledger, place).holders.values())


def _held_by(ledger: Ledger, r: str) -> list[Place]:
    return [
        (pool, page)
        for pool, records in ledger.records.items()
        for page, record in sorted(records.usable.items())
        if r in record.holders
    ]


def need_of(ledger: Ledger, event: Event, place: Place) -> Need | None:
    """Return what a read, which has not been applied, needs of a page; None if it is no read."""
    if not isinstance(event, Read) or place[1] not in event.pages:
        return None
    index = event.pages.index(place[1])
    group = ledger.groups[event.group]
    start, stop = span_of(group, event, index)
    node = ledger.requests.prefixes_of_run(event)[stop]
    return Need(event.r, group.id, group.kind == "recurrent", node, start, stop)


# --- the cause ------------------------------------------------------------------------------------


def cause(recorder: Recorder, event: Event, place: Place, need: Need | None) -> Recorded | None:
    """Return with which event of a page's life, or of that of a page that it was copied from, the
    failing `event` began; `recorder` has recorded the lives up to it.
    """
    life = recorder.lives[place].recorded
    if not life:
        return None
    if need is None:
        index = _of_event(event, life)
        return life[index] if index >= 0 else None
    ledger = recorder.ledger
    for source in _lives_of_sources(recorder, life, need):
        if (index := _of_copy(ledger, source, need)) >= 0:
            return source[index]
    return life[_of_read(ledger, life, need)]


def _lives_of_sources(
    recorder: Recorder, life: Sequence[Recorded], need: Need
) -> list[Sequence[Recorded]]:
    """Return the lives of the pages that a page which never had what is needed was copied from, up
    to the copy, that of the first page first.
    """
    found: list[Sequence[Recorded]] = []
    while len(found) < HOPS_MAX:
        source = _copied_from(recorder.ledger, life, need)
        behind = recorder.lives.get(source) if source else None
        if behind is None:
            break
        until = life[_latest(life, len(life), _fills, -1)].shown.seq
        life = [one for one in behind.recorded if one.shown.seq <= until]
        found.insert(0, life)
    return found


def released_by(event: Event, life: Sequence[Recorded]) -> Recorded | None:
    """Return where a page was released last by the request of an event, if it was."""
    r = getattr(event, "r", "")
    index = _latest(life, len(life), lambda one: _by(one, Release, r), -1)
    return life[index] if index >= 0 else None


def _of_event(event: Event, life: Sequence[Recorded]) -> int:
    """Return the cause of what is no read; -1 if no event of the life is."""
    last = len(life) - 1
    match event:
        case Write() if event.r not in life[last].holders:
            return _latest(life, last, lambda one: _by(one, Release, event.r), last)
        case Write() if not any(_by(one, Hit, event.r) for one in life):
            given = _latest(life, last, lambda one: _by(one, Acquire, event.r), last)
            return given if given == 0 or life[given - 1].holders else last
        case Counts() if life[last].shown.seq == event.seq:
            return _latest(life, last, lambda one: one.kind in (Acquire, Release), last)
        case StepEnd() if life[last].kind is StepEnd:
            return _latest(life, last, lambda one: one.kind is Publish, last)
        case StepEnd() | Finished() | Aborted() if life[last].holders:
            return _latest(life, last + 1, lambda one: one.kind in ENDS, last)
        case Hit():
            return _latest(life, last, lambda one: one.kind in ENDED, last)
    # What is found later than it happened is about a key that ended.
    ended = _latest(life, last + 1, lambda one: one.kind is Unpublish, -1)
    return last if life[last].shown.seq == event.seq else ended


def _copied_from(ledger: Ledger, life: Sequence[Recorded], need: Need) -> Place | None:
    """Return where the content of a page was copied from, if it never had what is needed."""
    if any(need.met_by(ledger, one.content) for one in life):
        return None
    filled = _latest(life, len(life), _fills, -1)
    return life[filled].effect.source if filled >= 0 else None


def _fills(one: Recorded) -> bool:
    """Whether an event puts something into the page; a page that is copied stays as it is."""
    return one.kind in (Write, Zero) or one.effect.source is not None


def _of_read(ledger: Ledger, life: Sequence[Recorded], need: Need) -> int:
    last = len(life) - 1
    hit = _latest(life, last, lambda one: _by(one, Hit, need.r), last)
    if need.r not in life[last].holders:
        return _latest(life, last, lambda one: _by(one, Release, need.r), hit)
    there = _latest(life, last, lambda one: need.met_by(ledger, one.content), -1)
    if there < 0:
        found = _never_there(ledger, life, need, hit if hit < last else -1)
        return found if found >= 0 else last
    lost = there + 1
    given = _given_away(ledger, life, need, lost)
    if given >= 0:
        return given
    return max(lost, hit) if hit < last else lost


def _of_copy(ledger: Ledger, life: Sequence[Recorded], need: Need) -> int:
    """Return why a page did not have what is needed when it was copied, the last event; -1 if its
    life does not tell.
    """
    last = len(life) - 1
    there = _latest(life, last, lambda one: need.met_by(ledger, one.content), -1)
    if there >= 0:
        given = _given_away(ledger, life, need, there + 1)
        return given if given >= 0 else there + 1
    hit = _latest(life, last + 1, lambda one: _by(one, Hit, need.r), -1)
    return _never_there(ledger, life, need, hit)


def _given_away(ledger: Ledger, life: Sequence[Recorded], need: Need, lost: int) -> int:
    """Return where who ended the content was given the page, if somebody else held it then, or a
    key named it and stayed; else -1.
    """
    by = life[lost].effect.by
    given = _latest(life, lost, lambda one: _by(one, Acquire, by), -1)
    if given <= 0 or by == need.r:
        return -1
    named = any(_names(ledger, key, need) for key in life[given].keys)
    return given if named or {*life[given - 1].holders} - {by} else -1


def _never_there(ledger: Ledger, life: Sequence[Recorded], need: Need, hit: int) -> int:
    """Return who said that a page has what was never there: its key, or else the `hit`. Who only
    wrote something else there is the last that can be; -1 if nobody is.
    """
    last = len(life) - 1
    keyed = next((i for i, one in enumerate(life) if _keyed(ledger, one, need)), -1)
    if keyed >= 0 and not any(key.state == "pending" for key in _keyed(ledger, life[last], need)):
        # A key may be right to begin with, and stay behind what it named.
        gone = (
            index
            for index in range(keyed + 1, len(life))
            if life[index].kind in ENDED
            and any(key.state in STAYED for key in _keyed(ledger, life[index], need))
        )
        return next(gone, keyed)
    return hit if hit >= 0 else _latest(life, last, lambda one: _by(one, Write, need.r), -1)


def _keyed(ledger: Ledger, one: Recorded, need: Need) -> list[KeyThen]:
    return [key for key in one.keys if _names(ledger, key, need)]


def _names(ledger: Ledger, key: KeyThen, need: Need) -> bool:
    """Whether a key says that its page has what is needed; keys of other tiers are those of the
    group that they store.
    """
    group = ledger.groups[key.group]
    if key.node < 0 or need.group not in (group.id, group.source_group):
        return False
    fits = key.length == need.stop if need.state else key.length >= need.stop
    return fits and ledger.trie.ancestor(key.node, need.stop) == need.node


def _by(one: Recorded, kind: type[Event], by: str) -> bool:
    return one.kind is kind and one.effect.by == by


def _latest(
    life: Sequence[Recorded], end: int, fits: Callable[[Recorded], bool], otherwise: int
) -> int:
    """Return the last of the first `end` events that fits, or `otherwise`."""
    return next((index for index in reversed(range(end)) if fits(life[index])), otherwise)
