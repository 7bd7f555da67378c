"""The smallest trace that fails as a given one does, and what it is found by.

A trace that ends its engine's process costs a new process each time, and one on which the engine
hangs costs a deadline. So the search is content with fewer of these than it tries candidates
otherwise, and waits less for an answer while it looks.

An engine's process serves one trace after another, so what is found may come of a trace before. A
process that has served no other shows whether it does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from cachewitness._util.errors import UsageError
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.trace_format import Trace
from cachewitness.engines.isolation.engine import begin_afresh, started
from cachewitness.engines.registry import EngineSpec
from cachewitness.report.summary import Failure
from cachewitness.sessions.run.judging import Alike, Way, found_again
from cachewitness.workloads.avoided import avoiding
from cachewitness.workloads.shrink import AGAIN, ATTEMPTS, TRIES, shrink_and_tell

PROCESSES = 40
"""So many processes are started for one search."""
ALONE = (
    "it does not fail in a process that has run no other trace: the engine keeps something from one"
    " trace to the next, or does not do the same each time; nothing was left out"
)

Rerun = Callable[[Trace, EngineSpec], Finding | None]
"""Runs a trace on a fresh engine and returns the finding that is like the one looked for."""


class Smallest(NamedTuple):
    """A trace, its finding, and why it is no shorter than a person reads at a glance; empty if
    it is not longer.
    """

    trace: Trace
    finding: Finding
    why_long: str


def shrink(
    failure: Failure,
    engine: EngineSpec,
    way: Way,
    *,
    excused: Alike = lambda found: False,
    avoid: str = "",
    attempts: int | None = None,
    on_try: Callable[[], None] = lambda: None,
) -> None:
    """Replace the trace of a failure by the smallest one that fails alike, and not by what is
    `excused`; `on_try` is told of each that is tried. The rest is as in `smallest`.
    """
    finding = failure.finding

    def rerun(candidate: Trace, engine: EngineSpec) -> Finding | None:
        on_try()
        return found_again(
            candidate, engine, lambda found: finding.alike(found) and not excused(found), way
        )

    failure.replace(*smallest(failure.trace, engine, finding, rerun, avoid, attempts))


def smallest(
    trace: Trace,
    engine: EngineSpec,
    finding: Finding,
    rerun: Rerun,
    avoid: str = "",
    attempts: int | None = None,
) -> Smallest:
    """Return the smallest trace that fails alike, and its finding; the trace itself if a smaller
    one does not fail again.

    `avoid` names causes that the trace was drawn without, and smaller ones are without them too.
    So many `attempts` are made, or as many as is usual for the engine.

    A server that hangs and that was there before goes on hanging, so nothing more is asked of it.
    What hangs in the harness's own process leaves there what it was doing.
    """
    if finding.anomaly == "hung" and (engine.one_server or engine.within):
        why = "its server hangs" if engine.one_server else "it hangs in the harness's own process"
        return Smallest(trace, finding, f"not shrunk, since {why}")
    begin_afresh()  # so that it is the same processes that count, whoever found it
    begun = started()
    hurried = engine.hurried() if finding.anomaly == "hung" else engine

    def fails(candidate: Trace) -> int:
        if started() - begun >= PROCESSES or avoiding(candidate, avoid) != candidate:
            return -1
        try:
            found = rerun(candidate, hurried)
        except UsageError:
            return -1
        return found.op if found else -1

    level = engine.kind.answers_level
    usual = level.shrinking if level else ATTEMPTS
    small, why_long = shrink_and_tell(trace, fails, usual if attempts is None else attempts)
    if why_long and started() - begun >= PROCESSES:
        why_long = f"stopped after {PROCESSES} processes"
    if again := _alone(small, engine, rerun):
        return Smallest(small, again, why_long)
    alone = small != trace and _alone(trace, engine, rerun)
    others = engine.isolation is not None and not engine.one_server
    return Smallest(trace, finding, ALONE if others and not alone else AGAIN)


def _alone(trace: Trace, engine: EngineSpec, rerun: Rerun) -> Finding | None:
    """Run a trace in a process of the engine's that has served no other; in the harness's own
    process if it has none.
    """
    for _ in range(TRIES if trace.header.level == "answers" else 1):
        begin_afresh()
        with suppress(UsageError):  # it was found, whether or not the engine can be started again
            if found := rerun(trace, engine):
                return found
    return None
