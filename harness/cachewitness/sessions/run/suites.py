"""The suites by name: streams of traces, and how each trace is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from zlib import crc32

from cachewitness.core.events import Header
from cachewitness.core.trace_format import Level, Trace
from cachewitness.engines.registry import EngineSpec
from cachewitness.report.reuse import ReuseRow
from cachewitness.sessions.run.judging import Way
from cachewitness.workloads.answer_large import LARGE_STORIES, LargeStory
from cachewitness.workloads.answer_random import random_answers
from cachewitness.workloads.answer_stories import STORIES, write
from cachewitness.workloads.avoided import as_configured
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness.workloads.scenarios import LARGE, SCENARIOS, Scenario

_NUMBERS, _PLACES = 1_000, 1_000
"""So many numbers lie between the random traces of two configurations, in so many places."""


@dataclass
class Stream:
    """Traces for one configuration, and the engine that runs them, its precision included; `ran` of
    them have been run.

    `refused`: the engine refused one of them, or the reference beside it did. `reuse` is what they
    restored. `control` names what is run beside the engine, to know what is the cache's doing;
    empty: the engine itself. `beside` are the options of the engine's name that the run's engine
    has not.
    """

    configuration: Configuration
    engine: EngineSpec
    traces: Iterator[Trace]
    ran: int = 0
    control: str = ""
    beside: str = ""
    refused: bool = False
    reuse: ReuseRow = field(init=False)

    def __post_init__(self) -> None:
        self.reuse = ReuseRow(configuration=self.name)

    @property
    def name(self) -> str:
        """The configuration's name, and the control's or the further options of the engine."""
        return "/".join(filter(None, [self.configuration.name, self.control, self.beside]))


@dataclass(frozen=True)
class Tensors:
    """How a suite that compares tensors draws its traces.

    `streams(engine, configurations, seed)` returns the traces; `inapplicable(trace, header)` says
    why a trace has nothing to show on an engine of that header, empty if it has.
    """

    streams: Callable[[EngineSpec, Sequence[Configuration], int], list[Stream]]
    inapplicable: Callable[[Trace, Header], str]


@dataclass(frozen=True)
class Suite:
    """A named stream of traces. `paired` runs each beside the reference too, `tensors` compares
    what an engine computes.

    `sampled`: on an engine that computes tensors, a short run takes one trace in so many. `spread`:
    each configuration has so many traces and begins with another of them, so that the first rounds
    meet all traces and all configurations. `large`: scenarios that are run once each, on
    configurations in turn, and left out by a short run.
    """

    name: str
    summary: str
    level: Level
    traces: Callable[[Configuration, Level, int], Iterator[Trace]]
    paired: bool = False
    endless: bool = False
    tensors: Tensors | None = None
    sampled: int = 1
    spread: int = 0
    ceiling: bool = False
    """Behind its traces each configuration has two whose prompts are as long as the engine declares
    that it takes, one of them random."""
    large: tuple[Scenario | LargeStory, ...] = ()
    draw: Callable[[Configuration, Level, int], Trace] | None = None
    """Makes a random trace from its number; None: the traces are not random."""

    @property
    def way(self) -> Way:
        """How its traces are judged."""
        return "cold" if self.tensors else "lockstep" if self.paired else "rules"

    def traces_of(
        self, configuration: Configuration, seed: int, place: int, places: int
    ) -> Iterator[Trace]:
        """Yield the traces of a configuration, the one at `place` of so many, in the order in
        which they are run.
        """
        first = self.spread * place // places
        yield from islice(self.traces(configuration, self.level, seed), first, None)
        if first:
            yield from islice(self.traces(configuration, self.level, seed), first)

    def of_one(self, trace: Trace) -> Suite:
        """Return this suite with one trace in place of all that it draws and adds."""
        return replace(
            self,
            traces=lambda configuration, level, seed: iter([trace]),
            endless=False,
            sampled=1,
            ceiling=False,
            large=(),
            draw=None,
        )

    def large_traces(
        self, configuration: Configuration, place: int, places: int, *, full: bool = False
    ) -> Iterator[Trace]:
        """Yield the large scenarios that are run on the configuration at `place` of so many; some
        in a `full` run alone.
        """
        shape = configuration.shape(self.level)
        for number, scenario in enumerate(self.large):
            taken = full or not scenario.full_alone
            if number * places // len(self.large) == place and taken and scenario.applies(shape):
                yield as_configured(scenario.trace(shape))


def scenario_traces(configuration: Configuration, level: Level, seed: int) -> Iterator[Trace]:
    """Yield the hand-written scenarios that fit a configuration."""
    shape = configuration.shape(level)
    for scenario in SCENARIOS:
        if scenario.applies(shape):
            yield scenario.trace(shape)


def first_number(configuration: Configuration, seed: int) -> int:
    """Return the number of the first random trace of a seed on a configuration.

    Each configuration has numbers of its own, by its name, whichever others are run: with the same
    numbers for all, one drawn choice (such as how many requests are live) would be that of each.
    """
    return seed * 1_000_003 + _NUMBERS * (crc32(configuration.name.encode()) % _PLACES)


def _draw(configuration: Configuration, level: Level, number: int) -> Trace:
    return random_trace(configuration.shape(level), number, withdraw=number % 4 == 0)


def _random(configuration: Configuration, level: Level, seed: int) -> Iterator[Trace]:
    return (
        _draw(configuration, level, number) for number in count(first_number(configuration, seed))
    )


def _answers(configuration: Configuration, level: Level, seed: int) -> Iterator[Trace]:
    shape = configuration.shape(level)
    for story in STORIES:
        yield as_configured(write(shape, story, seed))


def _draw_answers(configuration: Configuration, level: Level, number: int) -> Trace:
    return as_configured(random_answers(configuration.shape(level), number))


def _random_answers(configuration: Configuration, level: Level, seed: int) -> Iterator[Trace]:
    return (
        _draw_answers(configuration, level, number)
        for number in count(first_number(configuration, seed))
    )


SUITES: tuple[Suite, ...] = (
    Suite(
        "invariants",
        "hand-written scenarios under every checker",
        "manager",
        scenario_traces,
        ceiling=True,
        large=LARGE,
    ),
    Suite(
        "random",
        "random workloads that prefer boundaries, under every checker",
        "manager",
        _random,
        endless=True,
        draw=_draw,
    ),
    Suite(
        "scheduler",
        "the scenarios with the engine's own scheduler",
        "scheduler",
        scenario_traces,
        sampled=10,
        ceiling=True,
        large=LARGE,
    ),
    Suite(
        "scheduler-random",
        "random workloads with the engine's own scheduler",
        "scheduler",
        _random,
        endless=True,
        draw=_draw,
    ),
    Suite(
        "differential",
        "random workloads in lock-step with the reference",
        "manager",
        _random,
        paired=True,
        endless=True,
        draw=_draw,
    ),
    Suite(
        "differential-scheduler",
        "the same with the engine's own scheduler",
        "scheduler",
        _random,
        paired=True,
        endless=True,
        draw=_draw,
    ),
    Suite(
        "answers",
        "stories told to an engine that only answers, beside its uncached twin",
        "answers",
        _answers,
        spread=len(STORIES),
        ceiling=True,
        large=LARGE_STORIES,
    ),
    Suite(
        "answers-random",
        "random requests around boundaries, judged alike",
        "answers",
        _random_answers,
        endless=True,
        draw=_draw_answers,
    ),
)
