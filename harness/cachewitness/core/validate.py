"""Validates a stored trace or history before it is run or judged.

A history may come from any engine. Checkers judge later whether the engine was right; here only the
record is examined: every request is submitted before an event names it, every page, group and pool
exists in the header, every table has one column list for each group. A record that fails this is
refused with file, line and field; it is never a verdict on the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from cachewitness._util import jsonl
from cachewitness._util.errors import UsageError
from cachewitness.core import stored as history
from cachewitness.core import trace_format as trace
from cachewitness.core.events import Event, Header, History
from cachewitness.core.intake import sense_of
from cachewitness.core.malformed import (
    PAGES_MAX,
    MalformedHistory,
    media_problem,
    name_problem,
    spans_problem,
)
from cachewitness.core.trace_format import (
    Abort,
    Extend,
    Finish,
    Level,
    Op,
    Preempt,
    Step,
    Submit,
    Trace,
    length_of,
)

LAYERS_MAX = 1 << 16
PAGES = "_pages"
"""The most layers of a group, and how options end that are numbers of pages: memory is taken for
each of them."""


def read(path: Path) -> tuple[Header, Iterator[tuple[int, Event]]]:
    """Return the header of a history that makes sense, and its events with their lines, read as
    they are asked for.

    Raises as `portions`.
    """
    header, followed = portions(path)
    return header, (
        numbered for lines, events in followed for numbered in zip(lines, events, strict=True)
    )


def events(path: Path) -> tuple[Header, Iterator[Event]]:
    """Return the header of a history that makes sense, and its events, read as they are asked
    for. Raises as `portions`.
    """
    header, followed = portions(path)
    return header, chain.from_iterable(events for _, events in followed)


def portions(path: Path) -> tuple[Header, Iterator[history.Portion]]:
    """Return the header of a history that makes sense, and its events, some at a time, read as they
    are asked for.

    What is read together is followed together and then judged: one by one, each loop would push the
    others out of the caches.

    Raises UsageError naming the file, the line and the field if anything does not fit the format or
    refers to nothing.
    """
    header, read = history.read(path)
    try:
        sense = sense_of(header)
    except MalformedHistory as problem:
        raise UsageError(f"{path}:1: {problem}") from None

    def followed() -> Iterator[history.Portion]:
        order = _Order()
        for lines, events in read:
            try:
                for event in events:
                    if event.seq != order.next:
                        order.follow(event)
                    order.next += order.step
                    sense.follow(event)
            except MalformedHistory as problem:
                line = next(
                    line for line, other in zip(lines, events, strict=True) if other is event
                )
                raise UsageError(f"{path}:{line}: {problem}") from None
            yield lines, events
        try:
            sense.rest()
        except MalformedHistory as problem:
            raise UsageError(f"{path}: {problem}") from None

    return header, followed()


class _Order:
    """The places of events in a history: counted from the first event's on, or never told, which is
    0 throughout.

    A place that is left out is a line that is missing, and what it said cannot be judged.
    """

    def __init__(self) -> None:
        self.next, self.step = 0, 1

    def follow(self, event: Event) -> None:
        """Take in a place that is not the next one; raise MalformedHistory unless it is the first,
        or places are not told.
        """
        begun = self.next
        if begun == 0 and self.step:
            self.next = event.seq  # a part of a history may begin anywhere
        elif begun == 1 and event.seq == 0:
            self.next, self.step = 0, 0
        else:
            raise MalformedHistory(
                f"{event.seq} - at `$.seq`; {begun} was to come, and a line is missing or out of"
                " place"
            )


def load(path: Path) -> tuple[History, list[int]]:
    """Read a history that makes sense, all of it, and return with it the line of each event in the
    file.

    Raises UsageError naming the file, the line and the field if anything does not fit the format or
    refers to nothing.
    """
    header, events = read(path)
    numbered = list(events)
    return History(header, [event for _, event in numbered], [-1] * len(numbered)), [
        line for line, _ in numbered
    ]


def load_trace(path: Path) -> Trace:
    """Read a trace that an engine can be asked to run.

    Raises UsageError naming the file, the line and the field if anything does not fit the format,
    or no engine could do it.
    """
    lines = jsonl.read(path)
    asked = trace.parse(lines, str(path))
    entries = [number for number, text in enumerate(lines[1:], start=2) if text.strip()]
    for group in asked.header.layout.groups:
        if problem := spans_problem(group, "at `$.layout.groups`"):
            raise UsageError(f"{path}:1: {problem}")
        if not 1 <= group.layers <= LAYERS_MAX:
            raise UsageError(
                f"{path}:1: {group.layers} layers - at `$.layout.groups`; a group has 1 to"
                f" {LAYERS_MAX}"
            )
    if not 2 <= asked.header.pages <= PAGES_MAX:
        raise UsageError(
            f"{path}:1: {asked.header.pages} - at `$.pages`; a pool has the null block and another,"
            f" at most {PAGES_MAX}"
        )
    for name, value in asked.header.options.items():
        if name.endswith(PAGES) and isinstance(value, int) and value > PAGES_MAX:
            raise UsageError(
                f"{path}:1: too many pages - at `$.options.{name}`; at most {PAGES_MAX}"
            )
    # A refusal names the line: whoever writes a trace by hand has to find it.
    known: set[str] = set()
    for number, op in zip(entries, asked.ops, strict=True):
        if (
            problem := _op_problem(op)
            or _level_problem(op, asked.header.level)
            or _stranger(op, known)
        ):
            raise UsageError(f"{path}:{number}: {problem}")
    return asked


def problems(happened: History) -> Iterator[tuple[int, str]]:
    """Yield the first thing that makes no sense, if there is one: the index of the event (−1:
    the header) and what it is.
    """
    index = -1
    try:
        sense = sense_of(happened.header)
        for event in happened.events:
            index += 1
            sense.follow(event)
        sense.rest()
    except MalformedHistory as problem:
        yield index, str(problem)


def _op_problem(op: Op) -> str:
    if isinstance(op, Submit | Extend):
        if not length_of(op.prompt):
            return "no tokens - at `$.prompt`; a request needs at least one"
        if op.generate < 1 and (isinstance(op, Extend) or op.session):
            return f"{op.generate} - at `$.generate`; an answer of a session has at least one token"
        return media_problem(op.media) if isinstance(op, Submit) else ""
    if isinstance(op, Step):
        if any(tokens < 1 for _, tokens in op.run):
            return "less than one token - at `$.run`; a request that runs computes at least one"
        if len(dict(op.run)) < len(op.run):
            return "a request twice - at `$.run`; a step computes one chunk of each"
        if op.budget < 0:
            return f"{op.budget} - at `$.budget`; a budget is at least 0"
        if any(place < 0 for place in op.fail):
            return f"{min(op.fail)} - at `$.fail`; places among the copies under way begin at 0"
    return ""


def _level_problem(op: Op, level: Level) -> str:
    """Return what an operation asks for that there is not at a level."""
    # Who ends a request differs by level: the trace at manager level, the engine's own scheduler
    # for sessions, the engine at answers level. So `generate` means something in two of them only.
    if isinstance(op, Submit):
        if op.tokens:
            return "ids - at `$.tokens`; the harness fills them in, a trace has `prompt` alone"
        if level == "answers" and op.generate < 1:
            return (
                f"{op.generate} - at `$.generate`; at answers level a request generates at least"
                " one token"
            )
        if level != "answers" and op.generate and not op.session:
            return (
                f"{op.generate} - at `$.generate`; only at answers level requests end by"
                " themselves, and answers of sessions"
            )
        if level != "scheduler" and op.session:
            return (
                f"a session - at `$.session`; at {level} level there are none, whose requests end"
                " with their answers"
            )
    if (
        isinstance(op, Step)
        and level == "answers"
        and (op.run or op.withdraw or op.cancel or op.fail)
    ):
        return (
            "requests - at `$.run`, `$.withdraw`, `$.cancel` or `$.fail`; at answers level the"
            " engine schedules"
        )
    if isinstance(op, Preempt) and level == "answers":
        return "at answers level nobody is preempted by request; use a smaller pool"
    return ""


def _stranger(op: Op, known: set[str]) -> str:
    """Return what is wrong with the requests that an operation names; `known` are those
    submitted before it.
    """
    if isinstance(op, Submit):
        problem = name_problem(op.r, known)
        known.add(op.r)
        return problem
    named = [(op.r, "r")] if isinstance(op, Extend | Finish | Abort | Preempt) else []
    if isinstance(op, Step):
        named = [
            *((r, "run") for r, _ in op.run),
            *((r, "withdraw") for r in op.withdraw),
            *((r, "cancel") for r in op.cancel),
        ]
    strange = [
        f"request {r!r} was never submitted - at `$.{field}`"
        for r, field in named
        if r not in known
    ]
    return strange[0] if strange else ""
