"""Takes in what a live engine says, as a history in a file is taken in: written out, read back, and
followed.

What an engine returns is input like any file. Every event is written and read anew, so a field of a
wrong type is found, and nothing that the engine keeps of its events, or changes in them later,
reaches the checkers. Then it is followed as `check` follows a stored history (`well_formed`), and
beside that it must fit the operation that was asked for.
"""

from __future__ import annotations

from typing import Any

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.core.answered import AnswerSense
from cachewitness.core.declared import check_fit
from cachewitness.core.event_reader import EventReader
from cachewitness.core.events import Event, Header
from cachewitness.core.malformed import MalformedHistory
from cachewitness.core.operation_check import OperationCheck
from cachewitness.core.trace_format import Op, TraceHeader
from cachewitness.core.well_formed import WellFormedness

_UNWRITABLE = (
    TypeError,
    ValueError,
    OverflowError,
    RecursionError,
    AttributeError,
    msgspec.MsgspecError,
)
_ENCODER = msgspec.msgpack.Encoder()
_EVENT = msgspec.msgpack.Decoder(Event)
_FORMAT = "docs/reference/formats.md says what an event has and when it comes"


class BadEvents(UsageError):
    """What a live engine reports cannot be followed: one line that names engine, operation, event
    and field. Exit code 4.

    No verdict on the engine's cache: whoever wrote its adapter has to mend what it reports.
    """


def taken_in(header: Any, trace: TraceHeader | None = None) -> Header:
    """Return the header of a live engine, read anew.

    Raises BadEvents if it is none, does not fit together, or is no engine for the trace that it was
    opened for.
    """
    if not isinstance(header, Header):
        raise BadEvents(
            f"engine, describe(): returned {_kind(header)}; return a"
            " cachewitness.core.events.Header"
        )
    try:
        read = msgspec.msgpack.decode(_ENCODER.encode(header), type=Header)
        if trace is not None and read.level != trace.level:
            raise MalformedHistory(
                f"{read.level!r} - at `$.level`; the trace has level {trace.level!r}"
            )
        sense_of(read)
        if trace is not None:
            check_fit(read, trace)
    except (MalformedHistory, *_UNWRITABLE) as problem:
        raise BadEvents(f"engine {header.engine!r}, describe(): {problem}; {_FORMAT}") from None
    return read


def sense_of(header: Header) -> WellFormedness | AnswerSense:
    """Return what follows a history of this level. Raises MalformedHistory for a header that does
    not fit together.
    """
    return AnswerSense(header) if header.level == "answers" else WellFormedness(header)


class Intake:
    """Takes in the events of one engine, operation by operation."""

    def __init__(self, header: Header) -> None:
        self._engine = header.engine
        self._reader = EventReader()
        self._sense, self._asked = self._senses(header)

    def _senses(self, header: Header) -> tuple[WellFormedness | AnswerSense, OperationCheck | None]:
        sense = WellFormedness(header, live=True)
        return sense, OperationCheck(header, sense)

    def take(self, answer: Any, op: Op, index: int) -> list[Event]:
        """Return what the engine reported of an operation, read anew and followed; `index` is the
        operation's in the trace.

        Raises BadEvents if it is no list of events, or an event of it cannot be followed.
        """
        events = self.read(answer, op, index)
        self.follow(events, op, index)
        return events

    def read(self, answer: Any, op: Op, index: int) -> list[Event]:
        """Return what the engine reported of an operation, read anew. Raises BadEvents if it is
        no list of events.
        """
        if not isinstance(answer, list | tuple):
            raise self.bad(
                op,
                index,
                f"apply() returned {_kind(answer)}; return a list of events, empty if nothing"
                " happened",
            )
        try:
            return self._reader.read(answer)
        except _UNWRITABLE:
            raise self._unreadable(answer, op, index) from None

    def follow(self, events: list[Event], op: Op, index: int) -> None:
        """Follow what was read of an operation; all before it was followed. Raises BadEvents if
        an event cannot be followed.
        """
        sense = self._sense
        event = None
        try:
            for event in events:
                sense.follow(event)
        except MalformedHistory as problem:
            raise self.bad(op, index, str(problem), _place(events, event), event) from None
        try:
            if self._asked is not None:
                self._asked.check(op, events)
            sense.operation_over()
        except MalformedHistory as problem:
            raise self.bad(op, index, str(problem)) from None

    def rest(self) -> None:
        """Judge the end of the trace. Raises BadEvents if steps began and none of them ended."""
        try:
            self._sense.rest()
        except MalformedHistory as problem:
            raise BadEvents(f"engine {self._engine}, at the end: {problem}; {_FORMAT}") from None

    # --- messages ---------------------------------------------------------------------------------

    def _unreadable(self, answer: Any, op: Op, index: int) -> BadEvents:
        for number, event in enumerate(answer):
            try:
                _EVENT.decode(_ENCODER.encode(event))
            except _UNWRITABLE as problem:
                return self.bad(op, index, f"{problem}{_field(event)}", number, event)
        return self.bad(
            op, index, "the list of events changes while it is read; return one that stays as it is"
        )

    def bad(
        self, op: Op, index: int, problem: str, number: int = -1, event: Any = None
    ) -> BadEvents:
        """Return the line that says what is wrong with an operation's events, of one of them if
        it is named by its number.
        """
        asked = " ".join(filter(None, (type(op).__name__.lower(), getattr(op, "r", ""))))
        which = f", event {number + 1} ({_kind(event)})" if number >= 0 else ""
        return BadEvents(
            f"engine {self._engine}, operation {index + 1} ({asked}){which}: {problem}; {_FORMAT}"
        )


class AnswerIntake(Intake):
    """Takes in the answers of one engine at answers level."""

    def _senses(self, header: Header) -> tuple[AnswerSense, None]:
        self._answers = AnswerSense(header, live=True)
        return self._answers, None

    def note(self, event: Event) -> None:
        """Take in what the harness itself writes down. Raises BadEvents if it cannot be
        followed, being made of an answer.
        """
        try:
            self._answers.note(event)
        except MalformedHistory as problem:
            raise BadEvents(
                f"engine {self._engine}, {_kind(event)} of its answers: {problem}; {_FORMAT}"
            ) from None


def _place(events: list[Event], event: Event | None) -> int:
    return next(number for number, other in enumerate(events) if other is event)


def _field(event: Any) -> str:
    """Return in which field of an event a value stands that cannot be written; empty if the
    message says so, or none.
    """
    for name in getattr(event, "__struct_fields__", ()):
        try:
            _ENCODER.encode(getattr(event, name))
        except _UNWRITABLE:
            return f" - at `$.{name}`"
    return ""


def _kind(value: Any) -> str:
    """Return what a value is, in the words of the format where it is an event."""
    config = getattr(type(value), "__struct_config__", None)
    tag = getattr(config, "tag", None)
    return str(tag) if tag else f"a {type(value).__name__}"
