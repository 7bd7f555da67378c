"""What a run takes of its suites: which suites apply to the engine, and how many of their
traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from cachewitness.core.trace_format import Trace
from cachewitness.engines.policy import PolicyKind
from cachewitness.engines.registry import EngineSpec
from cachewitness.sessions.run.lockstep import incomparable
from cachewitness.sessions.run.suites import Stream, Suite
from cachewitness.workloads.configurations import Configuration

ANSWERS = "answers"
CONTROLLED = 3
"""One trace in so many is run on each control as well."""
RANDOM_TRACES = 12
"""Random traces for each configuration when the user gives no time."""
RANDOM_TRACES_COMPUTED = 3
"""The same of an engine that computes tensors, whose traces take thirty times as long."""
RANDOM_TRACES_SHORT = 1
"""The same of such an engine in a short run."""


def why_not(suite: Suite, engine: EngineSpec, policy: PolicyKind) -> str:
    """Return why a suite has nothing to run on an engine; empty if it has."""
    kind = engine.kind
    if suite.paired and (why := incomparable(engine, policy.name)):
        return why
    if suite.tensors and not kind.computes:
        return f"engine {kind.name} computes no tensors"
    if suite.level not in kind.levels:
        return f"engine {kind.name} does not run at {suite.level} level"
    if suite.level == ANSWERS:
        return "" if kind.answers_level else f"engine {kind.name} declares no uncached twin"
    return (
        ""
        if suite.level in policy.levels
        else f"policy {policy.name} does not run at {suite.level} level"
    )


def controls(
    suite: Suite, engine: EngineSpec, configurations: Sequence[Configuration], seed: int
) -> list[Stream]:
    """Return the traces that the controls of an engine run: one in `CONTROLLED`, each control
    beginning at another one.
    """
    declared = engine.kind.controls.beside(engine.options) if engine.kind.controls else {}
    most = RANDOM_TRACES if suite.endless else None
    return [
        Stream(
            configuration,
            engine.variant(options),
            islice(
                suite.traces(configuration, suite.level, seed),
                place % CONTROLLED,
                most,
                CONTROLLED,
            ),
            control=name,
        )
        for place, (name, options) in enumerate(declared.items())
        for configuration in configurations
    ]


def random_traces(engine: EngineSpec, *, short: bool) -> int:
    """Return how many random traces each configuration gets when the user gives no time."""
    if not engine.kind.computes:
        return RANDOM_TRACES
    return RANDOM_TRACES_SHORT if short else RANDOM_TRACES_COMPUTED


class Sample:
    """Takes one trace in `one_in` of each configuration, and whatever trace comes under its name
    for the first time.

    `leave_out` is called for each other trace.
    """

    def __init__(self, one_in: int, leave_out: Callable[[], None]) -> None:
        self._one_in = one_in
        self._leave_out = leave_out
        self._seen: set[str] = set()

    def of(self, traces: Iterator[Trace], offset: int) -> Iterator[Trace]:
        """Yield what is taken of the traces of a configuration; another offset takes other ones."""
        for number, trace in enumerate(traces):
            if (number + offset) % self._one_in == 0 or trace.header.name not in self._seen:
                self._seen.add(trace.header.name)
                yield trace
            else:
                self._leave_out()
