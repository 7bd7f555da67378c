"""The smallest traces that kill faults, kept as regressions: one file for each, named after it.

A witness replays from its file alone: the name of its trace is the fault's, its story says what
goes wrong, its source the real bug. It fails on the engine with the fault, with the anomaly that
the fault names, and passes on the engine without it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from cachewitness._util import data, files
from cachewitness.core import trace_format as traces
from cachewitness.core.trace_format import Trace
from cachewitness.engines.mutant import Mutant
from cachewitness.sessions.mutants.hunt import judged, killed
from cachewitness.workloads.shrink import shrink


def path_of(mutant: Mutant) -> Path:
    """Return where a fault's witness is kept."""
    return data.fault_traces() / f"{mutant.name}.jsonl"


def smallest(mutant: Mutant, trace: Trace) -> Trace:
    """Return a small trace that kills a fault as this one does, and passes without it."""

    def fails(candidate: Trace) -> int:
        finding = killed(mutant, candidate)
        return finding.op if finding is not None else -1

    small = shrink(trace, fails)
    small = trace if judged(mutant, small, faulty=False).findings else small
    header = msgspec.structs.replace(
        small.header,
        name=mutant.name,
        story=mutant.summary,
        source=mutant.mirrors,
        seed=None,
        needs=_needs(small),
    )
    return Trace(header, small.ops)


def _needs(trace: Trace) -> list[str]:
    steps = [op for op in trace.ops if isinstance(op, traces.Step)]
    asked = {
        "withdraw": any(step.withdraw for step in steps),
        "cancel": any(step.cancel for step in steps),
    }
    return [need for need in trace.header.needs if asked.get(need, True)]


def stored_witness(mutant: Mutant) -> Trace | None:
    """Return the witness that is kept, if it still kills the fault and passes without it."""
    path = path_of(mutant)
    if not path.exists():
        return None
    trace = traces.load(path)
    return (
        trace
        if killed(mutant, trace) and not judged(mutant, trace, faulty=False).findings
        else None
    )


def keep(mutant: Mutant, trace: Trace) -> Path:
    """Write a witness. Raises UsageError if it cannot be written."""
    path = path_of(mutant)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, [traces.dump(trace)])
    return path
