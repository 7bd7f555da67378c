"""A run cut into its traces: each is a case with an id of its own, and is judged by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from cachewitness._util.errors import UsageError
from cachewitness.api.verify import chosen_of
from cachewitness.cli.options import suites_of
from cachewitness.core.trace_format import Trace
from cachewitness.engines import policy as policies
from cachewitness.engines.kind import EngineKind
from cachewitness.engines.registry import EngineSpec
from cachewitness.report.counterexample import shrinking, witness_of
from cachewitness.report.summary import Failure, Report
from cachewitness.sessions.run import store
from cachewitness.sessions.run.runner import Runner
from cachewitness.sessions.run.selection import random_traces, why_not
from cachewitness.sessions.run.suites import Suite
from cachewitness.workloads.configurations import Configuration


@dataclass(frozen=True)
class Choice:
    """What `cachewitness.suite` was given."""

    engine: str | EngineKind
    policy: str = "vllm"
    layouts: Sequence[str] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    suites: Sequence[str] = ()

    def cases(self, seed: int) -> list[Case]:
        """Return a case for each trace. Raises UsageError for what does not exist, or if no
        suite has a trace to run.
        """
        spec, chosen = chosen_of(self.engine, self.policy, self.layouts, self.options, self.suites)
        policy = policies.get(self.policy)
        found = list[Case]()
        reasons = list[str]()
        for suite in suites_of(self.suites):
            why = why_not(suite, spec, policy) or (
                "its traces are compared, not judged one by one" if suite.tensors else ""
            )
            if why:
                reasons.append(f"suite {suite.name}: {why}")
                continue
            fitting = [one for one in chosen.configurations if one.runs_at(suite.level)]
            found += [
                Case(spec, self.policy, suite, configuration, trace, seed)
                for configuration in fitting
                for trace in _traces(suite, spec, configuration, seed)
            ]
        if (self.suites and len(reasons)) or not found:
            raise UsageError("; ".join(reasons) or "no configuration has a trace")
        return found


def _traces(
    suite: Suite, spec: EngineSpec, configuration: Configuration, seed: int
) -> Iterator[Trace]:
    most = random_traces(spec, short=False) if suite.endless else None
    return islice(suite.traces(configuration, suite.level, seed), most)


@dataclass(frozen=True)
class Case:
    """One trace of a suite on one configuration."""

    engine: EngineSpec
    policy: str
    suite: Suite
    configuration: Configuration
    trace: Trace
    seed: int

    @property
    def id(self) -> str:
        """`suite:trace@configuration`, as in every report."""
        return f"{self.suite.name}:{self.trace.header.name}@{self.configuration.name}"

    def run(self, tell: Callable[[str], None]) -> tuple[Report, list[str]]:
        """Run the trace; return the report and the lines that say why it fails, none if it does
        not.

        The trace of a failure is shrunk, which `tell` is told before, and kept in
        `.cachewitness/failures`.
        """
        kept = store.Keeper(self.engine, store.DEFAULT_FOLDER)

        def take(failure: Failure, final: bool) -> None:
            kept.take(failure, final)
            if not final:
                tell(f"cachewitness: {shrinking(failure)}")

        alone = self.suite.of_one(self.trace)
        runner = Runner(
            self.engine,
            [self.configuration],
            seed=self.seed,
            policy=self.policy,
            chosen_configurations=True,
            alone=True,
            on_failure=take,
        )
        report = runner.run([alone])
        if report.interrupted:
            raise KeyboardInterrupt
        lines = [
            line
            for failure in report.failures
            for line in witness_of(failure, kept.stored.get(failure.id))
        ]
        lines += report.bad_events
        lines += [
            f"a checker crashed, so this is no verdict: {line}"
            for suite in report.suites
            for line in suite.crashed
        ]
        lines += [f"this is no verdict: {line}" for suite in report.suites for line in suite.open]
        lines += kept.problems if lines else []
        return report, lines
