"""Drives a trace through an engine that only answers, and puts every answer beside that of its
uncached baseline.

The harness spells prompts (`cachewitness.workloads.spelling`) and writes down what it asked and
what the baseline said; the engine says `answer` and nothing else. What came of it is a history like
any other, which `check` can judge again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from msgspec.structs import replace

from cachewitness._util.errors import UsageError
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.checkers.protocol import Checker
from cachewitness.core.driving import (
    LiveRequests,
    Observer,
    applied,
    described,
    failed,
    letting_go,
)
from cachewitness.core.engine import Engine
from cachewitness.core.engine_failure import OwnMistake, describe_error, of_ours
from cachewitness.core.events import Aborted, Answer, Cold, Event, Finished, Submitted
from cachewitness.core.intake import AnswerIntake
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Abort, Finish, Op, Submit, Trace
from cachewitness.engines.registry import EngineSpec
from cachewitness.parity.answers.baseline import (
    Baseline,
    BaselineFailed,
    baseline_of,
    drop,
    refuses_alone,
)
from cachewitness.parity.answers.words import spelling_of
from cachewitness.workloads.spelling import continues


def answered(
    trace: Trace,
    engine: Engine,
    spec: EngineSpec,
    checkers: Iterable[Checker] | None = None,
    *,
    until: Callable[[Finding], bool] | None = None,
    keep: bool = True,
) -> Result:
    """Run a trace at answers level on an engine that was opened as `spec`, and return the judged
    result.

    `until` ends the run with the operation that raised a finding of that kind. Raises UsageError if
    the engine has no baseline, and Stopped as `drive` does.
    """
    return _Talk(trace, engine, spec, checkers, keep=keep).run(until)


def runs(trace: Trace, spec: EngineSpec) -> Result:
    """Run a trace at answers level on a fresh engine, and return the judged result. Raises as
    `answered`.
    """
    return answered(trace, spec.open(trace.header), spec)


class _Talk:
    """One trace under way."""

    def __init__(
        self,
        trace: Trace,
        engine: Engine,
        spec: EngineSpec,
        checkers: Iterable[Checker] | None,
        *,
        keep: bool,
    ) -> None:
        self._trace = trace
        self._engine = engine
        self._spec = spec
        header = described(engine, trace.header)
        answering = header.rules.answering
        if answering is not None:
            answering = replace(answering, inexact=not spec.exact_batches)
            header = replace(header, rules=replace(header.rules, answering=answering))
        self._observer = Observer(header, checkers, keep=keep)
        self._applicable = LiveRequests()
        intake = self._observer.intake
        if answering is None or not isinstance(intake, AnswerIntake):
            raise UsageError(
                f"--engine {spec.text}: does not answer; {trace.header.name} is a trace for answers"
                " level"
            )
        self._intake = intake
        self._spelling = spelling_of(spec, answering)
        self._asked: dict[str, Submitted] = {}
        self._answers: dict[str, Answer] = {}
        self._later: list[Callable[[], bool]] = []
        """What waits until nobody is under way, where the baseline is the same server."""
        self._twin: Baseline | None = None

    def run(self, until: Callable[[Finding], bool] | None) -> Result:
        """Carry all operations out."""
        trace = self._trace
        observer = self._observer
        with letting_go(trace, self._engine, observer):
            for index, asked in enumerate(trace.ops):
                op = self._spelled(asked)
                op = self._applicable.filter(op) if op is not None else None
                if op is not None and not self._carried_out(op, index):
                    break
                if until and any(map(until, observer.findings)):
                    break
            else:
                self._caught_up()
        return observer.close(trace)

    def _spelled(self, op: Op) -> Op | None:
        """Return a submit with the ids of its prompt; None, which is counted, if it continues an
        answer that is not there.
        """
        if not isinstance(op, Submit):
            return op
        answers = {
            r: answer.tokens
            for r, answer in self._answers.items()
            if answer.ended in ("length", "stop")
        }
        tokens = self._spelling.tokens(op.prompt, self._asked, answers)
        activity = self._observer.activity
        goes_on = continues(op.prompt, self._asked)
        activity.continued += goes_on and bool(tokens)
        activity.left_out += goes_on and not tokens
        return replace(op, tokens=tokens) if tokens else None

    def _carried_out(self, op: Op, index: int) -> bool:
        """Carry one operation out and judge what came of it; return whether the engine and its
        baseline are still there.
        """
        observer = self._observer
        events = list[Event]()
        if isinstance(op, Submit):
            self._asked[op.r] = _submitted(op)
            self._note(self._asked[op.r], index)
        over = isinstance(op, Finish | Abort) and op.r in self._answers
        if not over:
            answer = applied(self._engine, op, index, observer)
            if answer is None:
                return False
            events += answer
        for event in events:
            observer.take([event], index)
            if isinstance(event, Answer):
                self._answers[event.r] = event
                if not self._now_or_later(partial(self._compared, event, index)):
                    return False
        if isinstance(op, Finish) or (isinstance(op, Abort) and over):
            self._now_or_later(partial(self._note, Finished(r=op.r), index))
        elif isinstance(op, Abort):
            self._answers.setdefault(op.r, Answer(r=op.r, ended="cancelled"))
            self._now_or_later(partial(self._note, Aborted(r=op.r), index))
        if len(self._answers) == len(self._asked) and not self._caught_up():
            return False
        observer.operation_over(index)
        return True

    def _now_or_later(self, act: Callable[[], bool]) -> bool:
        """Act; where the baseline is the server that others are being answered by, when they are.
        Return what that returns.
        """
        if not self._spec.one_server:
            return act()
        self._later.append(act)
        return True

    def _caught_up(self) -> bool:
        """Do what was left for later; return whether the baseline is still there."""
        later, self._later = self._later, []
        return all(act() for act in later)

    def _note(self, event: Event, index: int) -> bool:
        self._intake.note(event)
        self._observer.take([event], index)
        return True

    def _compared(self, answer: Answer, index: int) -> bool:
        """Ask the baseline for the same answer and judge the two; return whether the baseline is
        still there.
        """
        try:
            if answer.ended == "refused":
                alone = refuses_alone(self._spec, self._trace.header, self._asked[answer.r])
                if alone:
                    self._note(Cold(r=answer.r, tokens=[], refused=True), index)
                return True
            self._twin = self._twin or baseline_of(self._spec, self._trace.header)
            for cold in self._twin.cold(self._asked[answer.r], answer):
                self._note(cold, index)
        except (UsageError, OwnMistake):
            raise
        except Exception as error:
            if not isinstance(error, BaselineFailed) and of_ours(error, self._engine):
                raise OwnMistake(describe_error(error)) from error
            if self._twin is not None:
                drop(self._twin)
            failed(
                self._observer,
                index,
                f"Let the engine answer {answer.r} without its cache",
                error,
                answer.r,
            )
            return False
        return True


def _submitted(op: Submit) -> Submitted:
    return Submitted(
        r=op.r,
        tokens=op.tokens,
        salt=op.salt,
        adapter=op.adapter,
        media=op.media,
        generate=op.generate,
    )
