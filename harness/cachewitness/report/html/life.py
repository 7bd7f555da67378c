"""The life of a page: who acquired, wrote, keyed, hit, read and released it.

An invalid read is an effect. Its cause is an event of the page's life: the page was given away
while somebody held it, was keyed for what nobody wrote, or was released too early (`cause`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from cachewitness.core.checkers.wording import count
from cachewitness.core.events import (
    Aborted,
    Acquire,
    Copy,
    Counts,
    Event,
    Finished,
    Group,
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
from cachewitness.core.ledger.records import Content, Key, KeyState, PageRecord
from cachewitness.report.html import words

Place = tuple[int, int]
"""A pool and a page of it."""
Mark = Literal["", "cause", "found", "both"]
"""cause: it began with this event. found: the finding is of this event. both: it is one event."""
EVENTS_MAX = 40
"""Events of one life that are shown: the last ones before the failure, and the cause."""
BEHIND_MAX = 3
"""Events that are shown behind the failure."""
COUNTED = ("reference-count", "double-free", "leak")
"""Anomalies for which the engine's own reference counts are part of a page's life."""
MERGED = (Read, Write, Hit, Publish, Unpublish, StepEnd, ResetDone, Version)
"""Events that are shown as one where each says what the one before it said, or goes on."""
STAYS = {
    "withdrawn": "the step that was to write it is withdrawn, and its key stays",
    "unbacked": "its step ends, and nobody has written what its key names",
    "reset": "the cache is reset, and its key stays",
    "outdated": "new weights are loaded, and its key stays",
}
"""What happened to a page that still has a key of such a state."""


class LifeEvent(msgspec.Struct, omit_defaults=True):
    """An event of a life: its number in the history, its step, what happened in words.

    `until` is the last step of several events that are alike; 0: it is one.
    """

    seq: int
    step: int
    text: str
    until: int = 0
    mark: Mark = ""


class Life(msgspec.Struct):
    """What happened to a page, in order. Of `left_out` events nothing is shown."""

    pool: int
    page: int
    title: str
    events: list[LifeEvent]
    left_out: int = 0

    @property
    def began(self) -> LifeEvent | None:
        """The cause, if it is another event than the one that the finding is of."""
        return next((event for event in self.events if event.mark == "cause"), None)


class Effect(NamedTuple):
    """What an event does to a page, in words, and which request or copy does it.

    `written` are the tokens [start, stop) that a write puts there, `keyed` the first and the last
    prefix that keys name, and of which request; they stand behind the words. `source` is the page
    that a copy reads.
    """

    place: Place
    by: str
    words: str
    written: tuple[int, int] | None = None
    keyed: tuple[int, int, str] | None = None
    source: Place | None = None

    @property
    def text(self) -> str:
        """All of it in words."""
        if self.keyed:
            first, last, r = self.keyed
            lengths = _tokens(first) if first == last else f"{first} to {last} tokens"
            return f"{self.words}the first {lengths} of {r}"
        return self.words + (claimed("full", *self.written) if self.written else "")

    def and_then(self, other: Effect) -> Effect | None:
        """Return both as one if the other does the same, or goes on where this one stopped."""
        if self == other:
            return self
        alike = (self.by, self.words) == (other.by, other.words)
        if alike and self.keyed and other.keyed and self.keyed[2] == other.keyed[2]:
            return self._replace(keyed=(self.keyed[0], *other.keyed[1:]))
        if not alike or self.written is None or other.written is None:
            return None
        goes_on = other.written[0] == self.written[1]
        return self._replace(written=(self.written[0], other.written[1])) if goes_on else None


class KeyThen(NamedTuple):
    """A key of a page as it was: its group, the prefix `node` of `length` tokens, its state."""

    group: int
    node: int
    length: int
    state: KeyState


@dataclass
class Recorded:
    """An event of a life, and how the page was when it had happened.

    `effect` is what it did to the page. `keys` are the page's keys as they were.
    """

    shown: LifeEvent
    kind: type[Event]
    effect: Effect
    content: Content
    holders: tuple[str, ...]
    keys: list[KeyThen]


@dataclass
class Followed:
    """A page whose life is recorded."""

    pool: int
    page: int
    recorded: list[Recorded] = field(default_factory=list)


def record_of(ledger: Ledger, place: Place) -> PageRecord:
    """Return the record of a page; an empty one if the pool has no such page, or not yet: to ask
    the pool would make one, or raise.
    """
    return ledger.records[place[0]].get(place[1]) or PageRecord()


class Recorder:
    """Plays a history and records the lives of some pages up to an event.

    `ledger` has been moved past all events that were given to `play`.
    """

    def __init__(
        self, header: Header, places: Iterable[Place], *, failing: int, counted: bool
    ) -> None:
        self.ledger = Ledger(header)
        self.lives = {place: Followed(*place) for place in places}
        self._groups = header.groups
        self._failing = failing
        self._counted = counted
        self._hits: dict[str, set[Place]] = {}
        """By request: the pages that it hit and may acquire for it."""

    def play(self, event: Event, seq: int) -> None:
        """Record what an event does to the pages, and apply it."""
        effects = list(self._effects(event))
        states = self._states() if isinstance(event, StepEnd | ResetDone | Version) else {}
        if isinstance(event, Hit):
            self._hits[event.r] = words.places(self.ledger.header, event)
        self.ledger.apply(event)
        for effect in effects:
            self._add(effect, event, seq)
        for place, before in states.items():
            for key in record_of(self.ledger, place).keys:
                if key.state in STAYS and before.get(id(key)) != key.state:
                    keyed = key.length, key.length, key.r
                    effect = Effect(place, key.r, f"{STAYS[key.state]}: ", keyed=keyed)
                    self._add(effect, event, seq)

    def _states(self) -> dict[Place, dict[int, str]]:
        records = {place: record_of(self.ledger, place) for place in self.lives}
        return {
            place: {id(key): key.state for key in record.keys} for place, record in records.items()
        }

    def _add(self, effect: Effect, event: Event, seq: int) -> None:
        record = record_of(self.ledger, effect.place)
        content = Content()
        content.copy_content(record)
        keys = [KeyThen(key.group, key.node, key.length, key.state) for key in record.keys]
        recorded = self.lives[effect.place].recorded
        last = recorded[-1] if recorded else None
        # The event of the finding stands alone, so that it can be marked.
        if last and last.kind is type(event) and seq != self._failing:
            both = last.effect.and_then(effect) if last.kind in MERGED else None
            if both:
                last.effect = both
                last.content = content
                last.keys = keys
                last.shown.text = both.text
                last.shown.until = event.step if event.step > last.shown.step else 0
                return
        shown = LifeEvent(seq, event.step, effect.text)
        holders = tuple(record.holders)
        recorded.append(Recorded(shown, type(event), effect, content, holders, keys))

    # --- in words, before the event is applied ----------------------------------------------------

    def _effects(self, event: Event) -> Iterator[Effect]:
        """Yield the followed pages to which an event happens, who does it, and what it does."""
        match event:
            case Acquire():
                for place in self._of(event.pool, event.pages):
                    yield Effect(place, event.holder, self._acquired(place, event.holder))
            case Release():
                for place in self._of(event.pool, event.pages):
                    yield Effect(place, event.holder, self._released(place, event.holder))
            case Read() | Write():
                yield from self._computed(event)
            case Hit():
                yield from self._hit(event)
            case Publish():
                pool = self._groups[event.group].pool
                for place in self._of(pool, [event.page, *event.extra_pages]):
                    length = event.length
                    keyed = length, length, event.r
                    yield Effect(place, event.r, "keyed as ", keyed=keyed)
            case Unpublish():
                yield from self._unpublished(event)
            case Zero():
                for place in self._of(event.pool, event.pages):
                    yield Effect(place, "", "overwritten with zeros")
            case Copy():
                yield from self._copied(event)
            case Counts():
                for page, number in event.refs if self._counted else ():
                    if (event.pool, page) in self.lives:
                        text = f"the engine counts {count(number, 'reference')}"
                        yield Effect((event.pool, page), "", text)
            case Preempted() | Finished() | Aborted():
                for place in self.lives:
                    if event.r in record_of(self.ledger, place).holders:
                        text = f"{event.r} {words.END[type(event)]}, and holds it"
                        yield Effect(place, event.r, text)

    def _of(self, pool: int, pages: Sequence[int]) -> list[Place]:
        return [(pool, page) for page in dict.fromkeys(pages) if (pool, page) in self.lives]

    def _acquired(self, place: Place, holder: str) -> str:
        record = record_of(self.ledger, place)
        others = " and ".join(name for name in record.holders if name != holder)
        again = "once more " if holder in record.holders else ""
        text = f"acquired {again}by {holder}"
        # Copies and captures, as `copy:3`, hold pages beside the requests whose pages they are.
        if place in self._hits.get(holder, ()) or ":" in holder:
            hit = "" if ":" in holder else ", which hit it"
            return text + hit + (f", beside {others}" if others else "")
        if others:
            return f"{text}, while {others} {_hold(record)} it"
        if record.keys:
            return f"{text}, while it is keyed as {_longest(record.keys)}"
        return text

    def _released(self, place: Place, holder: str) -> str:
        record = record_of(self.ledger, place)
        times = record.holders.get(holder, 0)
        if not times:
            return f"released by {holder}, which does not hold it"
        others = [name for name in record.holders if name != holder or times > 1]
        if others:
            return f"released by {holder}; {' and '.join(others)} still {_hold(others)} it"
        return f"released by {holder}; " + ("its key keeps it" if record.keys else "free")

    def _computed(self, event: Read | Write) -> Iterator[Effect]:
        group = self._groups[event.group]
        invalid = self.ledger.before(event).invalid if isinstance(event, Read) else ()
        for index, page in enumerate(event.pages):
            place = (event.pool, page)
            if place not in self.lives:
                continue
            record = record_of(self.ledger, place)
            span = self._span(event, index)
            what = claimed(group.kind, *span)
            if isinstance(event, Write) and group.kind != "recurrent":
                yield Effect(place, event.r, f"written by {event.r}: ", span)
            elif isinstance(event, Write):
                yield Effect(place, event.r, f"written by {event.r}: {what}")
            elif index in invalid:
                held = "" if event.r in record.holders else f", and {event.r} does not hold it"
                wrong = f"it {words.content(record)}{held}"
                yield Effect(place, event.r, f"read by {event.r} as {what}; {wrong}")
            elif record.writer != event.r:
                # That a request reads what it wrote itself says nothing.
                yield Effect(place, event.r, f"read by {event.r} as {what}")

    def _span(self, event: Read | Write, index: int) -> tuple[int, int]:
        group = self._groups[event.group]
        if isinstance(event, Read) or group.kind == "recurrent":
            return span_of(group, event, index)  # type: ignore[arg-type]
        column = event.start // group.block_size + index
        stop = min(event.stop, (column + 1) * group.block_size)
        return max(event.start, column * group.block_size), stop

    def _hit(self, event: Hit) -> Iterator[Effect]:
        for group, pages in zip(self._groups, event.pages, strict=False):
            for column, page in enumerate(pages):
                if (group.pool, page) in self.lives:
                    start = column * group.block_size
                    stop = min(event.resume, start + group.block_size)
                    what = claimed(group.kind, start, max(stop, start))
                    other = group not in self.ledger.local
                    verb = "fetched for" if other else "hit by"
                    tier = f", from tier {event.tier}" if event.tier != "local" else ""
                    more = "" if other else tier or self._unnamed(group, page, event.r)
                    yield Effect((group.pool, page), event.r, f"{verb} {event.r} as {what}{more}")

    def _unnamed(self, group: Group, page: int, r: str) -> str:
        """Return what the keys of a page say that is hit, if none names a prefix of the request."""
        nodes = self.ledger.requests[r].nodes
        keys = record_of(self.ledger, (group.pool, page)).keys
        named = [key for key in keys if key.length < len(nodes) and nodes[key.length] == key.node]
        if any(key.group == group.id for key in named) or self.ledger.header.rules.captures:
            return ""
        return f", while it is keyed as {_longest(keys)}" if keys else ", while no key names it"

    def _unpublished(self, event: Unpublish) -> Iterator[Effect]:
        pool = self._groups[event.group].pool
        for place in self._of(pool, [event.page]):
            keys = [
                key for key in record_of(self.ledger, place).keys if event.length in (0, key.length)
            ]
            for key in keys:
                keyed = key.length, key.length, key.r
                yield Effect(place, "", f"its key ends ({event.reason}): ", keyed=keyed)

    def _copied(self, event: Copy) -> Iterator[Effect]:
        phase = {"begin": ": that begins", "end": ": that is done", "fail": ": that fails"}
        ends = phase.get(event.phase, "")
        by = f"copy:{event.id}"
        for move in event.moves:
            source = move.src_pool, move.src
            target = move.dst_pool, move.dst
            there = source[0] != target[0]
            if source in self.lives:
                place = f"page {move.dst}" + (f" of pool {move.dst_pool}" if there else "")
                yield Effect(source, by, f"copied to {place}{ends}")
            if target in self.lives:
                place = f"page {move.src}" + (f" of pool {move.src_pool}" if there else "")
                text = f"overwritten with a copy of {place}{ends}"
                yield Effect(target, by, text, source=source)


def claimed(kind: str, start: int, stop: int) -> str:
    """Return what a column is to hold: `tokens [0, 16)` or `the state after 16 tokens`."""
    if kind == "recurrent":
        return f"the state after {_tokens(stop)}"
    return f"tokens [{start}, {stop})"


def _tokens(number: int) -> str:
    return count(number, "token")


def _longest(keys: Sequence[Key]) -> str:
    key = max(keys, key=lambda key: key.length)
    return f"the first {_tokens(key.length)} of {key.r}"


def _hold(holders: Sequence[str] | PageRecord) -> str:
    many = len(holders.holders if isinstance(holders, PageRecord) else holders) > 1
    return "hold" if many else "holds"
