"""A campaign: drawn configurations and traces, one after another, until a limit of time or operations, or a failure.

Trace number i of a campaign depends on the seed, on i and on the user's options, never on a clock; operations that the engine
does not support are then left out. So a campaign with a limit of operations runs the same traces as one that its time limit
stopped there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256

import msgspec

from harness._util.errors import EngineBroken, UsageError
from harness.checkers import fresh
from harness.checkers.finding import Finding, idle, merge_tallies
from harness.engines import policy as policies
from harness.engines.registry import EngineSpec
from harness.fuzz.draw import Restriction, draw
from harness.fuzz.watch import Watch
from harness.history.events import Header
from harness.run.execute import attempt, described, drive, seconds_in
from harness.run.lockstep import NAME as DIFFERENTIAL
from harness.run.lockstep import incomparable, lockstep, refused
from harness.run.smaller import smallest
from harness.trace import format as traces
from harness.trace.capabilities import lacking, within
from harness.trace.configurations import Configuration
from harness.trace.format import Height, Trace
from harness.trace.generate import write, write_gallery
from harness.trace.source import Seeded
from harness.verdict.expected import Entry, Expectations
from harness.verdict.result import UNCOUNTED, Result
from harness.verdict.summary import UNFINISHED, Failure, NotRun, Report, SuiteReport

LENGTHS = (30, 60, 60, 120)
"""In operations, of traces; long ones fill pools, short ones leave more to other configurations."""
REFUSED_MAX = 200
"""After so many refusals, and no trace that ran, a campaign gives up."""
RAN_LEAST = 0.1
"""An engine that runs a smaller share of the configurations that are drawn was not checked. One that is for full attention
alone runs 10 of 26, released vLLM 44 of 45."""


@dataclass(frozen=True)
class Plan:
    """What the traces of a campaign depend on. `stream` distinguishes campaigns with the same seed.

    So many of a hundred traces are galleries of images, which are long.
    """

    policy: str
    heights: tuple[Height, ...]
    chosen: Restriction
    seed: int
    stream: str = "campaign"
    galleries: int = 1

    def draw(self, number: int) -> tuple[Configuration, Trace]:
        """Return configuration and trace number so many.

        Raises UsageError if the policy refuses what the user chose.
        """
        source = Seeded(f"{self.stream}/{self.seed}/{number}")
        height = source.choice(self.heights)
        configuration = draw(source, self.policy, height, self.chosen)
        shape, name = configuration.shape(height), f"fuzz-{self.seed}-{number}"
        if source.chance(self.galleries):
            trace = write_gallery(shape, source, name=name)
        else:
            trace = write(shape, source, withdraw=source.chance(20), operations=source.choice(LENGTHS), name=name)
        return configuration, Trace(msgspec.structs.replace(trace.header, seed=self.seed), trace.ops)


def heights_of(engine: EngineSpec, policy: str) -> tuple[Height, ...]:
    """Return the heights at which an engine can follow a policy under the fuzzer's own worker."""
    known = policies.get(policy).heights
    return tuple(height for height in ("manager", "scheduler") if height in engine.kind.heights and height in known)


@dataclass
class Campaign:
    """Runs a plan on an engine. `told` is called after every trace; `report`, `marks` and `digest` are its outcome.

    A failure that `expected` excuses, by its id `fuzz:trace@configuration` and its anomaly, does not end it.
    """

    engine: EngineSpec
    plan: Plan
    told: Callable[[Campaign], None] | None = None
    expected: Expectations = field(default_factory=Expectations)
    on_failure: Callable[[Failure, bool], None] | None = None
    """Told of a failure when it was met, and again when it is as small as it gets."""
    beside: bool = False
    """Run the reference in lock-step beside the engine, where that can be done."""
    marks: Counter[str] = field(default_factory=Counter)
    operations: int = 0
    traces: int = 0

    def __post_init__(self) -> None:
        self.report = Report(engine=self.engine.text, held=self.engine.held, seed=self.plan.seed)
        self._suites = {height: SuiteReport(name=f"fuzz-{height}") for height in self.plan.heights}
        self._left_out: dict[tuple[str, str], NotRun] = {}
        self._apart = incomparable(self.engine, self.plan.policy) if self.beside else ""
        self._refused = 0
        """How many drawn configurations the engine refused."""
        self._digest = sha256()
        self._versions: set[str] = set()

    @property
    def digest(self) -> str:
        """A digest of all traces and their outcomes: equal if and only if two campaigns did the same."""
        return self._digest.hexdigest()[:12]

    def run(self, seconds: float = 0.0, operations: int = 0) -> None:
        """Run until so many seconds have passed or operations have been carried out (0: never), or until something fails.

        What is expected to fail does not end the campaign.

        Building the slowest engine, which for an installed one includes importing it, is not counted.

        Raises UsageError if whatever is drawn is refused.
        """
        started = time.perf_counter()
        number = 0
        try:
            while not (self.failed or (operations and self.operations >= operations)):
                self._one(number)
                number += 1
                if number == REFUSED_MAX and not self.traces:
                    raise UsageError([*self._left_out.values()][-1].why)
                self.report.seconds = time.perf_counter() - started
                if self.told:
                    self.told(self)
                if seconds and self.report.seconds - self.report.startup_seconds >= seconds:
                    break
        except KeyboardInterrupt:
            self.report.interrupted = True
        self.report.seconds = time.perf_counter() - started
        self._conclude()

    @property
    def failed(self) -> bool:
        """Whether a trace failed that was not expected to, or was stopped by events that cannot be followed."""
        return any(suite.outcome in ("fail", "bad events") for suite in self._suites.values())

    def _one(self, number: int) -> None:
        """Run one trace; note why if it is left out."""
        began = time.perf_counter()
        try:
            configuration, trace = self.plan.draw(number)
        except UsageError as error:
            self._leave_out("configurations", str(error))
            return
        try:
            engine = self.engine.open(trace.header)
        except EngineBroken:
            raise
        except UsageError as error:
            self._leave_out("configurations", str(error))
            self._refused += 1
            return
        header = described(engine, trace.header)
        self.report.startup_seconds = max(self.report.startup_seconds, time.perf_counter() - began)
        self._versions.add(header.engine_version)
        for need in lacking(trace, header.capabilities):
            self._leave_out(f"{need} in a trace", header.not_applicable.get(need, "the engine cannot"))
        trace = within(trace, header.capabilities)
        watch = Watch(header, self.marks)
        run = lockstep if self._paired(trace, header) else drive
        result, bad = attempt(lambda: run(trace, engine, checkers=[*fresh(), watch], keep=False))
        if bad:
            self._suites[trace.header.height].bad_events.append(bad)
        self._count(trace, result, time.perf_counter() - began)
        if spent := seconds_in(engine):
            self.report.engine_seconds = (self.report.engine_seconds or 0.0) + spent
        name = f"fuzz:{trace.header.name}@{configuration.name}"
        findings = sorted(result.findings, key=lambda finding: finding.checker == DIFFERENTIAL)  # a rule says more
        if weighed := self.expected.weigh(name, findings):
            self._fail(name, trace, *weighed)

    def _paired(self, trace: Trace, header: Header) -> bool:
        """Whether the reference runs beside the engine in a trace; note why if it was asked for and cannot."""
        if not self.beside:
            return False
        why = self._apart or header.not_applicable.get(DIFFERENTIAL, "") or refused(trace, header)
        if why:
            self._leave_out("lock-step with the reference", why)
        return not why

    def _leave_out(self, what: str, why: str) -> None:
        self._left_out.setdefault((what, why), NotRun(what, why, 0)).count += 1

    def _count(self, trace: Trace, result: Result, seconds: float) -> None:
        suite, activity = self._suites[trace.header.height], result.activity
        suite.traces, suite.seconds = suite.traces + 1, suite.seconds + seconds
        suite.activity.add(activity)
        if activity.lookups and not result.counted:
            self._leave_out(*UNCOUNTED)
        suite.tallies = merge_tallies([*suite.tallies, *result.tallies])
        suite.crashed = sorted({*suite.crashed, *(f"{t.checker}: {t.crashed}" for t in result.tallies if t.crashed)})
        self.traces += 1
        self.operations += activity.operations
        self._digest.update(traces.dump(trace))
        self._digest.update(msgspec.json.encode([activity, [(t.checker, t.opportunities, t.findings) for t in result.tallies]]))

    def _fail(self, name: str, trace: Trace, finding: Finding, entry: Entry | None) -> None:
        """Take note of a failure, and make it smaller unless it was expected."""
        expected = entry.reason if entry else ""
        failure = Failure(id=name, finding=finding, trace=trace, shrunk=trace, offending=finding.op, expected=expected)
        self._suites[trace.header.height].failures.append(failure)
        if entry is None:
            failure.why_long = UNFINISHED
            self._tell(failure, final=False)
            shrink(failure, self.engine)
        self._tell(failure, final=True)

    def _tell(self, failure: Failure, *, final: bool) -> None:
        if self.on_failure:
            self.on_failure(failure, final)

    def _conclude(self) -> None:
        """Fill in the report: what ran, what did not, which rules had nothing to judge."""
        report = self.report
        report.engine_version = ", ".join(sorted(self._versions))
        report.suites = [suite for suite in self._suites.values() if suite.traces]
        for suite in report.suites:
            suite.tallies = [tally for tally in suite.tallies if tally.checker != Watch.name]
        report.not_run = list(self._left_out.values())
        for tally in report.tallies():
            if tally.not_applicable:
                report.not_applicable[tally.checker] = tally.not_applicable
            elif not tally.opportunities and not tally.crashed:
                report.vacuous.append(f"checker {tally.checker} {idle(tally)}")
        if not self.traces:
            report.vacuous.append("no trace ran")
        drawn = self._refused + self.traces
        if self.traces < RAN_LEAST * drawn:
            told = f"the engine refused {self._refused:,} of {drawn:,} drawn configurations, all but {self.traces}"
            report.vacuous.append(f"{told}; draw those that it is for, with --layout and --option")
        report.vacuous += filter(None, [report.activity.mostly_given_up])
        report.take_in(self.expected)


def shrink(failure: Failure, engine: EngineSpec) -> None:
    """Replace the trace of a failure by the smallest one that fails alike."""
    anomaly = failure.finding.anomaly

    def rerun(candidate: Trace, engine: EngineSpec) -> Finding | None:
        def alike(found: Finding) -> bool:
            return found.anomaly == anomaly

        run = lockstep if failure.finding.checker == DIFFERENTIAL else drive
        result, _ = attempt(lambda: run(candidate, engine.open(candidate.header), until=alike, keep=False))
        return next(filter(alike, result.findings), None)

    failure.replace(*smallest(failure.trace, engine, failure.finding, rerun))
