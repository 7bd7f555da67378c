"""The summary of a run: its suites, its failures, what was left out and why, and the exit code."""

from __future__ import annotations

from pathlib import PurePath
from shlex import quote

import msgspec

from cachewitness.core.checkers.anomalies import DISAGREEMENTS, gravity
from cachewitness.core.checkers.finding import Finding, Tally, merge_tallies
from cachewitness.core.result import (
    EXIT_FAIL,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_NOTHING_CHECKED,
    EXIT_PASS,
    EXIT_UNKNOWN,
    EXIT_USAGE,
    Activity,
    Outcome,
    merge,
)
from cachewitness.core.trace_format import Trace
from cachewitness.report.arm_row import ArmRow
from cachewitness.report.change import Change
from cachewitness.report.control_row import ControlRow
from cachewitness.report.expected import Entry, Expectations
from cachewitness.report.reuse import ReuseComparison, ReuseRow

DISAGREEMENT_NAMES = {anomaly.name for anomaly in DISAGREEMENTS}


DIED = "trace "
"""How a line of `crashed` begins that is about a trace, whose process died whenever it was run;
others name a checker."""
LISTS = "fixtures/expected"
"""Where the lists of releases are, in a checkout and beside the modules of a wheel."""
UNFINISHED = "interrupted before it was shrunk"
"""Why the trace of a failure is long if nothing came after it."""


class Failure(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A trace that failed: its id, the finding, and the smallest trace that fails alike.

    `expected` is the listed reason, `known` the list of a release that has it, if it is not the
    user's. `why_long` says why that trace is no shorter than a person
    reads at a glance. `engine` is what it failed on, if that is not the run's engine as the user
    named it (another precision, say). `shrunk_cause` is that of the smallest trace where it is not
    the cause in the finding, which is the whole trace's.
    """

    id: str
    finding: Finding
    trace: Trace
    shrunk: Trace
    offending: int = -1
    expected: str = ""
    known: str = ""
    engine: str = ""
    why_long: str = ""
    shrunk_cause: str = ""

    @classmethod
    def of(cls, name: str, trace: Trace, finding: Finding, entry: Entry | None = None) -> Failure:
        """Return a trace that failed as it was met, and what is listed of it."""
        return cls(
            id=name,
            finding=finding,
            trace=trace,
            shrunk=trace,
            offending=finding.op,
            expected=entry.reason if entry else "",
            known=entry.shipped if entry else "",
        )

    def replace(self, shrunk: Trace, finding: Finding, why_long: str) -> None:
        """Take a smaller trace that fails alike, its finding, and why it is not smaller still."""
        self.shrunk = shrunk
        self.finding = finding
        self.offending = finding.op
        self.why_long = why_long


class NotRun(msgspec.Struct):
    """Something that was left out, and why; `count` traces of it."""

    what: str
    why: str
    count: int = 1


class KnownList(msgspec.Struct, kw_only=True):
    """The lists of what the release is known to do against a rule: the release in words, their
    files, and how many findings they excused; no file: the release has no list.
    """

    release: str
    files: list[str] = []
    findings: int = 0

    @property
    def line(self) -> str:
        """The lists in one line."""
        if not self.files:
            return f"known of {self.release}: no list"
        lists = "list" if len(self.files) == 1 else "lists"
        found = "1 finding" if self.findings == 1 else f"{self.findings:,} findings"
        return f"known of {self.release}: {found}, {lists} {', '.join(self.files)}"

    @property
    def if_unchanged(self) -> str:
        """What a failure means that the lists do not have; empty without a list."""
        return (
            f"if this is {self.release} as it was released, what its list does not have is a new"
            " finding, or a false alarm of cachewitness: please report it"
            if self.files
            else ""
        )


class SuiteReport(msgspec.Struct, kw_only=True):
    """The result of one suite; `arms` are the lines of cold against cached, `controls` what ran
    beside an engine that answers, `reuse` what was restored on each configuration.

    `crashed` has a line for each checker that crashed, and for a trace that ended every process
    that ran it; `open` one for each that says what it could not judge. `bad_events` has a line for
    each trace that was stopped because the engine reported what cannot be followed.
    """

    name: str
    traces: int = 0
    seconds: float = 0.0
    activity: Activity = msgspec.field(default_factory=Activity)
    tallies: list[Tally] = []
    failures: list[Failure] = []
    crashed: list[str] = []
    open: list[str] = []
    bad_events: list[str] = []
    arms: list[ArmRow] = []
    controls: list[ControlRow] = []
    reuse: list[ReuseRow] = []

    @property
    def outcome(self) -> Outcome:
        """Return fail for a failure that was not expected, then what kept it from being judged,
        else pass.
        """
        if any(not failure.expected for failure in self.failures):
            return "fail"
        if self.bad_events:
            return "bad events"
        return "unknown" if self.crashed or self.open else "pass"


class Report(msgspec.Struct, kw_only=True):
    """The result of a run. `vacuous` names rules that apply and had no opportunity, and suites that
    ran nothing.

    Of the list of expected failures, nothing failed as `unexpected_passes` say, `unmatched` fit no
    trace, the day of `expired` is over; `broken_list` says why the list itself fails the run.
    `known_list` is that of the release; None if the engine has none, or it was left out. `baseline`
    is the comparison with an earlier report, None if none was asked for. `not_kept` failures are
    named, and neither shrunk nor written. `interrupted`: the user stopped it before its end.
    `change` is what a change touches and was entered of it, None if none was named.
    `environment` names the settings that came from the environment, `settings` which of its
    system's defaults the run replaces, and how it sizes what is not replaced. `only` are the
    options that left traces out. `held` says in which
    process an engine ran that is not this package's own. `blind` says which planted fault was
    missed.
    """

    engine: str
    engine_version: str = ""
    environment: list[str] = []
    settings: list[str] = []
    only: list[str] = []
    held: str = ""
    seed: int = 0
    suites: list[SuiteReport] = []
    not_run: list[NotRun] = []
    not_applicable: dict[str, str] = {}
    vacuous: list[str] = []
    unexpected_passes: list[str] = []
    unmatched: list[str] = []
    expired: list[str] = []
    broken_list: list[str] = []
    known_list: KnownList | None = None
    baseline: ReuseComparison | None = None
    change: Change | None = None
    not_kept: int = 0
    interrupted: bool = False
    blind: str = ""
    seconds: float = 0.0
    startup_seconds: float = 0.0
    engine_seconds: float | None = None
    harness_seconds: float | None = None

    @property
    def outcome(self) -> Outcome:
        """Return the worst outcome of the suites; fail if less is restored than a baseline asks
        for.
        """
        lost: list[Outcome] = ["fail"] if self.baseline and self.baseline.losses else []
        return merge([*lost, *(suite.outcome for suite in self.suites)])

    @property
    def exit_code(self) -> int:
        """Return the exit code that the outcome stands for; that of a crash if the harness's own
        detectors disagree.

        So it is if a planted fault was missed, since then nothing that was said counts. A run that
        was interrupted has a code of its own, whatever it had found.
        """
        if self.blind:
            return EXIT_INTERNAL
        if self.interrupted:
            return EXIT_INTERRUPTED
        if self.disagreements:
            return EXIT_INTERNAL
        if self.outcome == "fail":
            return EXIT_FAIL
        if self.broken_list or self.outcome == "bad events":
            return EXIT_USAGE
        if self.outcome == "unknown":
            return EXIT_UNKNOWN
        return EXIT_NOTHING_CHECKED if self.vacuous else EXIT_PASS

    @property
    def failures(self) -> list[Failure]:
        """Return the failures of all suites."""
        return [failure for suite in self.suites for failure in suite.failures]

    @property
    def activity(self) -> Activity:
        """Return what happened in all suites."""
        total = Activity()
        for suite in self.suites:
            total.add(suite.activity)
        return total

    def spend(self, engine_seconds: float | None, harness_seconds: float | None) -> None:
        """Add the processor time of a trace, as far as it is known."""
        if engine_seconds is not None:
            self.engine_seconds = (self.engine_seconds or 0.0) + engine_seconds
        if harness_seconds is not None:
            self.harness_seconds = (self.harness_seconds or 0.0) + harness_seconds

    def take_in(self, expected: Expectations) -> None:
        """Note what the run made of the list of expected failures."""
        self.unexpected_passes = [entry.text for entry in expected.passed]
        self.unmatched = [entry.text for entry in expected.unmatched]
        self.expired = [f"{entry.text} until={entry.until}" for entry in expected.expired]
        self.broken_list = expected.broken
        if (known := expected.known) is not None:
            self.known_list = KnownList(
                release=known.release,
                files=[str(PurePath(LISTS, name)) for name in known.files],
                findings=sum(bool(failure.known) for failure in self.failures),
            )

    @property
    def disagreements(self) -> list[Failure]:
        """Return the failures that are the harness's own: two of its detectors disagree."""
        return [
            failure
            for failure in self.failures
            if failure.finding.anomaly in DISAGREEMENT_NAMES and not failure.expected
        ]

    @property
    def bad_events(self) -> list[str]:
        """Return what was said of the traces that were stopped because of what the engine
        reported.
        """
        return [line for suite in self.suites for line in suite.bad_events]

    def tallies(self) -> list[Tally]:
        """Return the checkers' tallies over all suites."""
        return merge_tallies([tally for suite in self.suites for tally in suite.tallies])


class Stored(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Where a failure was put, and the command that shows it again; `output`: what the engine's
    process had printed. `starts` are, by operation of the trace, the numbers of the first events in
    the history.
    """

    trace: str
    replay: str
    whole_trace: str = ""
    history: str = ""
    output: str = ""
    starts: list[int] = []

    @property
    def folder(self) -> str:
        """The folder of the report that the failure is kept under, as the run was given it."""
        return str(PurePath(self.trace).parent.parent)

    @property
    def portable(self) -> str:
        """The command with `"$DIR"` for that folder, which its user may move and rename; as it is
        if it does not name the trace.
        """
        path = PurePath(self.trace)
        within = str(PurePath(path.parent.name, path.name))
        return self.replay.replace(f" {quote(self.trace)} ", f' "$DIR"/{quote(within)} ', 1)


def shown(report: Report) -> list[Failure]:
    """Return the failures that are printed in full: the first of each anomaly that was not
    expected, the gravest in front.
    """
    first: dict[str, Failure] = {}
    for failure in sorted(report.failures, key=lambda failure: gravity(failure.finding)):
        if not failure.expected:
            first.setdefault(failure.finding.anomaly, failure)
    return list(first.values())
