"""Runs suites on an engine and returns a report.

A suite is a stream of traces. Each trace is run on a fresh engine under all checkers; a trace that fails is shrunk and kept.
What was not run is listed with the reason, and a rule that had nothing to judge is never reported as passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from harness._util.errors import EngineBroken, UsageError
from harness.checkers.finding import Finding, Tally, idle, merge_tallies
from harness.engines import policy as policies
from harness.engines.policy import PolicyKind
from harness.engines.protocol import Engine
from harness.engines.registry import EngineSpec
from harness.history.events import Header
from harness.run import causes
from harness.run.answers import answered
from harness.run.execute import attempt, described, drive, seconds_in
from harness.run.lockstep import NAME as DIFFERENTIAL
from harness.run.lockstep import lockstep, refused
from harness.run.selection import ANSWERS, Sample, controls, random_traces, why_not
from harness.run.smaller import smallest
from harness.run.suites import Stream, Suite
from harness.trace.capabilities import lacking, within
from harness.trace.configurations import Configuration
from harness.trace.format import Height, Trace
from harness.trace.shrink import SHORT
from harness.verdict.arm_row import merge_rows
from harness.verdict.compared import Compared
from harness.verdict.control_row import ControlRow, merge_controls
from harness.verdict.expected import Expectations
from harness.verdict.result import UNCOUNTED, Result
from harness.verdict.summary import UNFINISHED, Failure, NotRun, Report, SuiteReport

FAILURES_SHRUNK = 3
"""How many failures of a run are shrunk, the first of each anomaly; the others are reported as they are."""
HUNG_MAX = 3
"""After so many traces on which the engine hangs, a run ends."""

Until = Callable[[Finding], bool]
OnFailure = Callable[[Failure, bool], None]
"""Told of a failure; the second argument says whether it stays as it is."""


def _judged(suite: Suite, trace: Trace, engine: Engine, spec: EngineSpec, until: Until | None = None) -> Result:
    """Run a trace as its suite has it judged."""
    if suite.tensors is not None:
        return suite.tensors.judge(trace, engine, spec)
    if suite.height == ANSWERS:
        return answered(trace, engine, spec, until=until, keep=False)
    return (lockstep if suite.paired else drive)(trace, engine, until=until, keep=False)


@dataclass
class Runner:
    """Runs suites on one engine. `seconds` bounds the endless suites, shared among them; 0 runs a fixed number of traces.

    A failure that `expected` excuses, by its id `suite:trace@configuration` and its anomaly, does not fail the run.
    """

    engine: EngineSpec
    configurations: list[Configuration]
    seed: int = 0
    seconds: float = 0.0
    expected: Expectations = field(default_factory=Expectations)
    policy: str = "vllm"
    chosen_configurations: bool = False
    """The user named the layouts, so that no suite takes others."""
    exact_configurations: bool = False
    """The user named the configurations: what the engine refuses of them is an error, not something left out."""
    full: bool = True
    """Run every trace also on an engine that computes tensors; else a sample of them, unless the user named the layouts."""
    alone: bool = False
    """This is one trace of many: a configuration that the engine refuses is left out, though it is the only one."""
    fail_fast: bool = False
    """Stop at the first failure that is not expected."""
    on_trace: Callable[[str, Trace], None] | None = None
    on_failure: OnFailure | None = None
    """Told of a failure when it was met, and again when it is as small as it gets."""

    def run(self, suites: list[Suite]) -> Report:
        """Run the suites and return the report, which holds what there is so far if the user interrupts the run.

        Raises UsageError if a configuration that the user named does not fit the engine, or none does, or the engine cannot be
        used any more. After a failure that ends the run, and the report says so.
        """
        started = time.perf_counter()
        self._report = Report(engine=self.engine.text, held=self.engine.held, seed=self.seed)
        self._left_out: dict[tuple[str, str], NotRun] = {}
        self._refusals: set[tuple[Height, str]] = set()
        """The configurations that the engine refused, each with the height: at another one it may take it."""
        self._shrunk: set[str] = set()
        self._changed: list[str] = []
        """Configurations that the engine ran, and then refused."""
        try:
            self._suites(suites, policies.get(self.policy))
            self._refuse_if_nothing_fits()
        except KeyboardInterrupt:
            self._report.interrupted = True
        except UsageError as error:
            if self._report.outcome != "fail":
                raise
            self._skip("the rest of the run", str(error))
        self._report.not_run = list(self._left_out.values())
        self._report.seconds = time.perf_counter() - started
        self._conclude(suites)
        return self._report

    def _suites(self, suites: list[Suite], policy: PolicyKind) -> None:
        reasons = {suite.name: why_not(suite, self.engine, policy) for suite in suites}
        endless = sum(suite.endless and not reasons[suite.name] for suite in suites)
        for suite in suites:
            if why := self._over() or reasons[suite.name]:
                self._skip(f"suite {suite.name}", why)
            else:
                report, tallies, started = SuiteReport(name=suite.name), list[Tally](), time.perf_counter()
                self._report.suites.append(report)
                try:
                    self._suite(
                        suite, started + self.seconds / endless if suite.endless and self.seconds else None, report, tallies
                    )
                finally:
                    report.arms = merge_rows(report.arms)
                    report.controls = merge_controls(report.controls)
                    report.tallies = merge_tallies(tallies)
                    report.crashed = sorted({f"{t.checker}: {t.crashed}" for t in tallies if t.crashed})
                    report.seconds = time.perf_counter() - started

    def _suite(self, suite: Suite, deadline: float | None, report: SuiteReport, tallies: list[Tally]) -> None:
        """Run the traces of a suite until there are none, the deadline has come, or the first failure if one is enough."""
        streams = self._streams(suite)
        if self._short:
            taken = Sample(suite.sampled, partial(self._leave_out, suite))
            for index, stream in enumerate(streams):
                stream.traces = taken.of(stream.traces, index)
        rounds, most = 0, random_traces(self.engine, short=self._short)
        while streams:
            for stream in list(streams):
                trace = next(stream.traces, None)
                late = deadline and time.perf_counter() > deadline
                if trace is None or (late and rounds >= (1 if report.traces else most)):
                    streams.remove(stream)
                    continue
                result = self._trace(suite, stream, trace, report)
                if result is not None and stream.control:
                    stream.ran += 1
                    report.controls.append(ControlRow.of(stream.control, result))
                    self._judge(suite, stream, result, report)
                    tallies += [] if self.engine.kind.exact_batches else [tally for tally in result.tallies if tally.crashed]
                elif result is not None:
                    stream.ran += 1
                    report.traces += 1
                    report.activity.add(result.activity)
                    tallies += result.tallies
                    if isinstance(result, Compared):
                        report.arms.append(result.row)
                    self._judge(suite, stream, result, report)
                elif self._refused(suite, stream.configuration):
                    streams.remove(stream)
                if why := self._over():
                    self._skip(f"{suite.name}: further traces", why)
                    return
            rounds += 1
            if suite.endless and deadline is None and rounds >= most:
                break

    @property
    def _short(self) -> bool:
        return self.engine.kind.computes and not self.full and not self.chosen_configurations

    def _streams(self, suite: Suite) -> list[Stream]:
        configurations = [configuration for configuration in self.configurations if configuration.runs_at(suite.height)]
        if suite.tensors is not None:
            return suite.tensors.streams(
                self.engine,
                configurations if self.chosen_configurations else policies.get(self.policy).cold_configurations(),
                self.seed,
            )
        if not configurations:
            self._skip(f"suite {suite.name}", "what the configurations ask for is the scheduler's alone")
        streams = [
            Stream(configuration, self.engine, suite.traces(configuration, suite.height, self.seed))
            for configuration in configurations
        ]
        return streams + (controls(suite, self.engine, configurations, self.seed) if suite.height == ANSWERS else [])

    def _leave_out(self, suite: Suite) -> None:
        why = f"a short run takes one in {suite.sampled} of each configuration, and each at least once; --full takes all"
        self._skip(f"{suite.name}: other traces", why)

    def _over(self) -> str:
        """Return why nothing more is run; empty if something is."""
        if self.fail_fast and self._report.outcome == "fail":
            return "the run stopped at its first failure"
        hung = sum(failure.finding.anomaly == "hung" for failure in self._report.failures)
        return f"the engine hung in {hung} traces, and each takes its deadline" if hung >= HUNG_MAX else ""

    def _refused(self, suite: Suite, configuration: Configuration) -> bool:
        of_suite = any(what == f"suite {suite.name}" for what, _ in self._left_out)
        return of_suite or (suite.height, configuration.name) in self._refusals

    def _refuse_if_nothing_fits(self) -> None:
        """Raise what the engine said to the last configuration if it refused all of them, and nothing else was in the way."""
        refusals = [why for what, why in self._left_out if what.startswith("configuration ")]
        tried = {f"suite {suite.name}" for suite in self._report.suites}
        inapplicable = any(what in tried for what, _ in self._left_out)
        if refusals and not self.alone and not inapplicable and not any(suite.traces for suite in self._report.suites):
            raise UsageError(refusals[-1])

    def _trace(self, suite: Suite, stream: Stream, trace: Trace, report: SuiteReport) -> Result | None:
        """Run one trace; None if the engine cannot."""
        if self.on_trace:
            self.on_trace(suite.name, trace)
        began = time.perf_counter()
        try:
            engine = stream.engine.open(trace.header)
        except EngineBroken:
            raise
        except UsageError as error:
            if suite.tensors is not None:
                arm = trace.header.name.partition("/")[0]
                self._skip(f"{suite.name}: arm {arm} on {stream.configuration.name}", str(error))
                return None
            if self.exact_configurations:
                raise
            self._skip(f"configuration {stream.configuration.name}", str(error))
            self._refusals.add((suite.height, stream.configuration.name))
            if stream.ran:
                after = f"the engine refused it after {stream.ran} of its traces had run: {error}"
                self._changed.append(f"{suite.name}: configuration {stream.configuration.name}: {after}")
            return None
        header = described(engine, trace.header)
        self._report.startup_seconds = max(self._report.startup_seconds, time.perf_counter() - began)
        self._report.engine_version = header.engine_version
        if suite.paired and (why := header.not_applicable.get(DIFFERENTIAL) or refused(trace, header)):
            self._skip(f"suite {suite.name}", why)
            return None
        if suite.tensors is not None and (why := suite.tensors.inapplicable(trace, header)):
            self._skip(f"{suite.name}: arm {trace.header.name.partition('/')[0]} on {stream.configuration.name}", why)
            return None
        for need in trace.header.needs:
            if need not in header.capabilities:
                why = header.not_applicable.get(need, f"engine {self.engine.kind.name} cannot {need}")
                self._skip(f"{suite.name}: traces that need {need}", why)
                return None
        asked = self._within(suite, trace, header)
        result, bad = attempt(lambda: _judged(suite, asked, engine, stream.engine))
        report.bad_events += [bad] if bad else []
        if result.activity.lookups and not result.counted:
            self._skip(*UNCOUNTED)
        spent = seconds_in(engine)
        if spent is not None:
            self._report.engine_seconds = (self._report.engine_seconds or 0.0) + spent
        return result

    def _within(self, suite: Suite, trace: Trace, header: Header) -> Trace:
        """Return the trace without what the engine does not declare, and list what that is."""
        missing = lacking(trace, header.capabilities)
        for need in missing:
            why = header.not_applicable.get(need, f"engine {self.engine.kind.name} does not declare it")
            self._skip(f"{suite.name}: {need} in traces", why)
        return within(trace, header.capabilities) if missing else trace

    def _skip(self, what: str, why: str) -> None:
        entry = self._left_out.setdefault((what, why), NotRun(what, why, 0))
        entry.count += 1

    def _judge(self, suite: Suite, stream: Stream, result: Result, report: SuiteReport) -> None:
        trace, engine = result.trace, stream.engine
        assert trace is not None
        name = f"{suite.name}:{trace.header.name}@{stream.name}"
        if suite.height == ANSWERS:
            causes.find(trace, engine, result.findings)
            causes.leave_open(result, engine)
        weighed = self.expected.weigh(name, result.findings)
        if weighed is None:
            return
        finding, entry = weighed
        expected = entry.reason if entry else ""
        failure = Failure(id=name, finding=finding, trace=trace, shrunk=trace, offending=finding.op, expected=expected)
        failure.engine = engine.text if engine.text != self.engine.text else ""
        report.failures.append(failure)
        if entry is None and finding.anomaly not in self._shrunk and len(self._shrunk) < FAILURES_SHRUNK:
            self._shrunk.add(finding.anomaly)
            failure.why_long = UNFINISHED
            self._tell(failure, final=False)
            cause = finding.cause
            failure.replace(*smallest(trace, engine, finding, partial(self._rerun, suite, finding.anomaly)))
            if suite.height == ANSWERS:
                failure.finding.cause = cause  # of the whole trace, as lists of expected failures name it
        elif entry is None and len(trace.ops) > SHORT:
            failure.why_long = f"not shrunk, since {len(self._shrunk)} others were"
        self._tell(failure, final=True)

    def _tell(self, failure: Failure, *, final: bool) -> None:
        if self.on_failure:
            self.on_failure(failure, final)

    def _rerun(self, suite: Suite, anomaly: str, trace: Trace, engine: EngineSpec) -> Finding | None:
        def alike(finding: Finding) -> bool:
            return finding.anomaly == anomaly

        result, _ = attempt(lambda: _judged(suite, trace, engine.open(trace.header), engine, until=alike))
        return next(filter(alike, result.findings), None)

    def _conclude(self, suites: list[Suite]) -> None:
        report = self._report
        for tally in report.tallies():
            if tally.not_applicable:
                report.not_applicable[tally.checker] = tally.not_applicable
            elif tally.opportunities == 0 and not tally.crashed:
                report.vacuous.append(f"checker {tally.checker} {idle(tally)}")
        report.vacuous += self._changed
        left_out = {what for what, _ in self._left_out}
        arms = [row for suite in report.suites for row in suite.arms]
        report.vacuous += [f"arm {row.arm}: {why}" for row in arms for why in row.missing]
        report.vacuous += [
            f"suite {suite.name} ran no trace"
            for suite in report.suites
            if suite.traces == 0 and f"suite {suite.name}" not in left_out
        ]
        if not any(suite.traces for suite in report.suites):
            report.vacuous.append("no suite ran")
        if not self.fail_fast and (why := self._over()):
            report.vacuous.append(why)
        report.vacuous += filter(None, [report.activity.mostly_given_up])
        report.take_in(self.expected)
