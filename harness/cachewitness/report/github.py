"""Failures as annotations of GitHub Actions: one workflow command per line.

The escapes are those of the runner (actions/toolkit, `packages/core/src/command.ts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cachewitness.report.counterexample import message
from cachewitness.report.summary import Report, Stored


def commands(report: Report, stored: Mapping[str, Stored]) -> Iterator[str]:
    """Yield one error for each failure that was not expected, and one for each thing that was
    not judged.
    """
    for suite in report.suites:
        for failure in suite.failures:
            if not failure.expected:
                kept = stored.get(failure.id)
                text = message(failure.finding) + (f"\n{kept.replay}" if kept else "")
                yield (
                    "::error"
                    f" title={_property(f'{failure.finding.anomaly} in {failure.id}')}::{_data(text)}"  # noqa: E501
                )
        for crash in suite.crashed:
            yield f"::error title=a checker crashed::{_data(crash)}"
        for line in suite.open:
            yield f"::error title=not judged::{_data(line)}"
        for line in suite.bad_events[:1]:
            yield f"::error title=the engine reports events that cannot be followed::{_data(line)}"
    for what in report.vacuous:
        yield f"::error title=nothing checked::{_data(what)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
