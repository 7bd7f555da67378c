"""A router in front of fleets of an engine, over configurations, workloads and ways of delivery."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cachewitness._util.errors import EngineBroken, UsageError
from cachewitness.core.checkers.finding import Finding
from cachewitness.core.result import EXIT_FAIL, EXIT_NOTHING_CHECKED, EXIT_PASS
from cachewitness.core.trace_format import Level, Trace
from cachewitness.engines.registry import EngineSpec
from cachewitness.sessions.route.delivery import DELIVERIES
from cachewitness.sessions.route.fleet import Course, Fleet
from cachewitness.sessions.route.router import SECONDS, Make
from cachewitness.sessions.route.summary import Sums
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.conversations import conversations
from cachewitness.workloads.generate import random_trace
from cachewitness.workloads.shrink import shrink_and_tell

EVENTS = {"enable_kv_cache_events": True}
"""The option of vLLM with which an engine publishes."""
ATTEMPTS, ATTEMPTS_APART = 600, 60
"""How many smaller traces are tried for a failure; so many if the engine has a process of its own.
"""
FULL, HYBRID = "full attention alone", "hybrids"


class Planned(NamedTuple):
    """A trace to run, and how messages arrive."""

    trace: Trace
    configuration: str
    delivery: str

    @property
    def name(self) -> str:
        """Its id."""
        return f"route:{self.trace.header.name}@{self.configuration}/{self.delivery}"


class Failure(NamedTuple):
    """What a router did wrong, and the smallest trace that shows it."""

    planned: Planned
    finding: Finding
    shrunk: Trace
    why_long: str


@dataclass
class Report:
    """What came of a session: by kind of layout what was foreseen and hit, the first failure of
    each anomaly, and what was not judged and why.
    """

    traces: int = 0
    judged: int = 0
    failed: int = 0
    sums: dict[str, Sums] = field(default_factory=lambda: {FULL: Sums(), HYBRID: Sums()})
    failures: list[Failure] = field(default_factory=list)
    not_judged: dict[str, list[str]] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """The exit code of the session."""
        if self.failures:
            return EXIT_FAIL
        return EXIT_PASS if self.judged else EXIT_NOTHING_CHECKED

    def take(self, planned: Planned, course: Course) -> None:
        """Take in what came of a trace."""
        if course.why_not:
            self.leave_out(planned.configuration, course.why_not)
        if not course.asked and course.why_not:
            return
        self.traces += 1
        self.judged += course.asked
        kinds = {group.kind for group in planned.trace.header.layout.groups}
        self.sums[FULL if kinds == {"full"} else HYBRID].add(course.routed)

    def leave_out(self, configuration: str, why: str) -> None:
        """Note what was not judged."""
        names = self.not_judged.setdefault(why, [])
        if configuration not in names:
            names.append(configuration)


@dataclass(frozen=True)
class Session:
    """Runs a router in front of `workers` of an engine."""

    engine: EngineSpec
    make: Make
    workers: int
    on_trace: Callable[[Planned], None] | None = None
    seconds: float = SECONDS
    """How long the router may take to answer; when it does not, the session is over."""

    def run(self, planned: Sequence[Planned]) -> Report:
        """Run traces and return what came of them. Raises EngineBroken if the engine cannot be
        built, UsageError if it or the router refuses every configuration.
        """
        report = Report()
        refused: set[str] = set()
        errors: list[UsageError] = []
        for one in planned:
            if one.configuration in refused:
                continue
            if self.on_trace:
                self.on_trace(one)
            try:
                course = self._course(one, one.trace)
            except EngineBroken:
                raise
            except UsageError as error:
                errors.append(error)
                refused.add(one.configuration)
                report.leave_out(one.configuration, str(error))
                continue
            if course.why_not and not course.messages:
                refused.add(one.configuration)
            report.take(one, course)
            self._note(report, one, course)
            if course.hung:
                break
        if errors and len(errors) == len({one.configuration for one in planned}):
            raise errors[0]
        return report

    def _note(self, report: Report, planned: Planned, course: Course) -> None:
        if not course.findings:
            return
        report.failed += 1
        finding = course.findings[0]
        if all(finding.anomaly != known.finding.anomaly for known in report.failures):
            report.failures.append(
                Failure(planned, finding, planned.trace, "the router gave no answer")
                if course.hung
                else self._smaller(planned, finding)
            )

    def _course(self, planned: Planned, trace: Trace) -> Course:
        return Fleet(
            self.engine, trace, self.make, self.workers, planned.delivery, self.seconds
        ).run()

    def _smaller(self, planned: Planned, finding: Finding) -> Failure:
        def fails(trace: Trace) -> int:
            found = self._course(planned, trace).findings
            return found[0].op if found and found[0].anomaly == finding.anomaly else -1

        attempts = ATTEMPTS if self.engine.isolation is None else ATTEMPTS_APART
        trace, why_long = shrink_and_tell(planned.trace, fails, attempts)
        again = self._course(planned, trace).findings
        return Failure(planned, again[0] if again else finding, trace, why_long)


def plan(
    engine: EngineSpec,
    configurations: Sequence[Configuration],
    deliveries: Sequence[str],
    traces: int,
    seed: int,
) -> Iterator[Planned]:
    """Yield so many traces of each configuration: conversations and random workloads at the levels
    of the engine, each delivered in another way.
    """
    levels: list[Level] = [
        level for level in ("scheduler", "manager") if level in engine.kind.levels
    ]
    for configuration in configurations:
        publishing = replace(configuration, options={**configuration.options, **EVENTS})
        able = [level for level in levels if configuration.runs_at(level)]
        for index in range(traces if able else 0):
            # Over several rounds of deliveries each meets every workload at every level.
            turn = index + index // len(DELIVERIES)
            shape = publishing.shape(able[turn // 2 % len(able)])
            number = seed * 1_000_003 + index
            trace = (
                random_trace(shape, number, withdraw=False)
                if turn % 2
                else conversations(shape, number)
            )
            yield Planned(trace, configuration.name, deliveries[index % len(deliveries)])
