"""Runs suites on an engine and returns a report.

A suite is a stream of traces. Each trace is run on a fresh engine under all checkers; a trace that
fails is shrunk and kept. What was not run is listed with the reason, and a rule that had nothing to
judge is never reported as passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field

from cachewitness._util.errors import EngineMissing, UsageError
from cachewitness._util.worker_pool import Task, WorkerDied, WorkerPool
from cachewitness.core.checkers.finding import Tally, merge_tallies, unjudged
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Level, Trace
from cachewitness.engines import policy as policies
from cachewitness.engines.policy import PolicyKind
from cachewitness.engines.registry import EngineSpec
from cachewitness.parity.answers import causes
from cachewitness.report.arm_row import merge_rows
from cachewitness.report.baseline import Baseline
from cachewitness.report.compared import Compared
from cachewitness.report.control_row import ControlRow, merge_controls
from cachewitness.report.expected import Expectations, KnownOf
from cachewitness.report.summary import DIED, UNFINISHED, Failure, NotRun, Report, SuiteReport
from cachewitness.sessions.change.measured import Measured
from cachewitness.sessions.run.ceiling import RANDOM
from cachewitness.sessions.run.choice import Choice
from cachewitness.sessions.run.minimize import shrink
from cachewitness.sessions.run.progress import RunProgress
from cachewitness.sessions.run.selection import ANSWERS, why_not
from cachewitness.sessions.run.streams import Streams
from cachewitness.sessions.run.suites import Stream, Suite
from cachewitness.sessions.run.trial import InTurn, SuiteTrace, SuiteTrial, SuiteTrials
from cachewitness.workloads.avoided import AVOID
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.shrink import SHORT

FAILURES_SHRUNK = 3
"""How many failures of a run are shrunk, the first of each anomaly; the others are reported as they
are."""
TELL_S = 5.0
"""A trace that takes longer is told of again after so many seconds."""
HUNG_MAX = 3
"""After so many traces on which the engine hangs, a run ends."""
FIRST_HERE = 4
"""Where one failure is enough, so many traces are run before further processes, each with an engine
of its own, are started."""

OnFailure = Callable[[Failure, bool], None]
"""Told of a failure; the second argument says whether it stays as it is."""


@dataclass
class Runner:
    """Runs suites on one engine. `seconds` bounds the endless suites, shared among them; 0 runs a
    fixed number of traces.

    A failure that `expected` excuses, by its id `suite:trace@configuration` and its anomaly, does
    not fail the run.
    """

    engine: EngineSpec
    configurations: list[Configuration]
    seed: int = 0
    seconds: float = 0.0
    expected: Expectations = field(default_factory=Expectations)
    policy: str = "vllm"
    baseline: Baseline | None = None
    """An earlier report, of which no more than a share of restored tokens may be missing."""
    chosen_configurations: bool = False
    """The user named the layouts, so that no suite takes others."""
    chosen_suites: bool = False
    """The user named the suites, so that one of which nothing ran was not checked."""
    exact_configurations: bool = False
    """The user named the configurations: what the engine refuses of them is an error, not something
    left out."""
    full: bool = True
    """Run every trace also on an engine that computes tensors; else a sample of them, unless the
    user named the layouts."""
    alone: bool = False
    """This is one trace of many: a configuration that the engine refuses is left out, though it is
    the only one."""
    shrunk: int = FAILURES_SHRUNK
    """How many failures are shrunk, the first of each anomaly."""
    attempts: int | None = None
    """How many smaller traces are tried for each of them; None: as many as is usual for the
    engine."""
    fail_fast: bool = False
    """Stop at the first failure that is not expected."""
    jobs: int = 1
    """How many traces are run at a time, each in a process of its own, with the same outcome; 1 if
    `engine.one_at_a_time`."""
    on_died: Callable[[str], None] | None = None
    """Told of each process that died and was replaced."""
    on_trace: Callable[[RunProgress], None] | None = None
    """Told of each trace that is begun."""
    on_failure: OnFailure | None = None
    """Told of a failure when it was met, and again when it is as small as it gets."""
    on_suite: Callable[[SuiteReport, int, int], None] | None = None
    """Told of each suite that has ended: what came of it, and which of how many it is."""
    on_step: Callable[[Callable[[], Report]], None] | None = None
    """Given what returns the report so far, after each trace and each attempt at a smaller one."""
    choice: Choice = field(default_factory=Choice)
    """Which traces are run, by their ids, and which of them first."""
    change: Measured | None = None
    """A change of the engine's source: what is run first for it, and what is entered of it."""
    known_beside: Callable[[EngineSpec, str], KnownOf | None] | None = None
    """What the release is known for on an engine with further options, by its version."""

    def run(self, suites: list[Suite]) -> Report:
        """Run the suites and return the report, which holds what there is so far if the user
        interrupts the run.

        Raises UsageError if a configuration that the user named does not fit the engine, or none
        does, or the engine cannot be used any more. After a failure that ends the run, and the
        report says so.
        """
        self._started = time.perf_counter()
        self._tallies: list[Tally] = []
        self._report = Report(
            engine=self.engine.text,
            held=self.engine.held,
            seed=self.seed,
            only=self.choice.words,
        )
        self._left_out: dict[tuple[str, str], NotRun] = {}
        self.ran: set[tuple[Level, str]] = set()
        self.refusals: set[tuple[Level, str]] = set()
        """The configurations that the engine ran, and refused, each with the level: at another one
        it may take it."""
        self.missing = ""
        """What must be installed for the engine, if that is why it refused one."""
        self._refusal = ""
        """What the engine said to the last configuration that it refused; not what a control did,
        which may need more than the engine itself."""
        self._unpaired: dict[str, dict[str, str]] = {}
        """By suite: the configurations on which the reference cannot run beside the engine, with
        the reasons."""
        self._shrunk: set[str] = set()
        self.changed: list[str] = []
        """Configurations that the engine ran, and then refused; stories of which what they are
        about was not asked."""
        self._streams = Streams(
            engine=self.engine,
            configurations=self.configurations,
            seed=self.seed,
            policy=self.policy,
            full=self.full,
            chosen_configurations=self.chosen_configurations,
            exact_configurations=self.exact_configurations,
            choice=self.choice,
            change=self.change,
            skip=self._skip,
        )
        if self.change:
            named = {one.suite for one in self.change.first}
            suites = sorted(suites, key=lambda suite: suite.name not in named)
        trials = SuiteTrials({suite.name: suite for suite in suites}, self.engine)
        try:
            # Where one failure is enough, it mostly comes of the first traces, and is shrunk on
            # processes that are there then.
            here = FIRST_HERE if self.fail_fast and self.engine.isolation is not None else 0
            with WorkerPool(self.jobs, trials.run, self.on_died, here=here) as self._crew:
                self._suites(suites, policies.get(self.policy))
            self._refuse_if_nothing_fits()
        except WorkerDied as died:
            self._skip("the rest of the run", str(died))
        except KeyboardInterrupt:
            self._report.interrupted = True
        except UsageError as error:
            if self._report.outcome != "fail":
                raise
            self._skip("the rest of the run", str(error))
        self._report.not_run = list(self._left_out.values())
        self._report.seconds = time.perf_counter() - self._started
        self._conclude(suites)
        return self._report

    def so_far(self) -> Report:
        """Return the report as it would be if the user interrupted the run now."""
        report = copy(self._report)
        report.change = self.change.report() if self.change else None
        report.interrupted = True
        report.seconds = time.perf_counter() - self._started
        report.not_run = list(self._left_out.values())
        if report.suites and self._tallies:
            running = copy(report.suites[-1])
            running.tallies = merge_tallies(self._tallies)
            report.suites = [*report.suites[:-1], running]
        report.take_in(self.expected)
        return report

    def _step(self) -> None:
        if self.on_step:
            self.on_step(self.so_far)

    def _suites(self, suites: list[Suite], policy: PolicyKind) -> None:
        reasons = {suite.name: why_not(suite, self.engine, policy) for suite in suites}
        left = [suite for suite in suites if not reasons[suite.name]]
        endless = sum(suite.endless for suite in left)
        self._progress = self._streams.planned(left, self.seconds) if self.on_trace else None
        running = [suite.name for suite in left]
        for suite in suites:
            if why := self._stop_reason() or reasons[suite.name]:
                self._skip(f"suite {suite.name}", why)
            else:
                report = SuiteReport(name=suite.name)
                self._own: dict[tuple[str, str], int] = {}
                self._of_controls: list[tuple[ControlRow, tuple[str, str], Result]] = []
                self._tallies = tallies = list[Tally]()
                started = time.perf_counter()
                self._report.suites.append(report)
                if self._progress:
                    self._progress.enter(suite.name)
                try:
                    self._suite(
                        suite,
                        (
                            started + self.seconds / endless
                            if suite.endless and self.seconds
                            else None
                        ),
                        report,
                        tallies,
                    )
                except WorkerDied as died:
                    report.crashed.append(str(died))
                    raise
                # Also when a worker died: what the suite did until then is in the report.
                finally:
                    report.arms = merge_rows(report.arms)
                    self._compare_controls()
                    report.controls = merge_controls(report.controls)
                    report.reuse = [row for row in report.reuse if row.traces]
                    report.tallies = merge_tallies(tallies)
                    self._tell_unpaired(report)
                    report.crashed = sorted(
                        {
                            *report.crashed,
                            *(f"{t.checker}: {t.crashed}" for t in tallies if t.crashed),
                        }
                    )
                    report.open = sorted({f"{t.checker}: {t.open}" for t in tallies if t.open})
                    report.seconds = time.perf_counter() - started
                    self._tallies = []
                if self.on_suite:
                    self.on_suite(report, running.index(suite.name) + 1, len(running))

    def _suite(
        self, suite: Suite, deadline: float | None, report: SuiteReport, tallies: list[Tally]
    ) -> None:
        """Run the traces of a suite until there are none, the deadline has come, or the first
        failure if one is enough. Raises WorkerDied if one ends the process that runs it.

        Controls share the time of an endless suite. Elsewhere they come last, so that a failure is
        met soon. What failed when it was run last comes before everything else, and what enters a
        change comes next.
        """
        first, streams = self._streams.of(suite, deadline)
        report.reuse = [stream.reuse for stream in streams if not stream.control]
        last = [stream for stream in streams if stream.control and not suite.endless]
        for together in (
            first,
            [stream for stream in streams if suite.endless or not stream.control],
            last,
        ):
            for stream, trace, begun in self._in_turn(suite, together, deadline):
                try:
                    trial = self._waited_for(begun)
                except WorkerDied as died:
                    raise WorkerDied(
                        f"{DIED}{suite.name}:{trace.header.name}@{stream.name}: {died}"
                    ) from None
                result = self._trace(suite, stream, trace, trial, report)
                if result is not None:
                    self._take_in(suite, stream, result, report, tallies)
                self._step()
                if why := self._stop_reason():
                    self._skip(f"{suite.name}: further traces", why)
                    return

    def _waited_for(self, begun: Task[SuiteTrace, SuiteTrial]) -> SuiteTrial:
        """Return what came of a trace, and tell how far the run is while another process is at it.
        Raises WorkerDied if it ends two of them.
        """
        if self.on_trace and self._progress:
            while not begun.wait(TELL_S):
                self.on_trace(self._progress)
        return begun.result()

    def _in_turn(
        self, suite: Suite, streams: list[Stream], deadline: float | None
    ) -> Iterator[tuple[Stream, Trace, Task[SuiteTrace, SuiteTrial]]]:
        """Yield the traces of streams, one of each after the other, with what was begun of them;
        of a stream that was refused no more.
        """
        turns = InTurn(self._crew, suite, self.engine, streams)
        rounds = 0
        while streams:
            for stream in list(streams):
                begun = turns.take(stream)
                # Every stream gets its first traces even behind the deadline: a configuration that
                # never ran would make the run vacuous.
                late = deadline and time.perf_counter() > deadline
                over = begun is None or (late and (stream.ran or rounds >= self._streams.most))
                if begun is not None and not over:
                    if self.on_trace and self._progress:
                        self._progress.begun += 1
                        self.on_trace(self._progress)
                    yield stream, *begun
                if over or stream.refused:
                    streams.remove(stream)
                    turns.drop(stream)
            rounds += 1

    def _take_in(
        self,
        suite: Suite,
        stream: Stream,
        result: Result,
        report: SuiteReport,
        tallies: list[Tally],
    ) -> None:
        """Take in the result of one trace."""
        stream.ran += 1
        place = _place(stream, result.trace)
        if stream.control:
            row = ControlRow.of(stream.control, result)
            report.controls.append(row)
            self._of_controls.append((row, place, result))
            self._judge(suite, stream, result, report)
            # What the checkers judge of a control is no evidence about the cache; of their tallies
            # only what was not judged counts.
            if not self.engine.exact_batches:
                tallies += [tally for tally in result.tallies if tally.unjudged]
        else:
            self.ran.add((suite.level, stream.name))
            report.traces += 1
            report.activity.add(result.activity)
            stream.reuse.add(result)
            self._own[place] = result.activity.hit_tokens
            tallies += result.tallies
            if isinstance(result, Compared):
                report.arms.append(result.row)
            self._judge(suite, stream, result, report)

    def _compare_controls(self) -> None:
        """Note of each trace of a control what it restored, and what the engine itself did on it,
        before or afterwards.
        """
        for row, place, result in self._of_controls:
            if place in self._own:
                row.tokens += result.activity.hit_tokens
                row.own += self._own[place]

    def _stop_reason(self) -> str:
        """Return why nothing more is run; empty if something is."""
        if self.fail_fast and self._report.outcome == "fail":
            return "the run stopped at its first failure"
        if self.fail_fast and self._report.bad_events:
            return "the run stopped at the first events that cannot be followed"
        return self._hangs()

    def _hangs(self) -> str:
        """Return that the engine hung too often to go on, whatever a list excuses; empty if it
        did not.
        """
        hung = sum(failure.finding.anomaly == "hung" for failure in self._report.failures)
        return (
            f"the engine hung in {hung} traces, and each takes its deadline"
            if hung >= HUNG_MAX
            else ""
        )

    def _tell_unpaired(self, report: SuiteReport) -> None:
        """List what the reference could not run beside the engine: the suite, if nothing else
        was left of it.
        """
        for name, why in self._unpaired.get(report.name, {}).items():
            self._skip(
                f"{report.name}: configuration {name}" if report.traces else f"suite {report.name}",
                why,
            )

    def _refuse_if_nothing_fits(self) -> None:
        """Raise what the engine said to the last configuration if it refused all of them, and
        nothing else was in the way.
        """
        tried = {f"suite {suite.name}" for suite in self._report.suites}
        inapplicable = any(what in tried for what, _ in self._left_out)
        if (
            self._refusal
            and not self.alone
            and not inapplicable
            and not any(suite.traces for suite in self._report.suites)
        ):
            raise UsageError(self._refusal)

    def _trace(
        self,
        suite: Suite,
        stream: Stream,
        trace: Trace,
        trial: SuiteTrial,
        report: SuiteReport,
    ) -> Result | None:
        """Take in what came of one trace; return its result, None if it was not run."""
        self._report.startup_seconds = max(self._report.startup_seconds, trial.startup_seconds)
        if trial.refusal is not None:
            self._take_refusal(suite, stream, trace, trial.refusal)
            return None
        self._report.engine_version = trial.version
        self.expected.settle(trial.version)
        if trial.inapplicable:
            self._skip(
                f"{suite.name}: arm {_arm(trace)} on {stream.configuration.name}",
                trial.inapplicable,
            )
        for what, why in trial.left_out:
            self._skip(what, why)
        if trial.unpaired:
            self._unpaired.setdefault(suite.name, {})[stream.configuration.name] = trial.unpaired
            stream.refused = True
        report.bad_events += [trial.bad] if trial.bad else []
        self._report.spend(trial.engine_seconds, trial.harness_seconds)
        if self.change and trial.result is not None and not stream.control:
            self.change.take(suite.name, stream.name, trial.entered)
        return trial.result

    def _take_refusal(
        self, suite: Suite, stream: Stream, trace: Trace, refusal: UsageError
    ) -> None:
        """Take note that the engine refused a trace, or raise that if the user named the
        configuration.
        """
        if suite.tensors is not None:
            self._skip(
                f"{suite.name}: arm {_arm(trace)} on {stream.configuration.name}", str(refusal)
            )
            return
        if self.exact_configurations:
            raise refusal
        if stream.beside:
            self._skip(f"{suite.name}: configuration {stream.name}", str(refusal))
            stream.refused = True
            return
        self._skip(f"configuration {stream.configuration.name}", str(refusal))
        stream.refused = True
        where = (suite.level, stream.name)
        if not stream.control:
            self._refusal = str(refusal)
            self.missing = self._refusal if isinstance(refusal, EngineMissing) else self.missing
            self.refusals.add(where)
        if stream.ran or (where in self.ran and not stream.control):
            after = (
                f"after {stream.ran} of its traces had run"
                if stream.ran
                else "after another suite had run on it"
            )
            self.changed.append(
                f"{suite.name}: configuration {stream.configuration.name}: the engine refused it"
                f" {after}: {refusal}"
            )

    def _skip(self, what: str, why: str) -> None:
        entry = self._left_out.setdefault((what, why), NotRun(what, why, 0))
        entry.count += 1

    def _judge(self, suite: Suite, stream: Stream, result: Result, report: SuiteReport) -> None:
        trace = result.trace
        engine = stream.engine
        assert trace is not None
        name = f"{suite.name}:{trace.header.name}@{stream.name}"
        self.choice.ran.add(name)
        drawn = suite.endless or trace.header.name == RANDOM
        if result.activity.unexercised and not drawn and not stream.control:
            self.changed.append(f"{name}: {result.activity.unexercised}")
        self.expected.admit(name, result.tallies)
        known = self._known_of(stream)
        weighed = self.expected.weigh(name, result.findings, known)
        if weighed is None:
            return
        finding, entry = weighed
        failure = Failure.of(name, trace, finding, entry)
        failure.engine = engine.text if engine.text != self.engine.text else ""
        report.failures.append(failure)
        if (
            entry is None
            and finding.anomaly not in self._shrunk
            and len(self._shrunk) < self.shrunk
        ):
            self._shrunk.add(finding.anomaly)
            failure.why_long = UNFINISHED
            self._tell(failure, final=False)
            avoid = str(stream.configuration.options.get(AVOID, ""))
            shrink(
                failure,
                engine,
                suite.way,
                excused=lambda found: self.expected.excuses(name, found, known),
                avoid=avoid,
                attempts=self.attempts,
                on_try=self._step,
            )
            if suite.level == ANSWERS:
                _with_causes(failure, engine, finding.cause)
        elif entry is None and len(trace.ops) > SHORT:
            failure.why_long = f"not shrunk, since {len(self._shrunk)} others were"
        self._tell(failure, final=True)

    def _known_of(self, stream: Stream) -> KnownOf | None:
        """Return what the release is known for on an engine with further options; None for the
        run's.
        """
        if not stream.beside or self.known_beside is None:
            return None
        known = self.known_beside(stream.engine, self._report.engine_version)
        self.expected.beside(known)
        return known

    def _tell(self, failure: Failure, *, final: bool) -> None:
        if self.on_failure:
            self.on_failure(failure, final)

    def _conclude(self, suites: list[Suite]) -> None:
        report = self._report
        for tally in report.tallies():
            if tally.not_applicable:
                report.not_applicable[tally.checker] = tally.not_applicable
        self._conclude_unjudged()
        report.vacuous += [*self.changed, *(f"{what} fits no trace" for what in self._unmatched())]
        left_out = {what for what, _ in self._left_out}
        arms = [row for suite in report.suites for row in suite.arms]
        report.vacuous += [f"arm {row.arm}: {why}" for row in arms for why in row.missing]
        report.vacuous += [
            f"suite {suite.name} ran no trace"
            for suite in report.suites
            if suite.traces == 0
            and f"suite {suite.name}" not in left_out
            and not self.choice.narrows
        ]
        if not any(suite.traces for suite in report.suites):
            report.vacuous.append("no suite ran")
        # A suite that the user chose must run even where leaving it out would be lawful otherwise.
        ran = {suite.name for suite in report.suites if suite.traces}
        if self.chosen_suites:
            report.vacuous += [
                f"suite {suite.name} was asked for and was not run"
                for suite in suites
                if suite.name not in ran
            ]
        if why := self._hangs():
            report.vacuous.append(why)
        if self.baseline:
            report.baseline = self.baseline.compare([(s.name, s.reuse) for s in report.suites])
            if not report.baseline.tokens_before:
                report.vacuous.append(
                    f"baseline {self.baseline.file}: no trace was run again of which it says that"
                    " anything was restored"
                )
        report.vacuous += report.activity.shortfalls(self.engine.tier)
        if self.change:
            report.change = self.change.report()
            report.vacuous += report.change.unchecked
        report.take_in(self.expected)

    def _conclude_unjudged(self) -> None:
        """Note which rules had nothing to judge. Where only some traces were run, most rules have
        not; then it counts only if none had.
        """
        report = self._report
        tallies = report.tallies()
        if not self.choice.narrows or not any(tally.opportunities for tally in tallies):
            report.vacuous += unjudged(tallies)
            return
        why = f"{', '.join(self.choice.words)} runs too few traces for it"
        report.not_run += [NotRun(what, why) for what in unjudged(tallies)]

    def _unmatched(self) -> list[str]:
        """Return the options that were to choose traces and chose none; nobody can tell of a run
        that was stopped.
        """
        stopped = self._report.interrupted or self.fail_fast
        return [] if stopped else self.choice.unmatched


def _place(stream: Stream, trace: Trace | None) -> tuple[str, str]:
    """Return the configuration and the name of a trace, which a control has too."""
    assert trace is not None, "a suite runs traces"
    return stream.configuration.name, trace.header.name


def _with_causes(failure: Failure, engine: EngineSpec, cause: str) -> None:
    """Keep the cause of the whole trace, which lists of expected failures name; add that of the
    smallest if it is another.
    """
    if len(failure.shrunk.ops) < len(failure.trace.ops):
        causes.find(failure.shrunk, engine, [failure.finding])
        failure.shrunk_cause = failure.finding.cause if failure.finding.cause != cause else ""
    failure.finding.cause = cause


def _arm(trace: Trace) -> str:
    return trace.header.name.partition("/")[0]
