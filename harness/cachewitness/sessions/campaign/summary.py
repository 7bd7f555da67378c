"""The summary of a campaign as a document: what ran, what was found, what was not done, and the
verdict.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.core import trace_format as traces
from cachewitness.report.compared import NAME as COLD
from cachewitness.report.summary import NotRun, Stored
from cachewitness.sessions.campaign.build_digest import package
from cachewitness.sessions.campaign.database import without_password
from cachewitness.sessions.campaign.driver import CampaignSettings, Result
from cachewitness.sessions.campaign.store import Store, opened
from cachewitness.sessions.campaign.totals import Distinct, Subject
from cachewitness.sessions.run.judging import explained, way_of
from cachewitness.sessions.run.store import keep_as, replay_command

FORMAT, VERSION = "cachewitness.campaign", 1


class CanaryRow(msgspec.Struct, kw_only=True):
    """The planted fault: how it had to be reported, whether its unit was done, and whether and
    how often it was reported.
    """

    fault: str
    anomaly: str
    checker: str
    ran: bool
    found: bool
    findings: int


class CheckerRow(msgspec.Struct, kw_only=True):
    """What one checker had to judge on one engine."""

    checker: str
    opportunities: int
    findings: int
    not_applicable: str = ""


class SubjectRow(msgspec.Struct, kw_only=True):
    """One engine under one policy."""

    engine: str
    label: str
    policy: str
    versions: list[str]
    exit_code: int
    reasons: list[str]
    traces: int
    operations: int
    findings: int
    suites: dict[str, int]
    checkers: list[CheckerRow]
    marks: dict[str, int]
    not_run: list[NotRun]


class FindingRow(msgspec.Struct, kw_only=True):
    """A finding whose trace was made small; the command replays it. `traces` minimal traces have
    this signature.

    `line` is what happened in one line, `sentence` the contradiction in full. `offending` is the
    operation of it that fails, counted from 1; `stored` where the trace and its history were put
    for a page. `unread` says why the trace cannot be read or run; then the operations are 0, or the
    command is empty.
    """

    signature: str
    anomaly: str
    checker: str
    level: str
    kinds: list[str]
    sentence: str
    operations: int
    engines: list[str]
    traces: int
    trace: str
    replay: str
    why_long: str = ""
    offending: int = 0
    cause: str = ""
    stored: Stored | None = None
    unread: str = ""
    line: str = ""


class ClassRow(msgspec.Struct, kw_only=True):
    """The findings of one class as they were met, shrunk or not: how many, on which engines, and
    the id of the first.
    """

    anomaly: str
    checker: str
    level: str
    kinds: list[str]
    met: int
    engines: list[str]
    first: str


class Document(msgspec.Struct, kw_only=True):
    """What came of a campaign. `digest` is of every unit's outcome, so it is the same for any
    number of workers.
    """

    format: str = FORMAT
    version: int = VERSION
    name: str
    campaign: str
    package: str
    exit_code: int
    reasons: list[str]
    self_test: CanaryRow
    units: int
    done: int
    done_before: int
    not_done: list[str]
    workers_lost: int
    traces: int
    operations: int
    seconds: float
    digest: str
    subjects: list[SubjectRow]
    findings: list[FindingRow]
    classes: list[ClassRow]
    database: str


def document(result: Result, settings: CampaignSettings) -> Document:
    """Return the summary of a campaign."""
    totals, progress, digest = result
    mutant = totals.planned.self_test.mutant
    self_test = totals.self_test
    return Document(
        name=totals.planned.name,
        campaign=totals.planned.id,
        package=package(),
        exit_code=totals.exit_code,
        reasons=totals.reasons,
        self_test=CanaryRow(
            fault=mutant.name,
            anomaly=mutant.anomaly,
            checker=mutant.checker,
            ran=totals.canary_ran,
            found=self_test is not None,
            findings=self_test.met if self_test else 0,
        ),
        units=progress.units,
        done=progress.done,
        done_before=progress.before,
        not_done=totals.undone,
        workers_lost=progress.lost,
        traces=totals.traces,
        operations=totals.activity.operations,
        seconds=progress.seconds,
        digest=digest,
        subjects=[_subject(one) for one in totals.subjects.values()],
        findings=[_finding(one, opened(settings.traces)) for one in totals.distinct.values()],
        classes=[ClassRow(**msgspec.structs.asdict(one)) for one in totals.found.values()],
        database=without_password(settings.database),
    )


def _subject(subject: Subject) -> SubjectRow:
    report = subject.report
    checkers = [
        CheckerRow(
            checker=one.checker,
            opportunities=one.opportunities,
            findings=one.findings,
            not_applicable=one.not_applicable,
        )
        for one in report.tallies()
    ]
    return SubjectRow(
        engine=subject.engine,
        label=subject.label,
        policy=subject.policy,
        versions=subject.versions,
        exit_code=subject.exit_code,
        reasons=subject.reasons,
        traces=sum(suite.traces for suite in report.suites),
        operations=report.activity.operations,
        findings=subject.found,
        suites={suite.name: suite.traces for suite in report.suites},
        checkers=checkers,
        marks=dict(sorted(subject.marks.items())),
        not_run=subject.not_run,
    )


def _finding(one: Distinct, store: Store) -> FindingRow:
    small = one.small
    finding = one.small.finding
    place = store.place(small.trace)
    operations = 0
    replay = ""
    unread = ""
    way = "cold" if one.suite == COLD else way_of(finding)
    try:
        operations = len(traces.parse(store.get(small.trace).splitlines(), small.trace).ops)
        replay = replay_command(Path(place), one.engines[0].spec(), way)
    except UsageError as error:
        unread = str(error)
    return FindingRow(
        signature=one.signature,
        anomaly=finding.anomaly,
        checker=finding.checker,
        level=small.level,
        kinds=small.kinds,
        sentence=finding.sentence,
        line=finding.line,
        operations=operations,
        engines=[engine.text for engine in one.engines],
        traces=one.traces,
        trace=place,
        replay=replay,
        why_long=one.why_long,
        offending=finding.op + 1,
        cause=finding.cause,
        unread=unread,
    )


def keep(
    result: Result, settings: CampaignSettings, whole: Document, folder: Path, most: int
) -> list[str]:
    """Run the minimal traces of so many findings again, keep them with their histories, and note in
    the document where.

    Those of other classes come first. Returns why a trace or a history is not there, a line for
    each.
    """
    store = opened(settings.traces)
    problems = []
    for row in of_each_class(whole.findings)[:most]:
        one = result.totals.distinct[row.signature]
        try:
            small = traces.parse(store.get(one.small.trace).splitlines(), one.small.trace)
            spec = one.engines[0].spec()
        except UsageError as error:
            problems.append(f"{row.signature}: {error}")
            continue
        ran = partial(explained, small, spec, way_of(one.small.finding))
        row.stored, problem = keep_as(
            folder, f"{row.signature}-{row.anomaly}", small, ran, row.replay
        )
        problems += [f"{row.signature}: {problem}"] if problem else []
    return problems


def of_each_class(findings: Iterable[FindingRow]) -> list[FindingRow]:
    """Return findings so that the first of each anomaly by each checker comes before the others."""
    seen: set[tuple[str, str]] = set()
    first: list[FindingRow] = []
    others: list[FindingRow] = []
    for row in findings:
        (others if (row.anomaly, row.checker) in seen else first).append(row)
        seen.add((row.anomaly, row.checker))
    return first + others
