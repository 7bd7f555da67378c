"""One judged trace as the report of a run, so that everything that shows a run shows it as well."""

from __future__ import annotations

from cachewitness.core.checkers.finding import denied
from cachewitness.core.result import EXIT_NOTHING_CHECKED, Result, exit_code
from cachewitness.core.trace_format import Trace
from cachewitness.report.summary import DISAGREEMENT_NAMES, Failure, Report, SuiteReport


def report_of(
    result: Result, trace: Trace, engine: str, suite: str, *, seconds: float, bad: str = ""
) -> Report:
    """Return a report with the exit code of the trace (`cachewitness.core.result.exit_code`).

    `engine` is its name with its options, `suite` what the run is called, `bad` what was wrong with
    the engine's events. The failure is that of the first finding, or of the first that says that
    the harness's detectors disagree.
    """
    header = result.history.header
    own = SuiteReport(
        name=suite, traces=1, seconds=seconds, activity=result.activity, tallies=result.tallies
    )
    own.crashed = [f"{tally.checker}: {tally.crashed}" for tally in result.tallies if tally.crashed]
    own.open = [f"{tally.checker}: {tally.open}" for tally in result.tallies if tally.open]
    own.bad_events = [bad] if bad else []
    disagreements = [
        finding for finding in result.findings if finding.anomaly in DISAGREEMENT_NAMES
    ]
    for finding in (disagreements or result.findings)[:1]:
        name = f"{suite}:{trace.header.name}@{trace.header.layout.name}"
        own.failures = [Failure.of(name, trace, finding)]
    report = Report(
        engine=engine, engine_version=header.engine_version, suites=[own], seconds=seconds
    )
    report.not_applicable = {
        tally.checker: tally.not_applicable for tally in result.tallies if tally.not_applicable
    }
    if exit_code(result, bad) == EXIT_NOTHING_CHECKED:
        report.vacuous = [
            result.activity.unexercised or "no rule had anything to judge in this trace"
        ]
        report.vacuous = denied(result.tallies) or report.vacuous
    return report
