"""One trace of a suite: an engine opened for it, run and judged, whichever process does it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cachewitness._util.errors import EngineBroken, UsageError
from cachewitness._util.worker_pool import Task, WorkerPool
from cachewitness.core.driving import beside, described, seconds_in
from cachewitness.core.engine import Engine
from cachewitness.core.events import Header
from cachewitness.core.result import UNCOUNTED, Result
from cachewitness.core.trace_format import Trace
from cachewitness.engines.entered import Seen
from cachewitness.engines.isolation.engine import Isolated
from cachewitness.engines.registry import EngineSpec
from cachewitness.parity.answers import causes
from cachewitness.sessions.run.judging import Judged, judged
from cachewitness.sessions.run.lockstep import NAME as DIFFERENTIAL
from cachewitness.sessions.run.lockstep import refused
from cachewitness.sessions.run.suites import Stream, Suite
from cachewitness.workloads.capabilities import fitting, lacking

SuiteTrace = tuple[str, Mapping[str, str], Trace]
"""The name of a suite, the engine's options if they are not the run's, and the trace."""


@dataclass
class Trial:
    """What came of one trace: `result` is None if it was not run, `left_out` says what was left
    out and why.
    """

    refusal: UsageError | None = None
    """What the engine said when it was to be opened."""
    left_out: list[tuple[str, str]] = field(default_factory=list)
    version: str = ""
    """Which release the engine says that it is."""
    startup_seconds: float = 0.0
    """How long it took to build the engine, or until it refused: an installed one is imported for
    the first trace."""
    result: Result | None = None
    bad: str = ""
    engine_seconds: float | None = None
    """Processor time inside the engine; None if it does not say."""
    harness_seconds: float | None = None
    """Processor time of everything else, in this process and in the engine's."""

    def open(self, trace: Trace, spec: EngineSpec) -> tuple[Engine, Header] | None:
        """Open an engine for a trace and return it with its header; None if it refuses the trace.
        Raises EngineBroken if it cannot be built, BadEvents if its header is none.
        """
        began = time.perf_counter()
        try:
            engine = spec.open(trace.header)
        except EngineBroken:
            raise
        except UsageError as error:
            self.refusal = error
            return None
        else:
            header = described(engine, trace.header)
            self.version = header.engine_version
            return engine, header
        finally:
            self.startup_seconds = time.perf_counter() - began

    def take(self, judgement: Judged, engine: Engine, began: float) -> Result:
        """Take in what came of the trace on the engine, which was begun at that processor time;
        return the result.
        """
        self.harness_seconds = beside(engine, time.process_time() - began)
        self.engine_seconds = seconds_in(engine)
        self.result, self.bad = judgement
        if self.result.activity.lookups and not self.result.counted:
            self.left_out.append(UNCOUNTED)
        return self.result


@dataclass
class SuiteTrial(Trial):
    """What came of one trace of a suite."""

    inapplicable: str = ""
    """Why there is nothing in the trace that tensors could be compared in."""
    unpaired: str = ""
    """Why the reference cannot run beside the engine on a trace of this configuration."""
    entered: list[Seen] = field(default_factory=list)
    """What it entered of what was asked about (`cachewitness.engines.entered`)."""


@dataclass(frozen=True)
class SuiteTrials:
    """Runs traces of suites, by their names, on an engine."""

    suites: Mapping[str, Suite]
    engine: EngineSpec

    def run(self, asked: SuiteTrace) -> SuiteTrial:
        """Open an engine for a trace, and run it if the engine can. Raises EngineBroken if the
        engine cannot be built, BadEvents if its header is none.
        """
        name, options, trace = asked
        suite = self.suites[name]
        spec = self.engine.variant(options) if options else self.engine
        trial = SuiteTrial()
        if (opened := trial.open(trace, spec)) is None:
            return trial
        engine, header = opened
        if suite.paired and (
            why := header.not_applicable.get(DIFFERENTIAL) or refused(trace, header)
        ):
            trial.unpaired = why
            return trial
        if suite.tensors is not None and (why := suite.tensors.inapplicable(trace, header)):
            trial.inapplicable = why
            return trial
        for need in trace.header.needs:
            if need not in header.capabilities:
                why = header.not_applicable.get(need, f"engine {spec.kind.name} cannot {need}")
                trial.left_out.append((f"{suite.name}: traces that need {need}", why))
                return trial
        trace = _fitting(suite, trace, header, spec, trial)
        began = time.process_time()
        judgement = judged(trace, spec, suite.way, engine=engine, keep=False)
        causes.explain(trial.take(judgement, engine, began), spec)
        trial.entered = engine.entered if isinstance(engine, Isolated) else []
        return trial


def _fitting(
    suite: Suite, trace: Trace, header: Header, spec: EngineSpec, trial: SuiteTrial
) -> Trace:
    """Return the trace without what the engine does not declare, and list what that is."""
    missing = lacking(trace, header.capabilities)
    for need in missing:
        why = header.not_applicable.get(need, f"engine {spec.kind.name} does not declare it")
        trial.left_out.append((f"{suite.name}: {need} in traces", why))
    return fitting(trace, header.capabilities) if missing else trace


class InTurn:
    """The traces of streams that take turns, a few of which are begun before anybody asks what
    came of them.
    """

    def __init__(
        self,
        pool: WorkerPool[SuiteTrace, SuiteTrial],
        suite: Suite,
        engine: EngineSpec,
        streams: Sequence[Stream],
    ) -> None:
        self._crew = pool
        self._suite = suite
        self._engine = engine
        self._begun: dict[int, deque[tuple[Trace, Task[SuiteTrace, SuiteTrial]]]] = {
            id(stream): deque() for stream in streams
        }
        self._next = deque(streams)

    def take(self, stream: Stream) -> tuple[Trace, Task[SuiteTrace, SuiteTrial]] | None:
        """Return the next trace of a stream, whose turn it is, and what will come of it; None if
        there is no more.
        """
        while self._next and sum(map(len, self._begun.values())) < self._crew.ahead:
            coming = self._next.popleft()
            trace = next(coming.traces, None)
            if trace is not None:
                options = {} if coming.engine is self._engine else coming.engine.options
                self._begun[id(coming)].append(
                    (trace, self._crew.submit((self._suite.name, options, trace)))
                )
                self._next.append(coming)
        begun = self._begun[id(stream)]
        return begun.popleft() if begun else None

    def drop(self, stream: Stream) -> None:
        """Take no further trace of a stream."""
        self._begun[id(stream)].clear()
        if stream in self._next:
            self._next.remove(stream)
