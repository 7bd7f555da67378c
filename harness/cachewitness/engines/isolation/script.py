"""What a program is asked in a rehearsal: each operation of its level once, with every part of
a request's identity.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, get_args

from msgspec.structs import replace

from cachewitness.core.events import Aborted, Finished, Header, Submitted
from cachewitness.core.intake import AnswerIntake, Intake
from cachewitness.core.trace_format import (
    Abort,
    Finish,
    Level,
    Media,
    Op,
    Preempt,
    Reset,
    Step,
    Submit,
    TraceHeader,
    UpdateWeights,
)
from cachewitness.workloads.scenarios.shape import Shape
from cachewitness.workloads.spelling import Spelling

LONG = " ".join(f"t{place}:1" for place in range(12_000))
"""A prompt of so many tokens, each of a text of its own, that its line has more than 100 KB."""
GENERATE = 3


def script(header: TraceHeader, prompt: str = "") -> list[Op]:
    """Return the operations of a trace for the level and the layout of a header; of a `prompt`
    alone, if one is given.
    """
    unit = Shape(header.layout).unit
    ops: list[Op] = (
        [Submit("a", prompt), Finish("a")]
        if prompt
        else [*_lives(unit), *_identities(unit), *_taken_back(unit)]
    )
    if header.level == "manager":
        return ops
    if header.level == "scheduler":
        return [replace(op, run=[]) if isinstance(op, Step) else op for op in ops]
    kinds = (Submit, Step, Finish, Abort)
    ops = [op for op in ops if isinstance(op, kinds)]
    return [
        (
            replace(op, generate=GENERATE)
            if isinstance(op, Submit)
            else Step()
            if isinstance(op, Step)
            else op
        )
        for op in ops
    ]


def _lives(unit: int) -> list[Op]:
    """Return two requests that share a block, one of them cut into chunks, and all that may
    happen to them.
    """
    return [
        Submit("a", f"sys:{unit} a:3"),
        Step([("a", unit + 3)]),
        Step([("a", 1)]),
        Submit("b", f"sys:{unit} b:{unit + 1}"),
        Step([("a", 1), ("b", 1)]),
        Step([("b", unit)]),
        Preempt("a"),
        Abort("b"),
        Step([("a", 2 * unit)]),
        Finish("a"),
        Submit("c", f"sys:{unit} a:3 @a:1"),
        Step([("c", unit + 4)]),
        Reset(),
        Step([("c", 1)]),
        Reset(running=True),
        Step([("c", unit + 5)]),
        UpdateWeights(version=1),
        Step([("c", unit + 6)]),
        Finish("c"),
    ]


def _identities(unit: int) -> list[Op]:
    """Return requests with one prompt and other identities, and one that generates a stream of
    another name.
    """
    media = [Media(at=1, length=2, hash="picture")]
    submits = [
        Submit("d", f"sys:{unit} d:1", salt="tenant"),
        Submit("e", f"sys:{unit} d:1", adapter="lora"),
        Submit("f", f"sys:{unit} d:1", media=media),
        Submit("g", f"sys[1]:{unit} d:1", stream="said"),
    ]
    return [
        op for submit in submits for op in (submit, Step([(submit.r, unit + 1)]), Finish(submit.r))
    ]


def _taken_back(unit: int) -> list[Op]:
    """Return a step that is scheduled and taken back, and one whose client goes away while it is
    scheduled.
    """
    return [
        Submit("h", f"h:{unit + 1}"),
        Step([("h", unit + 1)], withdraw=["h"]),
        Step([("h", unit + 1)]),
        Step([("h", 1)], cancel=["h"]),
    ]


def refusable(header: TraceHeader, levels: Collection[Level]) -> dict[str, TraceHeader]:
    """Return traces that a program has to refuse, by what is in them."""
    unknown = next((level for level in get_args(Level) if level not in levels), None)
    found = {"an option that no engine has": replace(header, options={"no_such_option": 1})}
    return found | (
        {f"the level {unknown}, which it did not name": replace(header, level=unknown)}
        if unknown
        else {}
    )


def followed(header: Header) -> Followed:
    """Return what follows the events of an engine, operation by operation."""
    return _Answers(header) if header.level == "answers" else Followed(Intake(header))


class Followed:
    """Follows the events of an engine, as a run does."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    def take(self, events: Any, op: Op, index: int) -> None:
        """Take in what came of an operation. Raises BadEvents if it cannot be followed."""
        self._intake.take(events, op, index)

    def rest(self) -> None:
        """Judge the end of the trace. Raises BadEvents as `take`."""
        self._intake.rest()


class _Answers(Followed):
    """The same at answers level, where a request is answered with its `finish` at the latest."""

    def __init__(self, header: Header) -> None:
        self._intake: AnswerIntake = AnswerIntake(header)
        self._answered: set[str] = set()

    def take(self, events: Any, op: Op, index: int) -> None:
        """Take in the answers that came with an operation. Raises BadEvents if they cannot be
        followed, or one is missing.
        """
        if isinstance(op, Submit):
            self._intake.note(
                Submitted(
                    r=op.r, tokens=op.tokens, salt=op.salt, media=op.media, generate=op.generate
                )
            )
        self._answered |= {
            getattr(event, "r", "") for event in self._intake.take(events, op, index)
        }
        if isinstance(op, Finish):
            if op.r not in self._answered:
                raise self._intake.bad(
                    op, index, f"no `answer` of {op.r!r}; it comes with its `finish` at the latest"
                )
            self._intake.note(Finished(r=op.r))
        elif isinstance(op, Abort):
            self._intake.note(Aborted(r=op.r))


def spelled(op: Op, vocabulary: int) -> Op:
    """Return a submit with the ids of its prompt, as an engine at answers level is asked."""
    return (
        replace(op, tokens=Spelling(vocabulary).tokens(op.prompt, (), {}))
        if isinstance(op, Submit)
        else op
    )
