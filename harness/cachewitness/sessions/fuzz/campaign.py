"""A campaign: drawn configurations and traces, one after another, until a limit of time or
operations, or a failure.

Trace number i of a campaign depends on the seed, on i and on the user's options, never on a clock;
operations that the engine does not support are then left out. So a campaign with a limit of
operations runs the same traces as one that its time limit stopped there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count

from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness._util.worker_pool import WorkerDied, WorkerPool
from cachewitness.core.checkers.finding import Finding, merge_tallies, unjudged
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Level, Trace
from cachewitness.engines import policy as policies
from cachewitness.engines.registry import EngineSpec
from cachewitness.report.expected import Entry, Expectations
from cachewitness.report.refusals import without_layout
from cachewitness.report.summary import DIED, UNFINISHED, Failure, NotRun, Report, SuiteReport
from cachewitness.sessions.fuzz.trial import FuzzTrial, FuzzTrials, Plan
from cachewitness.sessions.fuzz.watch import Watch
from cachewitness.sessions.run.judging import way_of
from cachewitness.sessions.run.minimize import shrink

REFUSED_MAX = 200
"""After so many refusals, and no trace that ran, a campaign gives up."""
RAN_LEAST = 0.1
"""An engine that runs a smaller share of the configurations that are drawn was not checked. One
that is for full attention alone runs 10 of 26, released vLLM 44 of 45."""
BY_CHANCE = 1e-6
"""So unlikely a run of refusals is not put down to what was drawn."""


def by_chance(in_a_row: int, refused: int, ran: int) -> bool:
    """Whether so many refusals in a row may come of what was drawn, where an engine refused and ran
    so many others.

    The probability of a refusal is estimated by Laplace's rule of succession, so that few others
    prove little.
    """
    return ((refused + 1) / (refused + ran + 2)) ** in_a_row >= BY_CHANCE


def levels_of(engine: EngineSpec, policy: str) -> tuple[Level, ...]:
    """Return the levels at which an engine can follow a policy under the fuzzer's own worker."""
    known = policies.get(policy).levels
    return tuple(
        level
        for level in ("manager", "scheduler")
        if level in engine.kind.levels and level in known
    )


@dataclass
class Campaign:
    """Runs a plan on an engine. `on_trace` is called after every trace; `report`, `marks` and
    `digest` are its outcome.

    A failure that `expected` excuses, by its id `fuzz:trace@configuration` and its anomaly, does
    not end it.
    """

    engine: EngineSpec
    plan: Plan
    on_trace: Callable[[Campaign], None] | None = None
    expected: Expectations = field(default_factory=Expectations)
    on_failure: Callable[[Failure, bool], None] | None = None
    """Told of a failure when it was met, and again when it is as small as it gets."""
    beside: bool = False
    """Run the reference in lock-step beside the engine, where that can be done."""
    jobs: int = 1
    """How many traces are run at a time, each in a process of its own. What comes of the campaign
    does not depend on it."""
    on_died: Callable[[str], None] | None = None
    """Told of each process that died and was replaced."""
    shrinks: bool = True
    """Make the traces of failures small; else they stay as they were met."""
    marks: Counter[str] = field(default_factory=Counter)
    operations: int = 0
    traces: int = 0

    def __post_init__(self) -> None:
        self.report = Report(engine=self.engine.text, held=self.engine.held, seed=self.plan.seed)
        self._suites = {level: SuiteReport(name=f"fuzz-{level}") for level in self.plan.levels}
        self._left_out: dict[tuple[str, str], NotRun] = {}
        self.refused = 0
        """How many drawn configurations the engine refused."""
        self._refused_last = 0
        """How many it refused since a trace ran."""
        self.missing = ""
        """What must be installed for the engine, if that is why it refused one."""
        self._digest = sha256()
        self._versions: set[str] = set()

    @property
    def digest(self) -> str:
        """A digest of all traces and their outcomes: equal if and only if two campaigns did the
        same.
        """
        return self._digest.hexdigest()[:12]

    def run(self, seconds: float = 0.0, operations: int = 0) -> None:
        """Run until so many seconds have passed or operations have been carried out (0: never), or
        until something fails.

        What is expected to fail does not end the campaign.

        Building the slowest engine, which for an installed one includes importing it, is not
        counted.

        Raises UsageError if whatever is drawn is refused, with why most of it is.
        """
        started = time.perf_counter()
        trials = FuzzTrials(self.engine, self.plan, self.beside)
        try:
            with WorkerPool(self.jobs, trials.run, self.on_died) as pool:
                try:
                    self._run(pool, started, seconds, operations)
                except KeyboardInterrupt:
                    self.report.interrupted = True
                    self._take_failures(pool)
        except KeyboardInterrupt:
            self.report.interrupted = True
        self.report.seconds = time.perf_counter() - started
        self._conclude()

    def only(self, first: int, last: int) -> None:
        """Run the traces `first` to `last` − 1, one after another in this process, whatever fails.

        Raises EngineBroken if the engine cannot be built, BadEvents if its header is none.
        """
        started = time.perf_counter()
        trials = FuzzTrials(self.engine, self.plan, self.beside)
        try:
            for number in range(first, last):
                self._take(trials.run(number))
        finally:
            self.report.seconds = time.perf_counter() - started
            self._conclude()

    def _run(
        self, pool: WorkerPool[int, FuzzTrial], started: float, seconds: float, operations: int
    ) -> None:
        """Take in one trace after another, in the order of their numbers, while a few further
        ones are run.
        """
        for number, task in pool.in_order(count()):
            try:
                self._take(task.result())
            except WorkerDied as died:
                suite = next(iter(self._suites.values()))
                suite.crashed.append(f"{DIED}{number} of the campaign: {died}")
                return
            if number + 1 == REFUSED_MAX and not self.traces:
                raise UsageError(max(self._left_out.values(), key=lambda one: one.count).why)
            self.report.seconds = time.perf_counter() - started
            if self.on_trace:
                self.on_trace(self)
            late = seconds and self.report.seconds - self.report.startup_seconds >= seconds
            if late or self.failed or (operations and self.operations >= operations):
                return

    def _take_failures(self, pool: WorkerPool[int, FuzzTrial]) -> None:
        """Take in what was found already in traces whose turn has not come, as it was met."""
        self.shrinks = False
        for _, trial in pool.finished():
            if trial.result and trial.result.findings:
                self._take(trial)

    @property
    def failed(self) -> bool:
        """Whether a trace failed that was not expected to, or was stopped by events that cannot
        be followed.
        """
        return any(suite.outcome in ("fail", "bad events") for suite in self._suites.values())

    def _take(self, trial: FuzzTrial) -> None:
        """Take in what came of one number."""
        for what, why in trial.left_out:
            why = without_layout(why)
            self._left_out.setdefault((what, why), NotRun(what, why, 0)).count += 1
        refused = trial.refusal is not None
        self.refused += refused
        self._refused_last = 0 if trial.result else self._refused_last + refused
        if isinstance(trial.refusal, EngineMissing):
            self.missing = self.missing or str(trial.refusal)
        self.report.startup_seconds = max(self.report.startup_seconds, trial.startup_seconds)
        if result := trial.result:
            assert result.trace is not None
            self.expected.settle(trial.version)
            self.expected.admit(trial.name, result.tallies)
            self._count(trial, result, self._suites[result.trace.header.level])
            if weighed := self.expected.weigh(trial.name, result.findings):
                self._fail(trial.name, result.trace, *weighed)

    def _count(self, trial: FuzzTrial, result: Result, suite: SuiteReport) -> None:
        suite.traces, suite.seconds = suite.traces + 1, suite.seconds + trial.seconds
        suite.activity.add(result.activity)
        suite.tallies = merge_tallies([*suite.tallies, *result.tallies])
        suite.crashed = sorted(
            {*suite.crashed, *(f"{t.checker}: {t.crashed}" for t in result.tallies if t.crashed)}
        )
        suite.bad_events += [trial.bad] if trial.bad else []
        self.report.spend(trial.engine_seconds, trial.harness_seconds)
        self._versions.add(trial.version)
        self.marks.update(trial.marks)
        self.traces += 1
        self.operations += result.activity.operations
        self._digest.update(trial.digested)

    def _fail(self, name: str, trace: Trace, finding: Finding, entry: Entry | None) -> None:
        """Take note of a failure, and make it smaller unless it was expected."""
        failure = Failure.of(name, trace, finding, entry)
        self._suites[trace.header.level].failures.append(failure)
        if entry is None and self.shrinks:
            failure.why_long = UNFINISHED
            self._tell(failure, final=False)
            shrink(
                failure,
                self.engine,
                way_of(finding),
                excused=lambda found: self.expected.excuses(name, found),
            )
        self._tell(failure, final=True)

    def _tell(self, failure: Failure, *, final: bool) -> None:
        if self.on_failure:
            self.on_failure(failure, final)

    def _conclude(self) -> None:
        """Fill in the report: what ran, what did not, which rules had nothing to judge."""
        report = self.report
        report.engine_version = ", ".join(sorted(self._versions))
        report.suites = [suite for suite in self._suites.values() if suite.traces or suite.crashed]
        for suite in report.suites:
            suite.tallies = [tally for tally in suite.tallies if tally.checker != Watch.name]
        report.not_run = list(self._left_out.values())
        for tally in report.tallies():
            if tally.not_applicable:
                report.not_applicable[tally.checker] = tally.not_applicable
        report.vacuous += unjudged(report.tallies())
        if not self.traces:
            report.vacuous.append("no trace ran")
        drawn = self.refused + self.traces
        if self.traces < RAN_LEAST * drawn:
            refusals = (
                f"the engine refused {self.refused:,} of {drawn:,} drawn configurations, all but"
                f" {self.traces}"
            )
            report.vacuous.append(
                f"{refusals}; draw those that it is for, with --layout and --option"
            )
        before = self.refused - self._refused_last
        if self.traces and not by_chance(self._refused_last, before, self.traces):
            refusals = f"the engine refused the last {self._refused_last:,} drawn configurations"
            report.vacuous.append(f"{refusals}, and {before:,} of {before + self.traces:,} before")
        report.vacuous += report.activity.shortfalls(self.engine.tier)
        report.take_in(self.expected)
