"""Why a trace at answers level fails: what it does that, left out, makes the same request come out
right.

One fault hides the others. With its cause a failure can be listed as expected without listing the
configuration, and traces can be drawn without the cause (`avoid`).
"""

from __future__ import annotations

from collections.abc import Sequence

from cachewitness._util.errors import UsageError
from cachewitness.core.checkers.answers import BATCH, DIFFERS, UNLIKE, AnswersAgree
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.driving import attempt
from cachewitness.core.engine_failure import EngineFailure
from cachewitness.core.events import Cold
from cachewitness.core.open_findings import DECODING, leave_open
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Trace
from cachewitness.engines.answers_level import AnswersLevel
from cachewitness.engines.registry import EngineSpec
from cachewitness.parity.answers.baseline import BaselineFailed, baseline_of, drop
from cachewitness.parity.answers.compare import runs
from cachewitness.workloads.avoided import (
    AVOIDABLE,
    CACHE,
    CONTINUATIONS,
    PRESSURE,
    without_aborts,
    without_company,
)

UNCACHED = "uncached"
"""The control that runs a trace without the cache in its own pool, where an engine has one; else
the baseline does."""
REPEATS = 4
"""So often a trace is run without the cache where answers may depend on the batch."""


def explain(result: Result, spec: EngineSpec) -> None:
    """Find the causes of what a trace at answers level came to, and take out what is no
    contradiction. Raises as `runs`.

    A history that was kept has the causes behind it, so that whoever judges it again comes to the
    same.
    """
    if result.trace is None or result.trace.header.level != "answers":
        return
    find(result.trace, spec, result.findings)
    for finding in result.findings:
        event = (
            result.history.events[finding.seq]
            if 0 <= finding.seq < len(result.history.events)
            else None
        )
        if isinstance(event, Cold):
            event.cause = finding.cause
    leave_open(result)


def find(trace: Trace, spec: EngineSpec, findings: Sequence[Finding]) -> None:
    """Write its cause into each finding about an answer; those of a death or a hang have none.

    The trace is run again once without the cache, and once without each thing that can be avoided.
    """
    asked = [
        finding
        for finding in findings
        if finding.anomaly in AnswersAgree.anomalies and finding.anomaly != UNLIKE
    ]
    level = spec.kind.answers_level
    if not asked or level is None:
        return
    controls = spec.kind.controls.options if spec.kind.controls else {}
    bare = spec.variant(controls.get(UNCACHED, level.uncached))
    uncached = _still(trace, bare)
    avoidable = {name: avoid for name, (_, avoid) in AVOIDABLE.items() if _tells(name, level)}
    without = {
        name: _still(other, spec)
        for name, avoid in avoidable.items()
        if (other := avoid(trace)) != trace
    }
    for finding in asked:
        place = finding.anomaly, finding.r
        found = [
            name for name, still in without.items() if still is not None and place not in still
        ]
        # The batch first: what differs without the cache as well is no fault of the cache, whatever
        # else makes it go away.
        finding.cause = (
            BATCH if uncached is not None and place in uncached else "+".join(found) or CACHE
        )
    if not level.exact_batches:
        _blame_the_batch(
            trace, spec, bare, [finding for finding in asked if finding.cause != BATCH]
        )
        _blame_decoding(
            trace, spec, [finding for finding in asked if CONTINUATIONS in finding.cause.split("+")]
        )


def _tells(name: str, level: AnswersLevel) -> bool:
    """Whether something is learned of an engine by avoiding that.

    Nothing is of the pressure on a server whose pool is not chosen, nor of continuations where
    batches compute alike.
    """
    if name == PRESSURE:
        return not level.one_server
    return name != CONTINUATIONS or not level.exact_batches


def _blame_decoding(trace: Trace, spec: EngineSpec, findings: Sequence[Finding]) -> None:
    """Make decoding the cause of what takes prompts behind answers, if uncached it moves logprobs
    beyond the tolerance.

    An engine that fails when it is asked for that has not excused itself: the findings stay what
    they are.
    """
    differing = [finding for finding in findings if finding.anomaly == DIFFERS]
    if not differing:
        return
    try:
        baseline = baseline_of(spec, trace.header)
    except (EngineFailure, UsageError):
        return
    try:
        moved = baseline.decoded > baseline.floor.tolerance
    except (EngineFailure, BaselineFailed, UsageError):
        drop(baseline)
        return
    for finding in differing if moved else ():
        finding.cause = DECODING


def _blame_the_batch(
    trace: Trace, spec: EngineSpec, bare: EngineSpec, findings: Sequence[Finding]
) -> None:
    """Make the batch the cause where an engine without its cache differs from itself as well, in
    one of several runs.

    Who shares a batch depends on the moment, so it need not be the same request. What fails though
    nobody shares a batch is the cache's. A client that went away may share one for a while, so for
    that all of them wait.
    """
    alone = _still(without_company(without_aborts(trace)), spec) or set()
    open_ones = [
        finding
        for finding in findings
        if finding.anomaly == DIFFERS and (DIFFERS, finding.r) not in alone
    ]
    if open_ones and (
        bare.options == spec.options or any(_differs(trace, bare) for _ in range(REPEATS))
    ):
        for finding in open_ones:
            finding.cause = BATCH


def _differs(trace: Trace, bare: EngineSpec) -> bool:
    return any(anomaly == DIFFERS for anomaly, _ in _still(trace, bare) or ())


def _still(trace: Trace, spec: EngineSpec) -> set[tuple[str, str]] | None:
    """Return which requests fail how; None if the trace cannot be run so, or not to its end."""
    try:
        result, bad = attempt(lambda: runs(trace, spec))
    except UsageError:
        return None
    found = {(finding.anomaly, finding.r) for finding in result.findings}
    return (
        None if bad or any(anomaly in ("engine-crashed", "hung") for anomaly, _ in found) else found
    )
