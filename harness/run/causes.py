"""Why a trace at answers height fails: what it does that, left out, makes the same request come out right.

One fault hides the others. With its cause a failure can be listed as expected without listing the configuration, and traces can
be drawn without the cause (`avoid`).
"""

from __future__ import annotations

from collections.abc import Sequence

from harness._util.errors import UsageError
from harness.checkers.answers import AnswersAgree
from harness.checkers.finding import Finding
from harness.engines.registry import EngineSpec
from harness.run.answers import runs
from harness.run.execute import attempt
from harness.trace.avoided import AVOIDABLE, BATCH, CACHE
from harness.trace.format import Trace

UNCACHED = "uncached"
"""The control that runs a trace without the cache in its own pool, where an engine has one; else the twin does."""


def find(trace: Trace, spec: EngineSpec, findings: Sequence[Finding]) -> None:
    """Write its cause into each finding about an answer; those of a death or a hang have none.

    The trace is run again once without the cache, and once without each thing that can be avoided.
    """
    asked = [finding for finding in findings if finding.anomaly in AnswersAgree.anomalies]
    if not asked:
        return
    uncached = _still(trace, spec.variant(spec.kind.controls.get(UNCACHED, spec.kind.cold)))
    without = {name: _still(other, spec) for name, (_, avoid) in AVOIDABLE.items() if (other := avoid(trace)) != trace}
    for finding in asked:
        place = finding.anomaly, finding.r
        found = [name for name, still in without.items() if still is not None and place not in still]
        finding.cause = BATCH if uncached is not None and place in uncached else "+".join(found) or CACHE


def _still(trace: Trace, spec: EngineSpec) -> set[tuple[str, str]] | None:
    """Return which requests fail how; None if the trace cannot be run so, or not to its end."""
    try:
        result, bad = attempt(lambda: runs(trace, spec))
    except UsageError:
        return None
    found = {(finding.anomaly, finding.r) for finding in result.findings}
    return None if bad or any(anomaly in ("died", "hung") for anomaly, _ in found) else found
