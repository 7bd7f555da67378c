"""A run as rows: one for each suite with its times and counts, one for each failure. Their ids
are the same in every run.
"""

from __future__ import annotations

from typing import Any

from cachewitness.core.result import COUNTS
from cachewitness.report.sarif import fingerprint
from cachewitness.report.summary import Failure, Report

COLUMNS = (
    *(
        "id",
        "kind",
        "suite",
        "engine",
        "engine_version",
        "policy",
        "seed",
        "verdict",
        "seconds",
        "traces",
    ),
    *("anomaly", "cause", "checker", "fingerprint", "expected", "operation"),
    *COUNTS,
)


def rows(report: Report, policy: str) -> list[dict[str, Any]]:
    """Return the rows of a run.

    The `id` of a suite is its name, that of a failure the id of what failed,
    `suite:trace@configuration`, with the anomaly. A `fingerprint` is the same for the same defect
    under every seed; `seconds` differ from run to run.
    """
    same = {
        "engine": report.engine,
        "engine_version": report.engine_version,
        "policy": policy,
        "seed": report.seed,
    }
    found: list[dict[str, Any]] = []
    for suite in report.suites:
        verdict = suite.outcome if suite.traces else "not run"
        counts = {name: getattr(suite.activity, name) for name in COUNTS}
        of_suite = {
            "id": suite.name,
            "kind": "suite",
            "verdict": verdict,
            "seconds": round(suite.seconds, 4),
        }
        found.append({**same, "suite": suite.name, **of_suite, "traces": suite.traces, **counts})
        found += [{**same, "suite": suite.name, **_failure(failure)} for failure in suite.failures]
    return found


def _failure(failure: Failure) -> dict[str, Any]:
    finding = failure.finding
    return {
        "id": f"{failure.id} {finding.anomaly}",
        "kind": "failure",
        "verdict": "expected" if failure.expected else "fail",
        "anomaly": finding.anomaly,
        "cause": finding.cause,
        "checker": finding.checker,
        "fingerprint": fingerprint(finding.anomaly, failure.shrunk),
        "expected": failure.expected,
        "operation": failure.offending + 1,
    }
