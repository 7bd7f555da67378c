"""One trace of a campaign: drawn, run and judged, whichever process does it."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from cachewitness._util.errors import EngineBroken, EngineMissing, UsageError
from cachewitness.core import trace_format as traces
from cachewitness.core.checkers import fresh
from cachewitness.core.checkers.finding import Finding, Tally
from cachewitness.core.driving import beside, described, seconds_in
from cachewitness.core.events import Header
from cachewitness.core.result import UNCOUNTED, Activity
from cachewitness.core.trace_format import Level, Trace
from cachewitness.engines.registry import EngineSpec
from cachewitness.sessions.fuzz.draw import Restriction, draw
from cachewitness.sessions.fuzz.watch import Watch
from cachewitness.sessions.run.judging import Way, judged
from cachewitness.sessions.run.lockstep import NAME as DIFFERENTIAL
from cachewitness.sessions.run.lockstep import incomparable, refused
from cachewitness.workloads.capabilities import fitting, lacking
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import write, write_gallery
from cachewitness.workloads.source import Seeded, Source

LENGTHS = (30, 60, 60, 120)
"""In operations, of traces; long ones fill pools, short ones leave more to other configurations."""

LARGER, LARGER_CHANCE = 10, 2
"""So many of a hundred traces have prompts and answers that are so many times as long, and as many
have so many times the operations, so that pages are reused as often."""

CONFIGURATIONS = "configurations"
"""What is left out where a configuration is refused."""


@dataclass(frozen=True)
class Plan:
    """What the traces of a campaign depend on. `stream` distinguishes campaigns with the same seed.

    So many of a hundred traces are galleries of images, which are long.
    """

    policy: str
    levels: tuple[Level, ...]
    chosen: Restriction
    seed: int
    stream: str = "campaign"
    galleries: int = 1

    def draw(self, number: int) -> tuple[Configuration, Trace]:
        """Return configuration and trace number so many.

        Raises UsageError if the policy refuses what the user chose.
        """
        return self.drawn(
            Seeded(f"{self.stream}/{self.seed}/{number}"), f"fuzz-{self.seed}-{number}"
        )

    def drawn(self, source: Source, name: str) -> tuple[Configuration, Trace]:
        """Return the configuration and the trace that these choices make. Raises UsageError as
        `draw` does.
        """
        level = source.choice(self.levels)
        configuration = draw(source, self.policy, level, self.chosen)
        shape = configuration.shape(level)
        if source.chance(self.galleries):
            trace = write_gallery(shape, source, name=name)
        else:
            scale = LARGER if source.chance(LARGER_CHANCE) else 1
            times = LARGER if source.chance(LARGER_CHANCE) else 1
            trace = write(
                shape,
                source,
                withdraw=source.chance(20),
                operations=source.choice(LENGTHS) * times,
                name=name,
                scale=scale,
            )
        return configuration, Trace(
            msgspec.structs.replace(trace.header, seed=self.seed), trace.ops
        )


@dataclass
class Judged:
    """What came of a trace that ran. `trace` is there if anything is wrong with it; `digested`
    is what the digest is of.
    """

    name: str
    level: Level
    activity: Activity
    tallies: list[Tally]
    findings: list[Finding]
    bad: str
    trace: Trace | None
    digested: bytes
    marks: Counter[str]
    seconds: float
    engine_seconds: float | None
    harness_seconds: float | None
    version: str


@dataclass
class FuzzTrial:
    """What came of one number: `judged` is None if no trace ran, `left_out` says what was left
    out of it and why.
    """

    left_out: list[tuple[str, str]] = field(default_factory=list)
    refused: bool = False
    """Whether the engine refused the configuration that was drawn."""
    missing: str = ""
    """What must be installed for the engine, if that is why."""
    startup_seconds: float = 0.0
    """How long it took to build the engine, or until it refused: an installed one is imported for
    the first trace."""
    judged: Judged | None = None


@dataclass(frozen=True)
class FuzzTrials:
    """Runs the traces of a plan on an engine, by their numbers; `beside`: with the reference in
    lock-step where that can be.
    """

    engine: EngineSpec
    plan: Plan
    beside: bool

    @cached_property
    def _one_process_each(self) -> str:
        return incomparable(self.engine, self.plan.policy) if self.beside else ""

    def run(self, number: int) -> FuzzTrial:
        """Run one trace. Raises EngineBroken if the engine cannot be built, BadEvents if its
        header is none.
        """
        trial = FuzzTrial()
        began = time.perf_counter()
        try:
            configuration, trace = self.plan.draw(number)
        except UsageError as error:
            trial.left_out.append((CONFIGURATIONS, str(error)))
            return trial
        try:
            engine = self.engine.open(trace.header)
        except EngineBroken:
            raise
        except UsageError as error:
            trial.left_out.append((CONFIGURATIONS, str(error)))
            trial.refused = True
            trial.startup_seconds = time.perf_counter() - began
            trial.missing = str(error) if isinstance(error, EngineMissing) else ""
            return trial
        header = described(engine, trace.header)
        trial.startup_seconds = time.perf_counter() - began
        for need in lacking(trace, header.capabilities):
            trial.left_out.append(
                (f"{need} in a trace", header.not_applicable.get(need, "the engine cannot"))
            )
        trace, marks = fitting(trace, header.capabilities), Counter[str]()
        way: Way = "lockstep" if self._paired(trace, header, trial) else "rules"
        watch = Watch(header, marks)
        spent = time.process_time()
        result, bad = judged(
            trace, self.engine, way, engine=engine, checkers=[*fresh(), watch], keep=False
        )
        if result.activity.lookups and not result.counted:
            trial.left_out.append(UNCOUNTED)
        counted = [
            result.activity,
            [(t.checker, t.opportunities, t.findings) for t in result.tallies],
        ]
        trial.judged = Judged(
            name=f"fuzz:{trace.header.name}@{configuration.name}",
            level=trace.header.level,
            activity=result.activity,
            tallies=result.tallies,
            findings=sorted(
                result.findings, key=lambda finding: finding.checker == DIFFERENTIAL
            ),  # a rule says more
            bad=bad,
            trace=trace if result.findings else None,
            digested=traces.dump(trace) + msgspec.json.encode(counted),
            marks=marks,
            seconds=time.perf_counter() - began,
            engine_seconds=seconds_in(engine),
            harness_seconds=beside(engine, time.process_time() - spent),
            version=header.engine_version,
        )
        return trial

    def _paired(self, trace: Trace, header: Header, trial: FuzzTrial) -> bool:
        """Whether the reference runs beside the engine in a trace; note why if it was asked for
        and cannot.
        """
        if not self.beside:
            return False
        why = (
            self._one_process_each
            or header.not_applicable.get(DIFFERENTIAL, "")
            or refused(trace, header)
        )
        if why:
            trial.left_out.append(("lock-step with the reference", why))
        return not why
