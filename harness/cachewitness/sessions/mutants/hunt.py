"""Hunts one fault: runs workloads on the engine with the fault until the anomaly that it names
is found.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from cachewitness._util.errors import UsageError
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.driving import drive
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Trace
from cachewitness.engines.mutant import Mutant
from cachewitness.engines.registry import parse
from cachewitness.sessions.mutants.workloads import workloads
from cachewitness.sessions.run import judging


@dataclass(frozen=True)
class Hunt:
    """What came of it: the trace and the finding that killed the fault, None if it survived.

    `seconds` of CPU time, `operations` and `traces` are what was spent; `false_alarms` are traces
    that the engine without the fault fails as well, which are no kills.
    """

    mutant: Mutant
    trace: Trace | None
    finding: Finding | None
    seconds: float
    operations: int
    traces: int
    false_alarms: tuple[str, ...] = ()


def judged(mutant: Mutant, trace: Trace, *, faulty: bool = True, whole: bool = False) -> Result:
    """Run a trace on the engine with or without the fault; with it, until what it named is found
    unless `whole`.

    The differential is not asked. What a fault makes of the events it reports, if they cannot be
    followed, is no finding.

    Raises UsageError if the engine refuses the trace, Stopped if the engine without the fault
    reports such events.
    """
    spec = parse(f"{mutant.engine}:mutant={mutant.name}" if faulty else mutant.engine)
    if not faulty:
        return drive(trace, spec.open(trace.header), keep=False)
    until = None if whole else mutant.names
    return judging.judged(trace, spec, until=until, keep=False).result


def killed(mutant: Mutant, trace: Trace) -> Finding | None:
    """Return the finding that a fault named in advance, if a trace raises it."""
    try:
        return next(filter(mutant.names, judged(mutant, trace).findings), None)
    except UsageError:
        return None


def hunt(mutant: Mutant, budget: float, seed: int = 0) -> Hunt:
    """Run the workloads until the fault is killed, or so many seconds of CPU time are spent."""
    started = time.process_time()
    operations = 0
    traces = 0
    alarms: list[str] = []

    def spent() -> float:
        return time.process_time() - started

    for trace in workloads(mutant, seed):
        if spent() > budget:
            break
        try:
            result = judged(mutant, trace)
        except UsageError:
            continue
        operations, traces = operations + result.activity.operations, traces + 1
        finding = next(filter(mutant.names, result.findings), None)
        if finding is None:
            continue
        seconds = spent()
        clean = judged(mutant, trace, faulty=False)
        if not clean.findings:
            return Hunt(mutant, trace, finding, seconds, operations, traces, tuple(alarms))
        alarms.append(f"{trace.header.name}: {clean.findings[0].anomaly}")
    return Hunt(mutant, None, None, spent(), operations, traces, tuple(alarms))
