"""Counts what happened in a run, event by event."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cachewitness.core.events import (
    Aborted,
    Accept,
    Answer,
    Cold,
    Counts,
    Event,
    Extended,
    Finished,
    Header,
    Hit,
    Preempted,
    Read,
    Settled,
    StepBegin,
    StepEnd,
    Submitted,
    Unpublish,
)
from cachewitness.core.ledger.requests import RequestRecord
from cachewitness.core.restored import loaded
from cachewitness.core.result import Activity

Handlers = dict[type[Event], Callable[[Any], None]]


class Counting:
    """Counts into `activity`. `handlers` says by type of event who counts it, once the ledger
    (`requests`) is past it.
    """

    def __init__(self, header: Header, requests: Mapping[str, RequestRecord]) -> None:
        self._images: set[str] = set()
        self.activity = Activity()  # where there are no pages to be counted
        self.counted = header.level == "answers"  # where there are no pages to be counted
        self._requests = requests
        self._recurrent = {group.id for group in header.groups if group.kind == "recurrent"}
        self._header = header
        self._in_flight: dict[int, dict[str, list[int]]] = {}
        """By step in flight: the drafts of each run that has some."""
        self._verified: dict[str, list[int]] = {}
        """The drafts of the step that ended last, by request."""
        self.handlers: Handlers = {
            Submitted: self._submit,
            Extended: self._extend,
            Aborted: self._end,
            Finished: self._end,
            Hit: self._hit,
            Read: self._read,
            Unpublish: self._unpublish,
            Preempted: self._preempt,
            Counts: self._counts,
            StepBegin: self._step_begin,
            Settled: self._settle,
            StepEnd: self._step_end,
            Accept: self._accept,
            Answer: self._answer,
            Cold: self._cold,
        }
        if not self._recurrent:
            del self.handlers[Read]

    def _submit(self, event: Submitted) -> None:
        self.activity.requests += 1
        largest = self.activity.largest
        largest.requests += 1
        largest.prompt = max(largest.prompt, len(event.tokens))
        if event.media:
            self._images.update(item.hash for item in event.media)
            largest.images = len(self._images)

    def _extend(self, event: Extended) -> None:
        largest = self.activity.largest
        largest.prompt = max(largest.prompt, event.keep + len(event.tokens))

    def _end(self, event: Aborted | Finished) -> None:
        if event.by_engine and self._header.rules.ranks > 1 and not self._requests[event.r].begun:
            self.activity.requests -= 1  # another rank's
        else:
            self.activity.aborted_by_engine += event.by_engine

    def _unpublish(self, event: Unpublish) -> None:
        self.activity.evictions += event.reason == "evict"

    def _preempt(self, event: Preempted) -> None:
        self.activity.preemptions += 1

    def _counts(self, event: Counts) -> None:
        self.counted = True

    def _hit(self, event: Hit) -> None:
        activity = self.activity
        activity.lookups += 1
        if event.resume:
            activity.hits += 1
            activity.hit_tokens += event.resume
            if event.tier != "local":
                activity.from_tier += 1
                activity.loaded_tokens += loaded(self._header, event, event.resume)

    def _read(self, event: Read) -> None:
        if event.group in self._recurrent:
            request = self._requests[event.r]
            if request.ran_steps == 0 and event.stop == request.resume:
                self.activity.restored += 1

    def _answer(self, event: Answer) -> None:
        activity = self.activity
        activity.lookups += 1
        activity.aborted_by_engine += event.ended == "refused"
        activity.largest.answer = max(activity.largest.answer, len(event.tokens))
        if event.restored > 0:
            activity.hits += 1
            activity.restored += 1
            activity.hit_tokens += event.restored
        activity.sent_again += event.again

    def _cold(self, event: Cold) -> None:
        self.activity.sent_again += event.again

    def _step_begin(self, event: StepBegin) -> None:
        self.activity.overlapped_steps += bool(self._in_flight)
        self._in_flight[event.step] = {run.r: run.drafts for run in event.runs if run.drafts}

    def _settle(self, event: Settled) -> None:
        self._in_flight[event.step] |= {run.r: run.drafts for run in event.runs}

    def _step_end(self, event: StepEnd) -> None:
        self._verified = self._in_flight.pop(event.step, {})

    def _accept(self, event: Accept) -> None:
        """Count the drafts that the request's run verified; they stand up to the first that is
        not what was sampled.
        """
        largest = self.activity.largest
        answer = event.upto - self._requests[event.r].prompt_tokens
        if answer > largest.answer:
            largest.answer = answer
        if drafts := self._verified.pop(event.r, None):
            self.activity.drafts += len(drafts)
            equal = [draft == token for draft, token in zip(drafts, event.tokens, strict=False)]
            self.activity.drafts_accepted += (*equal, False).index(False)
