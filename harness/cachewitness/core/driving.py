"""Drives a trace through an engine and judges what happens, event by event.

Each operation goes to the engine, the worker executes the block tables that the engine returns, and
the checkers (`CheckerSet`) see every event as it happens. So a run can stop at the first
contradiction and name the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from math import isfinite
from typing import NoReturn

import msgspec

from cachewitness._util.errors import EngineBroken, UsageError
from cachewitness._util.lines import beginning, printable
from cachewitness.core.checkers import fresh
from cachewitness.core.checkers.anomalies import gravest_first
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.checkers.protocol import Checker, CheckerSet
from cachewitness.core.checkers.wording import LINE_MAX
from cachewitness.core.counting import Counting
from cachewitness.core.engine import Engine
from cachewitness.core.engine_failure import (
    EngineFailure,
    NoAnswer,
    OwnMistake,
    as_exception,
    describe_error,
    of_ours,
    raised_at,
)
from cachewitness.core.events import (
    Aborted,
    Died,
    Event,
    Extended,
    Finished,
    Header,
    History,
    Preempted,
    ResetDone,
    Submitted,
    Version,
)
from cachewitness.core.intake import AnswerIntake, BadEvents, Intake, taken_in
from cachewitness.core.open_findings import leave_open
from cachewitness.core.result import Activity, Result
from cachewitness.core.trace_format import (
    Abort,
    Extend,
    Finish,
    Op,
    Preempt,
    Reset,
    Step,
    Submit,
    Trace,
    TraceHeader,
    UpdateWeights,
)
from cachewitness.core.worker import Worker

AfterStep = Callable[[int, Op, list[Event]], Finding | None]
"""Told the index of an operation in the trace, what of it was carried out, and the engine's events
of it."""

_MAY_BEGIN = frozenset((Submitted, Extended, Finished, Aborted, Preempted, ResetDone, Version))
"""Events with which an operation may begin."""


PORTION = 16
"""So many operations are carried out, then followed, then executed, then judged: one by one, each
loop would push the others out of the caches."""


class Stopped(BadEvents):
    """A trace was stopped by events that cannot be followed. `result` is its result until
    then.
    """

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message, result)
        self.result = result

    def __str__(self) -> str:
        return str(self.args[0])


class LiveRequests:
    """Tells which operations mean something now: nobody steps, ends or preempts a request that is
    not there.

    A trace whose lines were removed by shrinking stays well-formed this way.
    """

    def __init__(self) -> None:
        self._live: set[str] = set()
        self._known: set[str] = set()

    def filter(self, op: Op) -> Op | None:
        """Return the operation, reduced to the requests that are live; None if nothing of it is
        left.
        """
        if isinstance(op, Submit):
            if op.r in self._known:
                return None
            self._known.add(op.r)
            self._live.add(op.r)
        elif isinstance(op, Finish | Abort):
            if op.r not in self._live:
                return None
            self._live.discard(op.r)
        elif isinstance(op, Preempt | Extend):
            return op if op.r in self._live else None
        elif isinstance(op, Step):
            return self._step(op)
        else:
            assert isinstance(op, Reset | UpdateWeights)
        return op

    def _step(self, op: Step) -> Op | None:
        live = self._live
        run = [(r, n) for r, n in op.run if r in live]
        if op.run and not run:
            return None
        if (
            len(run) < len(op.run)
            or not live.issuperset(op.withdraw)
            or not live.issuperset(op.cancel)
        ):
            withdraw, cancel = (
                [r for r in named if r in live] for named in (op.withdraw, op.cancel)
            )
            op = msgspec.structs.replace(op, run=run, withdraw=withdraw, cancel=cancel)
        live.difference_update(op.cancel)
        return op


class Observer:
    """Records a history, counts what happened and collects findings."""

    def __init__(
        self, header: Header, checkers: Iterable[Checker] | None = None, *, keep: bool = True
    ) -> None:
        self.history = History(header, [], [])
        self.findings: list[Finding] = []
        self.checkers = CheckerSet(header, fresh(header.level) if checkers is None else checkers)
        self._counting = Counting(header, self.checkers.ledger.requests)
        self.checkers.show_after(self._counting.handlers)
        self._keep = keep
        self._seq = 0

    @property
    def activity(self) -> Activity:
        """What was counted so far."""
        return self._counting.activity

    @cached_property
    def intake(self) -> Intake:
        """Where the events of a live engine come in."""
        header = self.history.header
        return AnswerIntake(header) if header.level == "answers" else Intake(header)

    def see(self, events: Iterable[Event], op: int) -> None:
        """Take in all that one operation made happen."""
        self.take(events, op)
        self.operation_over(op)

    def operation_over(self, op: int) -> None:
        """Judge what can be judged only when the engine has reported all of an operation."""
        self._found(self.checkers.operation_over(), op)

    def _found(self, findings: Sequence[Finding], op: int) -> None:
        for finding in findings:
            finding.op = op
        self.findings += findings

    def take(self, events: Iterable[Event], op: int) -> None:
        """Take in a part of what one operation made happen."""
        observe = self.checkers.observe
        seq = self._seq
        if self._keep:
            events = list(events)
            self.history.events += events
            self.history.op_of.extend([op] * len(events))
        try:
            for event in events:
                event.seq = seq
                seq += 1
                if found := observe(event):
                    self._found(found, op)
        finally:
            self._seq = seq

    @property
    def seen(self) -> int:
        """How many events were taken in."""
        return self._seq

    def at_rest(self, op: int) -> None:
        """Judge what would be found if the run ended here; it may go on."""
        self._found(self.checkers.at_rest(), op)

    def close(self, trace: Trace | None) -> Result:
        """Judge the end and return the result."""
        self._found(self.checkers.close(), len(trace.ops) - 1 if trace else -1)
        self.activity.events = self._seq
        self.activity.largest.reuses = self.checkers.ledger.holdings.reuses
        return Result(
            trace=trace,
            history=self.history,
            findings=gravest_first(self.findings),
            tallies=list(self.checkers.tallies.values()),
            activity=self.activity,
            counted=self._counting.counted,
        )


class BatchedRun:
    """Carries out operations on an engine and judges them, a `portion` of them at a time.

    What the engine reports is read at once, since it may change what it has returned. All else of
    an operation comes in the order in which it would come if each were judged before the next is
    carried out, so nothing that is found depends on the portion; the engine alone may have been
    carried further when a finding comes.
    """

    def __init__(
        self, engine: Engine, header: Header, observer: Observer, portion: int = PORTION
    ) -> None:
        self._engine = engine
        self._worker = Worker(header)
        self._observer = observer
        self._portion = portion
        self._waiting: list[tuple[int, Op, list[Event]]] = []

    def carry_out(self, op: Op, index: int) -> list[Event] | None:
        """Let the engine carry out one operation and return its events; None, with a `engine-crashed`
        finding, if it raised.

        Raises as `applied`.
        """  # noqa: E501
        observer = self._observer
        try:
            answer = self._engine.apply(op)
        except BaseException as raised:
            self._failed(as_exception(raised), op, index)
            return None
        try:
            events = observer.intake.read(answer, op, index)
        except BadEvents:
            self.judge()
            observer.activity.operations += 1
            raise
        self._waiting.append((index, op, events))
        if len(self._waiting) >= self._portion:
            self.judge()
        return events

    def _failed(self, error: Exception, op: Op, index: int) -> None:
        self._judge_before(error)
        self._observer.activity.operations += 1
        _raised(error, self._engine, op, index, self._observer)

    def _judge_before(self, error: Exception) -> None:
        """Judge what waits, in front of an error.

        An answer that is none comes first even where one before it cannot be followed; what was
        found before it counts.
        """
        try:
            self.judge()
        except BadEvents:
            if not isinstance(error, NoAnswer):
                raise

    def judge(self) -> None:
        """Judge the operations that wait for it. Raises BadEvents, when those before are judged,
        if one cannot be followed.
        """
        # Emptied first, so that no operation is judged twice if one of them raises.
        waiting, self._waiting = self._waiting, []
        observer = self._observer
        followed = 0
        try:
            for index, op, events in waiting:
                observer.activity.operations += 1
                observer.intake.follow(events, op, index)
                followed += 1
        finally:
            # Also when one cannot be followed: what is found in the operations before it counts.
            executed = [
                (self._worker.extend(events), index) for index, _, events in waiting[:followed]
            ]
            for events, index in executed:
                observer.take(events, index)
                observer.operation_over(index)


def drive(
    trace: Trace,
    engine: Engine,
    checkers: Iterable[Checker] | None = None,
    *,
    until: Callable[[Finding], bool] | None = None,
    beside: AfterStep | None = None,
    keep: bool = True,
) -> Result:
    """Run a trace on an engine under the checkers (all of them by default) and return the judged
    result.

    `beside` receives the events of each operation that was carried out and may return findings (the
    differential does). `until` ends the run with the operation that raised a finding of that kind;
    `keep=False` drops the history. An exception in the engine is a finding (`engine-crashed`); a UsageError
    (an option that the engine refuses) passes through.

    Raises Stopped, which has the result until then, if the engine reports what cannot be followed;
    also if it says what is no answer, and something was found before.
    """  # noqa: E501
    header = described(engine, trace.header)
    observer = Observer(header, checkers, keep=keep)
    applicable = LiveRequests()
    # One at a time if somebody looks on: the differential follows the engine's choices at once, and
    # `until` has to stop it before it is carried further.
    ahead = BatchedRun(engine, header, observer, 1 if until or beside else PORTION)
    with letting_go(trace, engine, observer):
        for index, asked in enumerate(trace.ops):
            op = applicable.filter(asked)
            if op is None:
                continue
            events = ahead.carry_out(op, index)
            if events is None:
                break
            if beside and (finding := beside(index, op, events)):
                finding.seq = observer.seen - 1
                finding.op = index
                observer.findings.append(finding)
            if until and any(map(until, observer.findings)):
                break
        else:
            ahead.judge()
            observer.intake.rest()
    return observer.close(trace)


@contextmanager
def letting_go(trace: Trace, engine: Engine, observer: Observer) -> Iterator[None]:
    """Let go of the engine behind a block that carries out a trace.

    Raises Stopped, which has the result until then, if the engine reports what cannot be followed;
    also if it says what is no answer, and something was found before.
    """
    last = len(trace.ops) - 1
    try:
        try:
            yield
        except BadEvents as bad:
            let_go(engine, observer, last)
            raise Stopped(f"trace {trace.header.name}: {bad}", observer.close(trace)) from None
        let_go(engine, observer, last)
    except NoAnswer as error:
        if not observer.findings:
            raise
        raise Stopped(f"trace {trace.header.name}: {error}", observer.close(trace)) from None


def attempt(run: Callable[[], Result]) -> tuple[Result, str]:
    """Run a trace; return its result and, if events that cannot be followed stopped it, the line
    that says so.
    """
    try:
        return run(), ""
    except Stopped as stopped:
        return stopped.result, str(stopped)


def described(engine: Engine, trace: TraceHeader) -> Header:
    """Return what an engine says of itself.

    Raises BadEvents if that is no header, does not fit together, or is no engine for the trace;
    EngineBroken if the engine raises, OwnMistake if this package's own adapter of it does.
    """
    try:
        declared = engine.describe()
    except (UsageError, BadEvents):
        raise
    except BaseException as raised:
        _says_nothing(as_exception(raised), engine, trace)
    return taken_in(declared, trace)


def _says_nothing(error: Exception, engine: Engine, trace: TraceHeader) -> NoReturn:
    if of_ours(error, engine):
        raise OwnMistake(describe_error(error)) from error
    what = str(error) if isinstance(error, EngineFailure) else f"raised {describe_error(error)}"
    message = f"the engine does not say what it is for trace {trace.name!r}: it {what}"
    raise EngineBroken(message) from error


def seconds_in(engine: Engine) -> float | None:
    """Return how many seconds were spent in the engine's own code; None if it does not say, or
    says what cannot be.
    """
    seconds = getattr(engine, "engine_seconds", None)
    return (
        seconds if isinstance(seconds, int | float) and isfinite(seconds) and seconds >= 0 else None
    )


def beside(engine: Engine, spent: float) -> float | None:
    """Return the processor time that a trace took outside the engine's own code, in seconds; None
    if the engine does not say what its code took. `spent` is that of this process.
    """
    inside = seconds_in(engine)
    if inside is None:
        return None
    process = getattr(engine, "process_seconds", None)
    other = process if isinstance(process, int | float) and isfinite(process) else 0.0
    return max(0.0, spent + other - inside)


def applied(engine: Engine, op: Op, index: int, observer: Observer) -> list[Event] | None:
    """Let the engine carry out one operation; None, with a `engine-crashed` finding, if it raised.

    UsageError passes through; BadEvents is raised for events that cannot be followed, OwnMistake if
    not the engine raised but this package's own adapter of it.
    """
    observer.activity.operations += 1
    try:
        answer = engine.apply(op)
    except BaseException as raised:
        _raised(as_exception(raised), engine, op, index, observer)
        return None
    return observer.intake.take(answer, op, index)


def _raised(error: Exception, engine: Engine, op: Op, index: int, observer: Observer) -> None:
    """Find an engine to have died that raised in an operation; raise what is no finding, as
    `applied` says.
    """
    if isinstance(error, BadEvents):
        raise observer.intake.bad(op, index, str(error)) from None
    if isinstance(error, UsageError | OwnMistake):
        raise error
    if of_ours(error, engine):
        raise OwnMistake(describe_error(error)) from error
    r = getattr(op, "r", "")
    what = f"operation {index + 1} ({type(op).__name__.lower()}{' ' + r if r else ''})"
    failed(observer, index, f"Let the engine carry out {what}", error, r)


def let_go(engine: Engine, observer: Observer, last: int) -> None:
    """Let go of the engine; to fail in that is a finding as well."""
    try:
        engine.close()
    except UsageError:
        raise
    except BaseException as raised:
        asked = "Let go of the engine after the last operation"
        failed(observer, last, asked, as_exception(raised))


def failed(observer: Observer, index: int, asked: str, error: Exception, r: str = "") -> None:
    """Take note that the engine raised, died or hung."""
    failure = (
        error
        if isinstance(error, EngineFailure)
        else EngineFailure("engine-crashed", f"raised {describe_error(error)}")
    )
    message = str(failure)
    observer.see(
        [
            Died(
                operation=index,
                message=message.removeprefix("raised "),
                hung=failure.anomaly == "hung",
            )
        ],
        index,
    )
    says = f"{asked}, which every engine must bear; however it {message}"
    finding = _ended(index, says, message, failure.anomaly, observer.seen - 1)
    finding.r = r
    finding.output = failure.output
    observer.findings.append(finding)


def check(history: History, checkers: Iterable[Checker] | None = None) -> Result:
    """Judge a history that somebody recorded."""
    return judge(history.header, history.events, checkers)


def judge(
    header: Header, events: Iterable[Event], checkers: Iterable[Checker] | None = None
) -> Result:
    """Judge what happened on an engine, event by event; none of them is kept.

    Where an operation ends is not written in a history. It may be over where something happens to a
    request; it is over when the first event of a later step comes.

    Raises Stopped, which has the result until then, where the events raise UsageError.
    """
    observer = Observer(header, checkers, keep=False)
    try:
        observer.take(_by_operations(events, observer), -1)
    except UsageError as bad:
        raise Stopped(str(bad), _settled(observer)) from None
    observer.operation_over(-1)
    return _settled(observer)


def _settled(observer: Observer) -> Result:
    """Return the result of a history, without what only its engine could tell to be a
    contradiction.
    """
    result = observer.close(None)
    leave_open(result)
    return result


def _by_operations(events: Iterable[Event], observer: Observer) -> Iterator[Event]:
    """Yield events to an observer, and let it judge between two of them what waits for the end
    of an operation.
    """
    latest = 0
    for event in events:
        kind = type(event)
        # A later step is certain to be behind the operation, the beginning of something is not:
        # there only checks without ground are dropped, and none is decided.
        if event.step > latest:
            observer.operation_over(-1)
            latest = event.step
        elif kind in _MAY_BEGIN:
            observer.checkers.reconsider()
        yield event
        if kind is Submitted or kind is Finished:
            observer.activity.operations += 1
        elif kind is Died:
            assert isinstance(event, Died)
            asked = (
                f"Let the engine carry out operation {event.operation + 1}, which every engine must"
                " bear"
            )
            anomaly = "hung" if event.hung else "engine-crashed"
            says = f"{asked}; however it ended there ({event.message})"
            observer.findings.append(
                _ended(event.operation, says, event.message, anomaly, event.seq)
            )


def _ended(index: int, says: str, message: str, anomaly: str, seq: int) -> Finding:
    what = "did not return from" if anomaly == "hung" else "failed in"
    line = f"the engine {what} operation {index + 1}"
    if place := raised_at(message):
        line += f", at {place}"
    elif anomaly != "hung" and (words := message.strip()):
        line = beginning(printable(f"{line}: {words.splitlines()[0]}"), LINE_MAX)
    return Finding(
        anomaly=anomaly,
        checker="engine",
        sentence=f"{says}: a contradiction.",
        line=line,
        seq=seq,
        op=index,
    )
