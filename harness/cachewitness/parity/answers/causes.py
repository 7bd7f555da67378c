"""Why a trace at answers level fails: what it does that, left out, makes the same request come out
right.

One fault hides the others. With its cause a failure can be listed as expected without listing the
configuration, and traces can be drawn without the cause (`avoid`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

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
    INTERVALS,
    OF_CLIENTS,
    PRESSURE,
    TOGETHER,
    without_aborts,
    without_company,
)

UNCACHED = "uncached"
"""The control that runs a trace without the cache in its own pool, where an engine has one; else
the baseline does."""
CRASHED, HUNG = "engine-crashed", "hung"
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
    """Write its cause into each finding about an answer, and into a crash; a hang has none, nor has
    the crash of a server, which is not there to be asked again.

    The trace is run again once without the cache, once without each thing that can be avoided, and
    if that shows nothing once without each two of what clients do, and without intervals between
    states.
    """
    asked = [finding for finding in findings if _has_cause(finding, spec)]
    level = spec.kind.answers_level
    if not asked or level is None:
        return
    controls = spec.kind.controls.options if spec.kind.controls else {}
    bare = spec.variant(controls.get(UNCACHED, level.uncached))
    uncached = _found(trace, bare)
    without = _without(trace, spec, level)
    for finding in asked:
        avoided = [name for name, found in without.items() if _passes(found, finding)]
        # The batch first: what differs without the cache as well is no fault of the cache, whatever
        # else makes it go away.
        if uncached is not None and _again(uncached, finding):
            # Of an engine that has no cache nothing else is learned, so that is added.
            alone = avoided if level.exact_batches and bare.options == spec.options else []
            finding.cause = "+".join([BATCH, *alone])
        else:
            finding.cause = "+".join(avoided) or CACHE
    if not spec.one_server:
        _look_for_two(trace, spec, [one for one in asked if one.cause == CACHE])
        _look_for_intervals(trace, spec, [one for one in asked if one.cause == CACHE])
    if not level.exact_batches:
        _blame_the_batch(
            trace, spec, bare, [finding for finding in asked if finding.cause != BATCH]
        )
        _blame_decoding(
            trace, spec, [finding for finding in asked if CONTINUATIONS in finding.cause.split("+")]
        )


def _has_cause(finding: Finding, spec: EngineSpec) -> bool:
    if finding.anomaly == CRASHED:
        return not spec.one_server
    return finding.anomaly in AnswersAgree.anomalies and finding.anomaly != UNLIKE


def _without(
    trace: Trace, spec: EngineSpec, level: AnswersLevel
) -> dict[str, set[tuple[str, str]] | None]:
    """Return what is found without each thing that the trace does and that can be avoided."""
    return {
        name: _found(other, spec)
        for name, (_, avoid) in AVOIDABLE.items()
        if _tells(name, level) and (other := avoid(trace)) != trace
    }


def _look_for_two(trace: Trace, spec: EngineSpec, findings: Sequence[Finding]) -> None:
    """Make two things that clients do together the cause of what passes without both, and not
    without either.
    """
    left = list(findings)
    for one, other in combinations(OF_CLIENTS, 2):
        if not left:
            return
        found = _found(AVOIDABLE[other][1](AVOIDABLE[one][1](trace)), spec)
        for finding in [finding for finding in left if _passes(found, finding)]:
            finding.cause = f"{one}{TOGETHER}{other}"
            left.remove(finding)


def _look_for_intervals(trace: Trace, spec: EngineSpec, findings: Sequence[Finding]) -> None:
    """Make the intervals between states the cause of what passes where each block has one.

    Last, so that lists need not name them beside what clients do.
    """
    other = AVOIDABLE[INTERVALS][1](trace)
    if not findings or other == trace:
        return
    # With more states the same pool may be too small for them.
    found = _found(AVOIDABLE[PRESSURE][1](other), spec)
    for finding in findings:
        if _passes(found, finding):
            finding.cause = INTERVALS


def _again(found: set[tuple[str, str]], finding: Finding) -> bool:
    """Whether a trace fails in the same way; a crash is one, whichever request it comes with."""
    if finding.anomaly == CRASHED:
        return any(anomaly == CRASHED for anomaly, _ in found)
    return (finding.anomaly, finding.r) in found


def _passes(found: set[tuple[str, str]] | None, finding: Finding) -> bool:
    """Whether a trace that ran to its end does not fail so any more."""
    return found is not None and not _cut_short(found) and not _again(found, finding)


def _cut_short(found: set[tuple[str, str]]) -> bool:
    return any(anomaly in (CRASHED, HUNG) for anomaly, _ in found)


def _tells(name: str, level: AnswersLevel) -> bool:
    """Whether something is learned of an engine by avoiding that.

    Nothing is of the pressure on a server whose pool is not chosen, nor of continuations where
    batches compute alike. Of intervals it is learned last.
    """
    if name == INTERVALS:
        return False
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
    found = _found(trace, spec)
    return None if found is None or _cut_short(found) else found


def _found(trace: Trace, spec: EngineSpec) -> set[tuple[str, str]] | None:
    """Return which requests fail how, a crash and a hang among it; None if the trace cannot be run
    so.
    """
    try:
        result, bad = attempt(lambda: runs(trace, spec))
    except UsageError:
        return None
    return None if bad else {(finding.anomaly, finding.r) for finding in result.findings}
