"""One trace on one engine, judged: the one place that chooses how.

At answers level every answer is put beside that of the uncached baseline. Elsewhere the rules
judge, alone or with the reference in lock-step; or what was computed is compared with a cold run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from cachewitness.core.checkers.finding import Finding
from cachewitness.core.checkers.protocol import Checker
from cachewitness.core.driving import Stopped, drive
from cachewitness.core.engine import Engine
from cachewitness.core.result import Result
from cachewitness.core.trace_format import Trace
from cachewitness.engines.registry import EngineSpec
from cachewitness.parity.answers import causes
from cachewitness.parity.answers.compare import answered
from cachewitness.sessions.run.lockstep import NAME as DIFFERENTIAL
from cachewitness.sessions.run.lockstep import lockstep

Way = Literal["rules", "lockstep", "cold"]
"""How a trace is judged that is not at answers level."""
Alike = Callable[[Finding], bool]
"""Whether a finding is like one that is looked for."""


class Judged(NamedTuple):
    """The result of a trace, and the line that says which events stopped it since they cannot be
    followed; empty if none did.
    """

    result: Result
    bad: str


def judged(
    trace: Trace,
    spec: EngineSpec,
    way: Way = "rules",
    *,
    engine: Engine | None = None,
    checkers: Iterable[Checker] | None = None,
    until: Alike | None = None,
    keep: bool = True,
) -> Judged:
    """Run a trace on `engine`, which was opened as `spec`, or on a fresh one, and judge it.

    `checkers`, `until` and `keep` are as in `cachewitness.core.driving.drive`; cold against cached
    takes only the last of them. Raises as `drive`, but for Stopped; UsageError also if the engine
    refuses the trace, or cannot be judged that way.
    """
    engine = spec.open(trace.header) if engine is None else engine
    try:
        if way == "cold":
            from cachewitness.parity.tensors.judge import judged as compared  # imports torch

            return Judged(compared(trace, engine, spec, keep=keep), "")
        if trace.header.level == "answers":
            return Judged(answered(trace, engine, spec, checkers, until=until, keep=keep), "")
        run = lockstep if way == "lockstep" else drive
        return Judged(run(trace, engine, checkers=checkers, until=until, keep=keep), "")
    except Stopped as stopped:
        return Judged(stopped.result, str(stopped))


def found_again(trace: Trace, spec: EngineSpec, alike: Alike, way: Way = "rules") -> Finding | None:
    """Run a trace on a fresh engine; return the first finding that is alike, None if there is
    none. Raises as `judged`.
    """
    result, _ = judged(trace, spec, way, until=alike, keep=False)
    return next(filter(alike, result.findings), None)


def explained(trace: Trace, spec: EngineSpec, way: Way = "rules") -> Judged:
    """Judge a trace on a fresh engine and find the causes of what came of it, which its history
    then has. Raises as `judged`.
    """
    judgement = judged(trace, spec, way)
    causes.explain(judgement.result, spec)
    return judgement


def way_of(finding: Finding) -> Way:
    """Return how a finding of a trace that may have been judged in lock-step is found again."""
    return "lockstep" if finding.checker == DIFFERENTIAL else "rules"
