"""What a checker is: handlers that see (ledger, event) and return contradictions.

A handler is called *before* the ledger takes the event in. What may come in any order within an
operation is judged when the operation is over: a handler leaves a doubt, which is asked then. Every
checker counts its opportunities: the occasions on which it really had something to judge. A checker
that crashes is removed from the run and makes the verdict unknown; findings of the others stand.

An invalid read is diagnosed once, by the set, and the finding goes to the checker that answers
for its anomaly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from cachewitness.core.checkers.diagnose import diagnose
from cachewitness.core.checkers.divergence import Blind
from cachewitness.core.checkers.finding import Finding, Measured, Reuse, Tally
from cachewitness.core.declared import applies_all_the_same
from cachewitness.core.events import Event, Header, Read
from cachewitness.core.ledger.collection import Collector
from cachewitness.core.ledger.ledger import Ledger

Found = Iterable[Finding] | None
Handler = Callable[[Ledger, Any], Found]
DeferredCheck = Callable[[Ledger], Finding | None]
"""Asked when the operation is over: the finding, with the event that it is about, if it stands
then."""


class Checker:
    """Base of all checkers. `name`, `summary` and `anomalies` are what `ls checkers` shows."""

    name: ClassVar[str]
    summary: ClassVar[str]
    anomalies: ClassVar[tuple[str, ...]]
    invariant: ClassVar[str] = ""
    """The name under which an engine may declare the rule not applicable; the checker's own name if
    empty."""
    lacks: ClassVar[str] = ""
    """What a run without an opportunity lacked; if empty, the events that the checker looks at."""
    answers_for_reads: ClassVar[bool] = False
    """Whether an invalid read that is diagnosed as one of `anomalies` is this checker's finding."""

    def __init__(self) -> None:
        self.opportunities = 0
        self.acceptable = 0
        self.measured: list[Measured] = []
        self.excused: Counter[str] = Counter()
        """By what the engine declares: how often that kept the rule from being judged."""
        self.bounds: dict[str, int] = {}
        """By what the engine declares beyond what caches need: how often the rule could be judged
        all the same."""
        self.reuse: Reuse | None = None
        self.deferred: list[DeferredCheck] = []

    def not_applicable(self, header: Header) -> str:
        """Return why the rule does not apply to this engine; empty if it does."""
        if header.level == "answers":
            return "the engine answers, and tells no pages"
        return header.not_applicable.get(self.invariant or self.name, "")

    def handlers(self) -> dict[type, Handler]:
        """Return which events the checker looks at, and with what."""
        raise NotImplementedError

    def note_invalid_read(self, ledger: Ledger, event: Read) -> None:
        """Take note of an invalid read, whoever answers for it; valid reads are not shown here."""

    def operation_over(self, ledger: Ledger) -> Found:
        """Ask the deferred checks: the engine has reported all of the operation."""
        deferred, self.deferred = self.deferred, []
        return [finding for doubt in deferred if (finding := doubt(ledger)) is not None]

    def forget(self, ledger: Ledger, gone: Collection[int]) -> None:
        """Forget prefixes whose nodes stand for nothing now, and requests that the ledger does
        not know any more.
        """

    def at_rest(self, ledger: Ledger) -> Found:
        """Judge what can only be judged at rest, as if the last event were behind; it may be
        asked again and again.
        """
        return None

    def close(self, ledger: Ledger) -> Found:
        """Judge the end, after the last event."""
        return self.at_rest(ledger)


class Watch(NamedTuple):
    """Who sees an event of a kind, in this order: checkers, the ledger, and somebody who looks
    at the ledger behind it.
    """

    asked: list[tuple[Checker, Handler]]
    move: Callable[[Any], None] | None
    after: Callable[[Any], None] | None


class CheckerSet:
    """Several checkers over one ledger: feed it every event once."""

    def __init__(self, header: Header, checkers: Iterable[Checker]) -> None:
        self.ledger = Ledger(header)
        self.collector = Collector(self.ledger)
        self.tallies: dict[str, Tally] = {}
        self._active: list[Checker] = []
        self._handlers: dict[type, list[tuple[Checker, Handler]]] = {}
        self._watches: dict[type, Watch] = {}
        """Of the kinds of events that came."""
        self._after: Mapping[type[Event], Callable[[Any], None]] = {}
        self._answering: dict[str, Checker] = {}
        """Per anomaly of an invalid read: the checker whose finding it is."""
        for checker in checkers:
            reason = checker.not_applicable(header)
            tally = Tally(checker=checker.name, not_applicable=reason)
            self.tallies[checker.name] = tally
            rule = checker.invariant or checker.name
            if reason and applies_all_the_same(header, rule):
                tally.denied = reason
                tally.rule = rule
            if not reason:
                self._active.append(checker)
                if checker.answers_for_reads:
                    self._answering.update(dict.fromkeys(checker.anomalies, checker))
                for kind, handler in checker.handlers().items():
                    self._handlers.setdefault(kind, []).append((checker, handler))

    def show_after(self, handlers: Mapping[type[Event], Callable[[Any], None]]) -> None:
        """Show events of some kinds to handlers when the ledger is past them; call it before
        the first event.
        """
        self._after = handlers

    def observe(self, event: Event) -> Sequence[Finding]:
        """Show the event to every checker that looks at its kind, then move the ledger; return
        what was found.
        """
        ledger = self.ledger
        kind = type(event)
        asked, move, after = self._watches.get(kind) or self._watch(kind)
        findings: Sequence[Finding] = ()
        for checker, handler in asked:
            try:
                if found := handler(ledger, event):
                    findings = [*findings, *self._signed_all(found, checker, event.seq)]
            except Blind as why:
                self._stop(checker).open = str(why)
            except Exception as error:
                self._crashed(checker, f"{type(error).__name__}: {error} (at event {event.seq})")
        if kind is Read and ledger.before(event).invalid:  # type: ignore[arg-type]
            findings = [*findings, *self._judge_invalid_read(event)]  # type: ignore[arg-type]
        if move is not None:
            move(event)
        ledger.applied = event
        if after is not None:
            after(event)
        return findings

    def _watch(self, kind: type[Event]) -> Watch:
        watch = Watch(
            self._handlers.get(kind, []), self.ledger.moves.get(kind), self._after.get(kind)
        )
        self._watches[kind] = watch
        return watch

    def reconsider(self) -> None:
        """Drop deferred checks that find nothing any more, where an operation may be over."""
        for checker in self._active:
            if checker.deferred:
                checker.deferred = [
                    doubt for doubt in checker.deferred if doubt(self.ledger) is not None
                ]

    def operation_over(self) -> list[Finding]:
        """Let every checker ask its deferred checks, forget what is over, and return what was
        found.
        """
        findings: list[Finding] = []
        for checker in [checker for checker in self._active if checker.deferred]:
            try:
                found = checker.operation_over(self.ledger) or ()
                findings += [self._signed(finding, checker, finding.seq) for finding in found]
            except Exception as error:
                self._crashed(
                    checker, f"{type(error).__name__}: {error} (at the end of an operation)"
                )
        if self.collector.due:
            gone = self.collector.collect()
            for checker in self._active:
                checker.forget(self.ledger, gone)
        return findings

    def at_rest(self) -> list[Finding]:
        """Let every checker judge what it would judge if the last event were behind, and return
        what was found.
        """
        return self._asked(lambda checker: checker.at_rest(self.ledger), "at rest")

    def _asked(self, judge: Callable[[Checker], Found], when: str) -> list[Finding]:
        """Return what checkers find that are asked by themselves, and not about an event."""
        findings: list[Finding] = []
        for checker in list(self._active):
            try:
                findings += self._signed_all(judge(checker) or (), checker, -1)
            except Exception as error:
                self._crashed(checker, f"{type(error).__name__}: {error} ({when})")
        return findings

    def _judge_invalid_read(self, read: Read) -> Sequence[Finding]:
        for checker in list(self._active):
            try:
                checker.note_invalid_read(self.ledger, read)
            except Exception as error:
                self._crashed(checker, f"{type(error).__name__}: {error} (at event {read.seq})")
        try:
            finding = diagnose(self.ledger, read) if self._answering else None
        except Exception as error:
            for checker in [checker for checker in self._active if checker.answers_for_reads]:
                self._crashed(checker, f"{type(error).__name__}: {error} (at event {read.seq})")
            return ()
        answering = self._answering.get(finding.anomaly) if finding is not None else None
        return (
            (self._signed(finding, answering, read.seq),)
            if finding is not None and answering is not None
            else ()
        )

    def _signed_all(self, found: Iterable[Finding], checker: Checker, seq: int) -> list[Finding]:
        return [self._signed(finding, checker, seq) for finding in found]

    def close(self) -> list[Finding]:
        """Let every checker judge the end, and complete the tallies."""
        findings = self._asked(lambda checker: checker.close(self.ledger), "at the end")
        for checker in self._active:
            tally = self.tallies[checker.name]
            tally.opportunities = max(checker.opportunities, tally.findings)
            tally.acceptable = checker.acceptable
            tally.measured = checker.measured
            tally.reuse = checker.reuse
            tally.excused = dict(+checker.excused)
            tally.bounds = checker.bounds
            if not tally.opportunities:
                kinds: list[Any] = [
                    kind for kind in checker.handlers() if kind not in self._watches
                ]
                tally.missing = (
                    [checker.lacks]
                    if checker.lacks
                    else [kind.__struct_config__.tag for kind in kinds]
                )
        return findings

    def _signed(self, finding: Finding, checker: Checker, seq: int) -> Finding:
        assert finding.anomaly in checker.anomalies, (
            f"{checker.name} does not list {finding.anomaly}"
        )
        finding.checker = checker.name
        finding.seq = seq
        self.tallies[checker.name].findings += 1
        return finding

    def _crashed(self, checker: Checker, message: str) -> None:
        self._stop(checker).crashed = message

    def _stop(self, checker: Checker) -> Tally:
        """Ask a checker no more; return its tally."""
        tally = self.tallies[checker.name]
        tally.opportunities = checker.opportunities
        self._active.remove(checker)
        self._answering = {
            anomaly: other for anomaly, other in self._answering.items() if other is not checker
        }
        for kind, entries in self._handlers.items():
            self._handlers[kind] = [entry for entry in entries if entry[0] is not checker]
        for kind in self._watches:
            self._watch(kind)
        return tally
