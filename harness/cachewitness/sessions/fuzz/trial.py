"""One trace of a campaign: drawn, run and judged, whichever process does it."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.core import trace_format as traces
from cachewitness.core.checkers import fresh
from cachewitness.core.events import Header
from cachewitness.core.trace_format import Level, Trace
from cachewitness.engines.registry import EngineSpec
from cachewitness.sessions.fuzz.draw import Restriction, draw
from cachewitness.sessions.fuzz.watch import Watch
from cachewitness.sessions.run.judging import Way, judged
from cachewitness.sessions.run.lockstep import NAME as DIFFERENTIAL
from cachewitness.sessions.run.lockstep import incomparable, refused
from cachewitness.sessions.run.trial import Trial
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

    def draw(self, number: int, engine: EngineSpec | None = None) -> tuple[Configuration, Trace]:
        """Return configuration and trace number so many, for an engine; None: for the policy's
        reference.

        Raises UsageError if the policy refuses what the user chose.
        """
        return self.drawn(
            Seeded(f"{self.stream}/{self.seed}/{number}"), f"fuzz-{self.seed}-{number}", engine
        )

    def drawn(
        self, source: Source, name: str, engine: EngineSpec | None = None
    ) -> tuple[Configuration, Trace]:
        """Return the configuration and the trace that these choices make. Raises UsageError as
        `draw` does.
        """
        level = source.choice(self.levels)
        configuration = draw(source, self.policy, level, self.chosen, engine)
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
class FuzzTrial(Trial):
    """What came of one number. `digested` is what the digest is of, `marks` are what the trace
    came to (`cachewitness.sessions.fuzz.watch`), `seconds` it took from being drawn.
    """

    name: str = ""
    digested: bytes = b""
    marks: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


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
            configuration, trace = self.plan.draw(number, self.engine)
        except UsageError as error:
            trial.left_out.append((CONFIGURATIONS, str(error)))
            return trial
        if (opened := trial.open(trace, self.engine)) is None:
            trial.left_out.append((CONFIGURATIONS, str(trial.refusal)))
            return trial
        engine, header = opened
        for need in lacking(trace, header.capabilities):
            trial.left_out.append(
                (f"{need} in a trace", header.not_applicable.get(need, "the engine cannot"))
            )
        trace = fitting(trace, header.capabilities)
        way: Way = "lockstep" if self._paired(trace, header, trial) else "rules"
        checkers = [*fresh(), Watch(header, trial.marks, trace.ops)]
        spent = time.process_time()
        judgement = judged(trace, self.engine, way, engine=engine, checkers=checkers, keep=False)
        result = trial.take(judgement, engine, spent)
        result.findings.sort(key=lambda one: one.checker == DIFFERENTIAL)  # a rule says more
        counted = [
            result.activity,
            [(t.checker, t.opportunities, t.findings) for t in result.tallies],
        ]
        trial.name = f"fuzz:{trace.header.name}@{configuration.name}"
        trial.digested = traces.dump(trace) + msgspec.json.encode(counted)
        trial.seconds = time.perf_counter() - began
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
