"""What is run for each mutant of an engine with configurations of its own: random traces and
scenarios on each, as in a run, and what the release is known for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from benchmarks.mutation.cases import Case, in_turn
from cachewitness.core.trace_format import Level, Trace
from cachewitness.engines.registry import parse
from cachewitness.report.expected import Entry, shipped
from cachewitness.workloads.answer_random import random_answers
from cachewitness.workloads.answer_stories import STORIES, write
from cachewitness.workloads.avoided import as_configured
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness.workloads.scenarios import SCENARIOS

SUITES: dict[Level, tuple[str, str]] = {
    "manager": ("random", "invariants"),
    "scheduler": ("scheduler-random", "scheduler"),
    "answers": ("answers-random", "answers"),
}
"""The suites of a run by level, whose names a list of what is known has: of random traces, and of
scenarios."""
SEEDS = 40
"""So many random traces are made of each configuration."""
TURNS = 1000
"""Each scenario is run on all configurations that it applies to."""
Named = tuple[str, Configuration, Trace]
"""A suite, a configuration and a trace."""


def cases_of(
    engine: str,
    level: Level,
    configurations: Sequence[Configuration],
    release: str,
    seed: int,
    *,
    seeds: int = SEEDS,
    turns: int = TURNS,
) -> list[Case]:
    """Return all cases on an engine as it is named: random traces on each configuration in turn,
    and scenarios between them, each on so many configurations that it applies to.
    """
    spec = parse(engine)
    known = shipped(f"{engine} {release}", spec.known_lists(release) or ()).entries
    random_suite, scenario_suite = SUITES[level]
    draw, scenarios = (_answers, _stories) if level == "answers" else (_trace, _scenarios)
    streams = [
        _random(random_suite, draw, level, configurations, range(1000 * seed, 1000 * seed + seeds)),
        scenarios(scenario_suite, level, configurations, seed, turns),
    ]
    return in_turn((_case(engine, known, *one) for one in stream) for stream in streams)


def _case(
    engine: str, known: Sequence[Entry], suite: str, configuration: Configuration, trace: Trace
) -> Case:
    name = f"{suite}:{trace.header.name}@{configuration.name}"
    return Case(engine, trace, known=tuple(entry for entry in known if entry.fits(name)))


def _random(
    suite: str,
    draw: Callable[[Configuration, Level, int], Trace],
    level: Level,
    configurations: Sequence[Configuration],
    numbers: Sequence[int],
) -> Iterator[Named]:
    for number in numbers:
        for configuration in configurations:
            yield suite, configuration, draw(configuration, level, number)


def _trace(configuration: Configuration, level: Level, number: int) -> Trace:
    return random_trace(configuration.shape(level), number, withdraw=False)


def _answers(configuration: Configuration, level: Level, number: int) -> Trace:
    return as_configured(random_answers(configuration.shape(level), number))


def _scenarios(
    suite: str, level: Level, configurations: Sequence[Configuration], seed: int, turns: int
) -> Iterator[Named]:
    """Yield each scenario on a configuration that it applies to, then on the next."""
    for turn in range(min(turns, len(configurations))):
        for number, story in enumerate(SCENARIOS):
            applies = [one for one in configurations if story.applies(one.shape(level))]
            if turn < len(applies) and not story.tiered and not story.needs:
                configuration = applies[(turn + number) % len(applies)]
                yield suite, configuration, story.trace(configuration.shape(level))


def _stories(
    suite: str, level: Level, configurations: Sequence[Configuration], seed: int, turns: int
) -> Iterator[Named]:
    """Yield what is asked of an engine that only answers, each story on one configuration, then
    on the next.
    """
    for turn in range(min(turns, len(configurations))):
        for number, story in enumerate(STORIES):
            configuration = configurations[(turn + number) % len(configurations)]
            shape = configuration.shape(level)
            yield suite, configuration, as_configured(write(shape, story, seed))
