"""Which other detectors see a fault: each is run alone, on the killing trace or on workloads of its
own.

* *invariants*: the checkers over the ledger, the reuse floor apart, on the killing trace;
* *reuse floor*: the checker of that name, on the killing trace;
* *differential*: the reference in lock-step, on the killing trace;
* *tensor*: the toy engine's numbers, cold against cached, on the arms that use a cache; without the
  ledger;
* *score*: answers of a model, cold against cached; not run here, since it takes minutes for each
  fault.
"""

from __future__ import annotations

import time
from importlib.util import find_spec

from cachewitness._util.errors import UsageError
from cachewitness.core.checkers.reuse import ReuseFloor
from cachewitness.core.checkers.tensors import TensorsAgree
from cachewitness.core.trace_format import Trace
from cachewitness.engines.mutant import Mutant
from cachewitness.engines.policy import get
from cachewitness.engines.registry import parse
from cachewitness.parity.tensors.arms import BY_NAME
from cachewitness.report.compared import NAME as COLD
from cachewitness.sessions.mutants.hunt import judged
from cachewitness.sessions.run import judging
from cachewitness.sessions.run.lockstep import NAME as DIFFERENTIAL
from cachewitness.sessions.run.tensor_suite import traces as cold_traces

CACHED = ("hit", "chunked", "tier", "preempted", "drafts", "async")
"""The arms in which something of the cache is used."""

NOT_RUN, NO, YES, SURVIVED = "not run", "no", "yes", "survived"
DETECTORS = ("invariants", "differential", "tensor", "score", "reuse floor")


def detected(mutant: Mutant, trace: Trace, tensor_seconds: float) -> dict[str, str]:
    """Return by detector whether it sees the fault; of invariants, the names of the checkers that
    do.

    `tensor_seconds` of CPU time are spent on the toy engine; 0: it is not run.
    """
    by = {finding.checker for finding in judged(mutant, trace, whole=True).findings}
    apart = {ReuseFloor.name, TensorsAgree.name, DIFFERENTIAL}
    return {
        "invariants": ", ".join(sorted(by - apart)) or NO,
        "differential": _differential(mutant, trace),
        "tensor": YES if TensorsAgree.name in by else _tensor(mutant, tensor_seconds),
        "score": NOT_RUN,
        "reuse floor": YES if ReuseFloor.name in by else NO,
    }


def alone(answers: dict[str, str]) -> bool:
    """Whether a single one of the detectors that were asked sees the fault."""
    return sum(answer not in (NO, NOT_RUN) for answer in answers.values()) == 1


def _differential(mutant: Mutant, trace: Trace) -> str:
    if mutant.engine != "reference" or get(mutant.policy).steer is None:
        return NOT_RUN
    spec = parse(f"reference:mutant={mutant.name}")
    found = judging.found_again(
        trace, spec, lambda finding: finding.checker == DIFFERENTIAL, way="lockstep"
    )
    return NO if found is None else YES


def _tensor(mutant: Mutant, seconds: float) -> str:
    """Run the arms of cold against cached on the toy engine with the fault, until one differs.

    If time is up before all of them have run, nothing is known.
    """
    if not seconds or find_spec("torch") is None:
        return NOT_RUN
    spec = parse(f"toy:mutant={mutant.name}")
    started = time.process_time()
    configurations = get(mutant.policy).cold_configurations()
    streams = [
        cold_traces(configuration, 0, [BY_NAME[name]])
        for name in CACHED
        for configuration in configurations
    ]
    while streams:
        if time.process_time() - started > seconds:
            return NOT_RUN
        for stream in list(streams):
            trace = next(stream, None)
            if trace is None:
                streams.remove(stream)
                continue
            try:
                found = judging.judged(trace, spec, "cold", keep=False).result.findings
            except UsageError:
                continue
            if any(finding.checker == COLD for finding in found):
                return YES
    return NO
