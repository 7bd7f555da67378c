"""Takes in what a live engine says, as a history in a file is taken in: written out, read back, and followed.

What an engine returns is input like any file. Every event is written and read anew, so a field of a wrong type is found, and
nothing that the engine keeps of its events, or changes in them later, reaches the checkers. Then it is followed as `check`
follows a stored history (`well_formed`), and beside that it must fit the operation that was asked for.
"""

from __future__ import annotations

from typing import Any

import msgspec

from harness._util.errors import UsageError
from harness.history.events import (
    Event,
    Header,
    ResetDone,
    Submitted,
    Version,
)
from harness.history.nonsense import Nonsense
from harness.history.well_formed import WellFormedness
from harness.trace.format import Abort, Finish, Op, Reset, Step, Submit, UpdateWeights, length_of

_UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError, AttributeError, msgspec.MsgspecError)
_ENCODER = msgspec.msgpack.Encoder()
_EVENTS, _EVENT = msgspec.msgpack.Decoder(list[Event]), msgspec.msgpack.Decoder(Event)
_FORMAT = "docs/formats.md says what an event has and when it comes"


class BadEvents(UsageError):
    """What a live engine reports cannot be followed: one line that names engine, operation, event and field. Exit code 4.

    No verdict on the engine's cache: whoever wrote its adapter has to mend what it reports.
    """


def taken_in(header: Any) -> Header:
    """Return the header of a live engine, read anew.

    Raises BadEvents if it is none, or does not fit together.
    """
    if not isinstance(header, Header):
        raise BadEvents(f"engine, describe(): returned {_kind(header)}; return a harness.history.events.Header")
    try:
        read = msgspec.msgpack.decode(_ENCODER.encode(header), type=Header)
        WellFormedness(read)
    except (Nonsense, *_UNWRITABLE) as problem:
        raise BadEvents(f"engine {header.engine}, describe(): {problem}; {_FORMAT}") from None
    return read


class Intake:
    """Takes in the events of one engine, operation by operation."""

    def __init__(self, header: Header) -> None:
        self._engine, self._tiers = header.engine, {pool.tier for pool in header.pools}
        self._sense = WellFormedness(header, live=True)

    def take(self, answer: Any, op: Op, index: int) -> list[Event]:
        """Return what the engine reported of an operation, read anew; `index` is the operation's in the trace.

        Raises BadEvents if it is no list of events, or an event of it cannot be followed.
        """
        if not isinstance(answer, list | tuple):
            raise self.bad(op, index, f"apply() returned {_kind(answer)}; return a list of events, empty if nothing happened")
        try:
            events: list[Event] = _EVENTS.decode(_ENCODER.encode(answer))
        except _UNWRITABLE:
            raise self._unreadable(answer, op, index) from None
        sense, event = self._sense, None
        begun, submitted = sense.begun, len(sense.tokens)
        try:
            for event in events:
                sense.follow(event)
        except Nonsense as problem:
            raise self.bad(op, index, str(problem), _place(events, event), event) from None
        try:
            if not isinstance(op, Step):
                self._answers(op, events)
            elif len(sense.tokens) > submitted:
                _check_nobody_came(events)
            elif sense.begun == begun and self._wanted(op):
                raise Nonsense("no `step_begin`; report every step, also one in which nobody runs")
            sense.operation_over()
        except Nonsense as problem:
            raise self.bad(op, index, str(problem)) from None
        return events

    def rest(self) -> None:
        """Judge the end of the trace. Raises BadEvents if steps began and none of them ended."""
        try:
            self._sense.rest()
        except Nonsense as problem:
            raise BadEvents(f"engine {self._engine}, at the end: {problem}; {_FORMAT}") from None

    # --- what an operation asks for ------------------------------------------------------------------------------------

    def _answers(self, op: Op, events: list[Event]) -> None:
        """Raise Nonsense if events do not answer the operation that was asked for."""
        if isinstance(op, Submit):
            check_submit(op, [event for event in events if type(event) is Submitted])
        else:
            _check_nobody_came(events)
        if isinstance(op, Finish | Abort) and op.r in self._sense.tokens and op.r not in self._sense.ended:
            raise Nonsense(f"{op.r!r} does not end; report `finish` or `abort` of it")
        if isinstance(op, UpdateWeights):
            asked = (op.version, op.adapter)
            if not any(type(event) is Version and (event.weights, event.adapter) == asked for event in events):
                raise Nonsense(
                    f"no `version` with weights {op.version} and adapter {op.adapter!r}; report it when they are loaded"
                )
        asks = isinstance(op, Reset) and (op.tier or "local") in self._tiers
        if asks and not any(type(event) is ResetDone for event in events):
            raise Nonsense("no `reset`; report what was answered for each tier, `ok` or not")

    def _wanted(self, op: Step) -> bool:
        """Whether somebody is there for whom a step was asked."""
        sense = self._sense
        return not sense.ended.issuperset(r for r, _ in op.run) if op.run else len(sense.ended) < len(sense.tokens)

    # --- messages -------------------------------------------------------------------------------------------------------

    def _unreadable(self, answer: Any, op: Op, index: int) -> BadEvents:
        for number, event in enumerate(answer):
            try:
                _EVENT.decode(_ENCODER.encode(event))
            except _UNWRITABLE as problem:
                return self.bad(op, index, f"{problem}{_field(event)}", number, event)
        return self.bad(op, index, "the list of events changes while it is read; return one that stays as it is")

    def bad(self, op: Op, index: int, problem: str, number: int = -1, event: Any = None) -> BadEvents:
        """Return the line that says what is wrong with an operation's events, of one of them if it is named by its number."""
        asked = " ".join(filter(None, (type(op).__name__.lower(), getattr(op, "r", ""))))
        which = f", event {number + 1} ({_kind(event)})" if number >= 0 else ""
        return BadEvents(f"engine {self._engine}, operation {index + 1} ({asked}){which}: {problem}; {_FORMAT}")


def check_submit(op: Submit, submits: list[Submitted]) -> None:
    """Raise Nonsense unless exactly the request that was asked for was submitted."""
    if [event.r for event in submits] != [op.r]:
        raise Nonsense(f"`submit` of {[event.r for event in submits]}; report {op.r!r}, once")
    (event,) = submits
    for field in ("salt", "adapter", "media", "kernels"):
        if getattr(event, field) != getattr(op, field):
            raise Nonsense(
                f"{field} {getattr(event, field)!r} of {op.r!r} - at `$.{field}`; the operation says {getattr(op, field)!r}"
            )
    if len(event.tokens) != length_of(op.prompt):
        raise Nonsense(f"{len(event.tokens)} tokens of {op.r!r} - at `$.tokens`; the prompt has {length_of(op.prompt)}")


def _check_nobody_came(events: list[Event]) -> None:
    for event in events:
        if type(event) is Submitted:
            raise Nonsense(f"request {event.r!r} was not asked for - at `$.r`; a `submit` answers a submit alone")


def _place(events: list[Event], event: Event | None) -> int:
    return next(number for number, other in enumerate(events) if other is event)


def _field(event: Any) -> str:
    """Return in which field of an event a value stands that cannot be written; empty if the message says so, or none."""
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
