"""A run as SARIF 2.1.0, for code scanning: a rule for each anomaly, a result for each failure.

A failure has no place in a source file. Its result lies in the stored trace, at the operation that
shows it, or in the report if its trace was not kept: GitHub takes no result without a place. It
names the suite, the trace and the configuration as a logical location. Its fingerprint is of the
anomaly and of the shrunk trace without its name and seed, so that the same defect is the same alert
in the next run, also under another seed.

Source: OASIS, Static Analysis Results Interchange Format 2.1.0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from cachewitness import __version__
from cachewitness._util.indented import indented
from cachewitness.core.checkers.anomalies import BY_NAME
from cachewitness.core.trace_format import Trace
from cachewitness.report.counterexample import message
from cachewitness.report.summary import Failure, Report, Stored

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
FINGERPRINT = "cachewitness/trace/v1"


def render(report: Report, stored: Mapping[str, Stored], file: str = "report.json") -> bytes:
    """Return the run as a SARIF document; `file` is where its report lies. What was not run or
    could not be judged is a notification of the tool.
    """
    failures = sorted(report.failures, key=lambda failure: bool(failure.expected))
    named = [BY_NAME[name] for name in sorted({failure.finding.anomaly for failure in failures})]
    rules = [
        {
            "id": anomaly.name,
            "shortDescription": {"text": anomaly.invariant},
            "fullDescription": {"text": f"{anomaly.invariant}; otherwise {anomaly.implies}"},
            "help": {"text": f"cachewitness explain {anomaly.name}"},
        }
        for anomaly in named
    ]
    run = {
        "tool": {"driver": {"name": "cachewitness", "version": __version__, "rules": rules}},
        "automationDetails": {"id": f"cachewitness/{report.engine}/"},
        "invocations": [_invocation(report)],
        "results": [_result(failure, stored.get(failure.id), file) for failure in failures],
    }
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return indented(document, 1)


def _invocation(report: Report) -> dict[str, Any]:
    notifications = [
        ("error", line)
        for suite in report.suites
        for line in (*suite.crashed, *suite.open, *suite.bad_events)
    ]
    notifications += [("error", f"nothing checked: {line}") for line in report.vacuous]
    notifications += [("note", f"not run: {entry.what}: {entry.why}") for entry in report.not_run]
    notifications += [("note", report.known_list.line)] if report.known_list else []
    return {
        "executionSuccessful": report.exit_code in (0, 1),
        "exitCode": report.exit_code,
        "toolExecutionNotifications": [
            {"level": level, "message": {"text": line}} for level, line in notifications
        ],
    }


def _result(failure: Failure, stored: Stored | None, file: str) -> dict[str, Any]:
    finding = failure.finding
    # The first line of a trace is its header, so operation n stands in line n + 2.
    place = (stored.trace, max(failure.offending, 0) + 2) if stored and stored.trace else (file, 1)
    location: dict[str, Any] = {
        "logicalLocations": [{"fullyQualifiedName": failure.id}],
        "physicalLocation": {
            "artifactLocation": {"uri": quote(place[0])},
            "region": {"startLine": place[1]},
        },
    }
    result: dict[str, Any] = {
        "ruleId": finding.anomaly,
        "level": "note" if failure.expected else "error",
        "message": {
            "text": message(finding) + (f"\n{stored.replay}" if stored and stored.replay else "")
        },
        "locations": [location],
        "partialFingerprints": {FINGERPRINT: fingerprint(finding.anomaly, failure.shrunk)},
    }
    if failure.expected:
        listed = f" ({failure.known})" if failure.known else ""
        result["suppressions"] = [
            {"kind": "external", "justification": f"{failure.expected}{listed}"}
        ]
    return result


def fingerprint(anomaly: str, trace: Trace) -> str:
    """Return a digest of an anomaly and of the trace that shows it, the same under any name,
    seed and story of the trace.
    """
    header = msgspec.structs.replace(trace.header, name="", story="", source="", seed=None)
    return hashlib.sha256(msgspec.json.encode([anomaly, header, *trace.ops])).hexdigest()[:32]
