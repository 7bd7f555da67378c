"""A run as one JSON document, for programs; `cachewitness schema report` prints its schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from cachewitness._util import jsonl, reading
from cachewitness._util.errors import UsageError
from cachewitness._util.indented import indented
from cachewitness.core.checkers.anomalies import BY_NAME
from cachewitness.core.checkers.finding import Tally
from cachewitness.core.result import Activity, Outcome
from cachewitness.report.arm_row import ArmRow
from cachewitness.report.change import Change
from cachewitness.report.control_row import ControlRow
from cachewitness.report.reuse import ReuseComparison, ReuseRow
from cachewitness.report.summary import Failure, KnownList, NotRun, Report, Stored

FORMAT = "cachewitness.report"
VERSION = 2


class FailureEntry(msgspec.Struct, kw_only=True):
    """A failing trace. `operation` counts from 1 in the shrunk trace, 0 if the finding belongs to
    none.

    `line` is what happened in one line, `sentence` the contradiction in full; reports of earlier
    releases have no line. `expected` is the listed reason, empty if the failure was not expected;
    `known` the file of the release's list that has it, empty if none does; `stored` is missing if
    nothing was written.
    """

    id: str
    anomaly: str
    cause: str
    checker: str
    rule: str
    implies: str
    sentence: str
    operation: int
    operations: int
    operations_before_shrinking: int
    expected: str
    known: str
    stored: Stored | None
    line: str = ""


class SuiteEntry(msgspec.Struct, kw_only=True):
    """One suite: what happened and what was judged; `arms` are the lines of cold against cached,
    `controls` those of controls.

    `bad_events` has a line for each trace that was stopped because the engine reported what cannot
    be followed.
    """

    name: str
    verdict: Outcome
    traces: int
    seconds: float
    activity: Activity
    checkers: list[Tally]
    failures: list[FailureEntry]
    crashed: list[str]
    open: list[str]
    bad_events: list[str]
    arms: list[ArmRow]
    controls: list[ControlRow]
    reuse: list[ReuseRow]


class Document(msgspec.Struct, kw_only=True):
    """A whole run. `nothing_to_judge` names rules and suites that had no opportunity;
    `engine_seconds` and `harness_seconds` are processor time, null: not measured. `not_kept` counts
    failures that are named here and were neither shrunk nor written.

    `only` are the options that chose traces, such as `--only PATTERN`; without any, and in reports
    of earlier releases, nothing was left out by one. `held` says in which process an engine ran
    that is not this package's own. `known_list` is that of the release, null if the engine has none
    or it was left out; one without files: this release has no list. `change` is what a change of
    the engine's source touches (`--diff`), and what of it was entered; null if none was named.
    """

    cachewitness: str
    engine: str
    engine_version: str
    held: str
    policy: str
    environment: list[str]
    settings: list[str]
    configurations: list[str]
    seed: int
    verdict: Outcome
    exit_code: int
    suites: list[SuiteEntry]
    checkers: list[Tally]
    not_run: list[NotRun]
    not_applicable: dict[str, str]
    nothing_to_judge: list[str]
    unexpected_passes: list[str]
    unmatched_expected: list[str]
    expired_expected: list[str]
    broken_list: list[str]
    known_list: KnownList | None
    baseline: ReuseComparison | None
    not_kept: int
    interrupted: bool
    operations: int
    seconds: float
    startup_seconds: float
    engine_seconds: float | None
    harness_seconds: float | None
    only: list[str] = []
    change: Change | None = None
    format: str = FORMAT
    version: int = VERSION


def document(
    report: Report, stored: Mapping[str, Stored], configurations: Sequence[str], policy: str
) -> Document:
    """Return the document of a run."""
    from cachewitness import __version__

    return Document(
        cachewitness=__version__,
        engine=report.engine,
        engine_version=report.engine_version,
        held=report.held,
        policy=policy,
        environment=report.environment,
        settings=report.settings,
        configurations=list(configurations),
        seed=report.seed,
        verdict=report.outcome,
        exit_code=report.exit_code,
        suites=[
            SuiteEntry(
                name=suite.name,
                verdict=suite.outcome,
                traces=suite.traces,
                seconds=suite.seconds,
                activity=suite.activity,
                checkers=suite.tallies,
                failures=[entry(failure, stored.get(failure.id)) for failure in suite.failures],
                crashed=suite.crashed,
                open=suite.open,
                bad_events=suite.bad_events,
                arms=suite.arms,
                controls=suite.controls,
                reuse=suite.reuse,
            )
            for suite in report.suites
        ],
        checkers=report.tallies(),
        not_run=report.not_run,
        not_applicable=report.not_applicable,
        nothing_to_judge=report.vacuous,
        unexpected_passes=report.unexpected_passes,
        unmatched_expected=report.unmatched,
        expired_expected=report.expired,
        broken_list=report.broken_list,
        known_list=report.known_list,
        baseline=report.baseline,
        not_kept=report.not_kept,
        interrupted=report.interrupted,
        operations=sum(suite.activity.operations for suite in report.suites),
        seconds=report.seconds,
        startup_seconds=report.startup_seconds,
        engine_seconds=report.engine_seconds,
        harness_seconds=report.harness_seconds,
        only=report.only,
        change=report.change,
    )


def load(path: Path) -> Document:
    """Return the document in a file. Raises UsageError if it cannot be read, or is not one that
    this release reads.
    """
    content = reading.whole(path, remedy="; `cachewitness run --report DIR` writes it")
    try:
        head = msgspec.json.decode(content, type=_Head)
        if (head.format, head.version) != (FORMAT, VERSION):
            named = f"{head.format} {head.version}" if head.format else "no report"
            raise UsageError(f"{path}: is {named}; this release reads {FORMAT} {VERSION}")
        return msgspec.json.decode(content, type=Document)
    except jsonl.UNREADABLE as error:
        raise UsageError(f"{path}: {error}") from None


class _Head(msgspec.Struct):
    format: str = ""
    version: int = 0


def render(whole: Document) -> bytes:
    """Return the document as indented JSON."""
    return indented(whole)


def entry(failure: Failure, stored: Stored | None) -> FailureEntry:
    """Return a failure as a document has it."""
    finding = failure.finding
    anomaly = BY_NAME.get(failure.finding.anomaly)
    return FailureEntry(
        id=failure.id,
        anomaly=finding.anomaly,
        cause=finding.cause,
        checker=finding.checker,
        rule=anomaly.invariant if anomaly else "",
        implies=anomaly.implies if anomaly else "",
        sentence=finding.sentence,
        line=finding.line,
        operation=finding.op + 1,
        operations=len(failure.shrunk.ops),
        operations_before_shrinking=len(failure.trace.ops),
        expected=failure.expected,
        known=failure.known,
        stored=stored,
    )
