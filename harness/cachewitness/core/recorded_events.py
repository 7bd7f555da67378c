"""Judges what a router recorded of an engine's events, without the engine and without a history.

A recording is a sequence of messages; each publisher (a topic and a rank of data parallelism)
counts its own. What a message proves is in `checkers/event_stream`. Where messages are missing, in
front of the first or between two, what may have been told in them is held against nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from cachewitness.core.checkers.event_stream import FULL, MALFORMED, EventStream, Problem
from cachewitness.core.checkers.finding import Finding, Tally
from cachewitness.core.checkers.wording import count, with_detail
from cachewitness.core.events import Event, KeyEvents, KvCleared, KvRemoved, KvStored

CHECKER = "key-events"
LOST = "lost-key-event"


class Message(NamedTuple):
    """A batch of events of one publisher. `number` is its sequence number, None if none was
    recorded; `problems` are what cannot be read of it, each an event that a router would drop.
    """

    publisher: str
    number: int | None
    events: list[Event]
    problems: list[str]


class RecordedEvents:
    """Takes in messages in the order in which they came. `once`: see `EventStream`.

    `notes` says in lines what was found that is no contradiction.
    """

    def __init__(self, *, once: bool = False) -> None:
        self.findings: list[Finding] = []
        self.messages = 0
        self.events = 0
        self._once = once
        self._streams: dict[str, EventStream] = {}
        self._last: dict[str, tuple[int, list[Event]]] = {}
        self._kinds: dict[str, dict[int, str]] = {}
        """By publisher and group: what it says that the group is."""
        self._notes: Counter[str] = Counter()

    def take(self, messages: Sequence[Message]) -> None:
        """Judge messages."""
        self._note_groups(messages)
        for message in messages:
            self.messages += 1
            if self._in_turn(message):
                for problem, what in self._problems(message):
                    self._find(message, problem, what)

    def tally(self) -> Tally:
        """Return what there was to judge, and what could not be judged."""
        excused = Counter[str]()
        for stream in self._streams.values():
            excused.update(stream.excused)
        return Tally(
            checker=CHECKER,
            opportunities=self.events,
            findings=len(self.findings),
            excused=dict(excused),
        )

    def notes(self) -> list[str]:
        """Return in lines what a reader has to know of the recording."""
        again = sum(stream.again for stream in self._streams.values())
        lines = [f"{text}: {count(times, 'time')}" for text, times in self._notes.items()]
        if again:
            lines.append(
                f"blocks that were there were stored again {count(again, 'time')}: another page"
                " has the same prefix, or a hit was told, so a router has to count"
            )
        return lines

    def _stream(self, publisher: str) -> EventStream:
        return self._streams.setdefault(publisher, EventStream(once=self._once))

    def _in_turn(self, message: Message) -> bool:
        """Compare a message's number with the last one's; return whether it is to be judged."""
        number = message.number
        stream = self._stream(message.publisher)
        if number is None:
            if self.messages == 1:
                self._notes["no sequence numbers: the recording is taken for whole"] += 1
            return True
        last, events = self._last.get(message.publisher, (-1, []))
        if message.publisher not in self._last and number > 0:
            self._notes["the recording begins behind a publisher's first message"] += 1
            stream.missed()
        elif number == last:
            if message.events == events:
                self._notes["a message came twice"] += 1
                return False
            why = f"number {number} came twice, with other events"
            self._find(message, Problem(MALFORMED, why), "its events")
        elif number < last:
            # Who starts anew counts from 0: nothing of before is there.
            if number == 0:
                self._notes["a publisher began anew"] += 1
                self._streams[message.publisher] = EventStream(once=self._once)
            else:
                self._notes["a message came late, or was asked for again"] += 1
                return False
        elif number > last + 1:
            missing = number - last - 1
            why = f"{count(missing, 'message')} between {last} and {number} never came"
            self._find(message, Problem(LOST, why), "its events")
            stream.missed()
        self._last[message.publisher] = number, message.events
        return True

    def _problems(self, message: Message) -> Iterator[tuple[Problem, str]]:
        stream = self._stream(message.publisher)
        for bad in message.problems:
            self.events += 1
            yield Problem(MALFORMED, bad), "what cannot be read"
        for event in message.events:
            self.events += 1
            if isinstance(event, KvStored):
                for problem in stream.stored(event, self._allowed(event, message.publisher)):
                    yield problem, f"that {count(len(event.hashes), 'block')} {_where(event)} came"
            elif isinstance(event, KvRemoved):
                for problem in stream.removed(event):
                    yield problem, f"that {count(len(event.hashes), 'block')} {_where(event)} went"
            elif isinstance(event, KvCleared):
                stream.cleared()

    def _note_groups(self, messages: Iterable[Message]) -> None:
        """Note of which groups not every block is kept: of those that say so, and of all that do
        not where there are several (before vLLM 0.29 none does).
        """
        for message in messages:
            kinds = self._kinds.setdefault(message.publisher, {})
            for event in message.events:
                if isinstance(event, KvStored):
                    kinds[event.group] = event.kind or kinds.get(event.group, "")

    def _allowed(self, event: KvStored, publisher: str) -> KeyEvents:
        """Return what an event may leave open: of a group that is pruned, which blocks are meant;
        of a publisher that has such a group, the block in front.
        """
        kinds = self._kinds[publisher]
        pruned = {
            group for group, kind in kinds.items() if kind != FULL and (kind or len(kinds) > 1)
        }
        return KeyEvents(gaps=event.group in pruned, orphans=bool(pruned), bare=bool(event.medium))

    def _find(self, message: Message, problem: Problem, what: str) -> None:
        number = "" if message.number is None else f" (number {message.number})"
        of = f" of {message.publisher}" if message.publisher else ""
        line = f"message {self.messages}{number}{of}"
        self.findings.append(
            Finding(
                anomaly=problem.anomaly,
                checker=CHECKER,
                sentence=(
                    f"Let a router take in {line}, which tells {what}; however {problem.why}: a"
                    " contradiction."
                ),
                line=with_detail(line, problem.why),
                seq=self.messages - 1,
            )
        )


def _where(event: KvStored | KvRemoved) -> str:
    group = f", group {event.group}" if event.group >= 0 else ""
    return f"of {event.medium or 'the device'}{group}"
