"""Explicit snapshots: an engine without keys that captures the shared part of a prompt owes the
capture to whoever begins so.

Such an engine declares it (`Rules.captures`). What it captures lies in pools of another tier, one
page of each group, held by `capture:N` until it is given up. A request says with its `submit` how
many of its tokens are a part that others have too; the capture of just those tokens is found whole
or not at all. So the law has three parts: a part that was computed to its end is captured, unless
every place is in use by the step at hand; what is captured is found; and it is given up only to
make room, by whoever was used longest ago if that is the declared order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from cachewitness.core.attention_span import first_needed
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.checkers.protocol import Checker, Found, Handler
from cachewitness.core.checkers.wording import count, named, page_list
from cachewitness.core.events import (
    Acquire,
    Header,
    Hit,
    Pool,
    Release,
    ResetDone,
    StepBegin,
    StepEnd,
    Version,
)
from cachewitness.core.ledger.ledger import Ledger
from cachewitness.core.ledger.records import NOTHING
from cachewitness.core.ledger.requests import RequestRecord
from cachewitness.core.malformed import CAPTURE

AGAIN = 1
"""Whoever restores a capture may compute its last token again, as for its logits; of states, that
is another rule's matter."""


@dataclass(slots=True, eq=False)
class Capture:
    """A capture: its holder, the page of each group in the other tier, and the step in which it was
    taken or hit last.

    `node` is the prefix of the run that it is stored from.
    """

    holder: str
    pages: dict[int, int] = field(default_factory=dict)
    used: int = 0
    node: int = NOTHING


class CapturesKept(Checker):
    """The shared part of a prompt is captured, found again, and given up for want of places
    alone.
    """

    name = "captures"
    summary = (
        "the shared part of a prompt is captured when it was computed, found by whoever begins so,"
        " and given up for want of places alone, in the declared order"
    )
    anomalies = ("lost-capture",)

    def __init__(self) -> None:
        super().__init__()
        self._captures: dict[str, Capture] = {}
        self._given_up: list[Capture] = []
        """Captures that were given up in the operation at hand, if nobody asked for it."""
        self._lost: dict[int, int] = {}
        """Per prefix: the step in which its capture was given up last."""

    def not_applicable(self, header: Header) -> str:
        if reason := super().not_applicable(header):
            return reason
        if not header.rules.caching:
            return "prefix caching is off"
        return (
            ""
            if header.rules.captures is not None
            else "the engine does not declare that it captures (`captures` of its rules)"
        )

    def handlers(self) -> dict[type, Handler]:
        return {
            Acquire: self.on_acquire,
            Release: self.on_release,
            Hit: self.on_hit,
            StepBegin: self.on_step_begin,
            StepEnd: self.on_step_end,
            ResetDone: self.on_asked,
            Version: self.on_asked,
        }

    # --- what is captured -------------------------------------------------------------------------

    def on_acquire(self, ledger: Ledger, event: Acquire) -> Found:
        """Note a place that is to be a capture."""
        if event.holder.startswith(CAPTURE):
            capture = self._captures.setdefault(event.holder, Capture(event.holder))
            capture.used = event.step
            capture.pages[event.group] = event.pages[0]
        return None

    def on_step_end(self, ledger: Ledger, event: StepEnd) -> Found:
        """Expect captures of the parts that the step computed to their end."""
        for run in ledger.requests.ran_in(event):
            request = ledger.requests[run.r]
            for length in _boundaries(ledger, request):
                if run.start < length <= run.known:
                    self.opportunities += 1
                    self.deferred.append(
                        self._captured(request.r, length, request.nodes[length], event)
                    )
        return None

    def _captured(
        self, r: str, length: int, node: int, event: StepEnd
    ) -> Callable[[Ledger], Finding | None]:
        def judge(ledger: Ledger) -> Finding | None:
            places = min(
                ledger.records[ledger.groups[group].pool].capacity
                for group in ledger.offload_groups
            )
            in_use = sum(capture.used == event.step for capture in self._captures.values())
            if (
                self._find(ledger, node, length)
                or self._lost.get(node) == event.step
                or in_use >= places
            ):
                return None
            return _not_captured(r, length, event, in_use, places)

        return judge

    def forget(self, ledger: Ledger, gone: Collection[int]) -> None:
        """Prefixes whose nodes stand for others now were given up long ago."""
        self._lost = {node: step for node, step in self._lost.items() if node not in gone}

    # --- what is found ----------------------------------------------------------------------------

    def on_hit(self, ledger: Ledger, event: Hit) -> Found:
        """Compare where the request resumes with the capture of its shared part."""
        for known in self._captures.values():
            if any(page in event.pages[group] for group, page in known.pages.items()):
                known.used = event.step
        length = max(_boundaries(ledger, ledger.requests[event.r], resume=True), default=0)
        capture = (
            self._find(ledger, ledger.requests[event.r].nodes[length], length) if length else None
        )
        if capture is None:
            return None
        self.opportunities += 1
        short = AGAIN if capture.used == event.step else 0
        return () if event.resume + short >= length else (_not_found(event, length, capture),)

    def _find(self, ledger: Ledger, node: int, length: int) -> Capture | None:
        return next(
            (
                capture
                for capture in self._captures.values()
                if _holds(ledger, capture, node, length)
            ),
            None,
        )

    # --- what is given up -------------------------------------------------------------------------

    def on_release(self, ledger: Ledger, event: Release) -> Found:
        """Note a capture that is given up; whether it had to be is known when the operation is
        over.
        """
        capture = self._captures.pop(event.holder, None)
        if capture is None:
            return None
        self.opportunities += 1
        self._given_up.append(capture)
        self._lost[capture.node] = event.step
        self.deferred.append(lambda ledger: self._needed_room(ledger, capture, event))
        return None

    def on_step_begin(self, ledger: Ledger, event: StepBegin) -> Found:
        """Note of which prefix the step's stores are; forget in which steps captures were given
        up, but for the last ones.
        """
        filled = {(move.dst_pool, move.dst): move.src for move in event.stores}
        for capture in self._captures.values() if filled else ():
            for aside, page in capture.pages.items():
                src = filled.get((ledger.groups[aside].pool, page))
                of = ledger.groups[aside].source_group
                run = (
                    next((run for run in event.runs if src in run.tables[of]), None)
                    if src is not None
                    else None
                )
                if run is not None:
                    capture.node = ledger.requests[run.r].node_of(run.known)
        self._lost = {node: step for node, step in self._lost.items() if step >= event.step - 1}
        return None

    def on_asked(self, ledger: Ledger, event: ResetDone | Version) -> Found:
        """Who was asked to forget may give everything up."""
        self._given_up.clear()
        return None

    def _needed_room(self, ledger: Ledger, capture: Capture, event: Release) -> Finding | None:
        if capture not in self._given_up:
            return None
        pool = ledger.pools[event.pool]
        if ledger.records[event.pool].capacity > ledger.holdings.held[event.pool]:
            return _needless(ledger, capture, pool, event)
        captures = ledger.header.rules.captures
        older = [other for other in self._captures.values() if other.used < capture.used]
        if captures is None or captures.order != "lru" or not older:
            return None
        return _wrong(capture, older[0], pool, event)

    def operation_over(self, ledger: Ledger) -> Found:
        """Judge what is in doubt; what was given up in the next operation is another matter."""
        found = super().operation_over(ledger)
        self._given_up.clear()
        return found


def _boundaries(ledger: Ledger, request: RequestRecord, *, resume: bool = False) -> set[int]:
    """Return the lengths, in tokens, at which a request's shared part is captured; with
    `resume`, that at which it resumes.
    """
    captures = ledger.header.rules.captures
    end = (request.shared or request.prompt_tokens) - (captures.again if captures else 0)
    first = min(end, request.prompt_tokens - 1)
    return {length for length in ((first,) if resume else (first, end)) if length > 0}


def _holds(ledger: Ledger, capture: Capture, node: int, length: int) -> bool:
    """Whether a capture is of just this prefix, and has of every group what a request needs that
    resumes there.
    """
    if capture.node != node:
        return False
    for group in ledger.local:
        place = next((aside for aside in ledger.stored[group.id] if aside in capture.pages), None)
        record = ledger.record(place, capture.pages[place]) if place is not None else None
        if record is None or record.tainted:
            return False
        if group.kind == "recurrent":
            there = ledger.contents.holds_state(record, node, length)
        else:
            there = ledger.contents.covers(record, node, first_needed(group, length), length)
        if not there:
            return False
    return True


def _not_captured(r: str, length: int, event: StepEnd, in_use: int, places: int) -> Finding:
    sentence = (
        f"Let {r} have computed, in step {event.step}, the {count(length, 'token')} that it shares"
        f" with others, and let that step use {in_use} of {count(places, 'place')} for captures."
        " However there is no capture of them: a contradiction."
    )
    line = f"{named(r)} computed its shared tokens [0,{length}); they were not captured"
    return Finding(anomaly="lost-capture", r=r, sentence=sentence, line=line, seq=event.seq)


def _not_found(event: Hit, length: int, capture: Capture) -> Finding:
    pages = ", ".join(str(page) for page in sorted(set(capture.pages.values())))
    sentence = (
        f"Let {event.r} be admitted in step {event.step}. The first {count(length, 'token')}, which"
        f" it shares with others, are captured in place {pages} ({capture.holder}); however it"
        f" resumes at {event.resume} and computes {count(length - event.resume, 'token')} again: a"
        " contradiction."
    )
    line = (
        f"{named(event.r)} resumed at {event.resume}; its tokens [0,{length}) are captured in"
        f" {page_list(set(capture.pages.values()))}"
    )
    return Finding(anomaly="lost-capture", r=event.r, sentence=sentence, line=line)


def _needless(ledger: Ledger, capture: Capture, pool: Pool, event: Release) -> Finding:
    free = ledger.records[pool.id].capacity - ledger.holdings.held[pool.id]
    sentence = (
        f"Let {count(free, 'place')} of pool {pool.id} be free in step {event.step}. However"
        f" {capture.holder} was given up, which nobody asked for: a contradiction."
    )
    line = (
        f"{page_list(event.pages)} of {capture.holder} was released while {count(free, 'page')} of"
        f" pool {pool.id} were free"
    )
    return Finding(anomaly="lost-capture", sentence=sentence, line=line, seq=event.seq)


def _wrong(capture: Capture, other: Capture, pool: Pool, event: Release) -> Finding:
    sentence = (
        f"Let {other.holder} and {capture.holder} be captures in pool {pool.id}, given up in the"
        f" order lru, used last in steps {other.used} and {capture.used}. However {capture.holder}"
        f" was given up in step {event.step}: a contradiction."
    )
    line = (
        f"{page_list(event.pages)} of {capture.holder} was released before {other.holder}, which"
        " was used longer ago"
    )
    return Finding(anomaly="lost-capture", sentence=sentence, line=line, seq=event.seq)
