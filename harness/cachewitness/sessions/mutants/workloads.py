"""The traces that faults are hunted with: what any engine of a policy gets, in the same order for
every fault.

Traces of the policy's configurations and traces that the fuzzer draws take turns. Of the
configurations come the scenarios, prompts as long as the engine declares, and random work in
between, one trace of each configuration after another, and behind each round one of the large
scenarios; when they are used up the fuzzer goes on alone, without end. The fault decides the policy
and the level; only how long its longest prompts are is the answer of the engine that has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from cachewitness._util.errors import UsageError
from cachewitness.core.trace_format import Level, Trace
from cachewitness.engines import policy as policies
from cachewitness.engines.mutant import Mutant
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.sessions.fuzz.draw import Restriction
from cachewitness.sessions.fuzz.trial import Plan
from cachewitness.sessions.run.ceiling import ceiling
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness.workloads.scenarios import LARGE, SCENARIOS

STORIES_A_RANDOM_TRACE = 4
"""After so many scenarios of a configuration comes a random trace."""
GALLERIES = 4
"""So many of a hundred traces that the fuzzer draws here are galleries, without which names cut to
some bits are found late."""


def level_of(mutant: Mutant) -> Level:
    """Return the lowest level at which a fault shows and its policy runs."""
    levels = policies.get(mutant.policy).levels
    if mutant.engine == "toy":
        return "scheduler"
    return mutant.level if mutant.level in levels else levels[-1]


def workloads(mutant: Mutant, seed: int = 0) -> Iterator[Trace]:
    """Yield traces without end. The caller leaves out those that an engine refuses (UsageError)."""
    level = level_of(mutant)
    policy = policies.get(mutant.policy)
    configurations = [
        configuration for configuration in policy.configurations() if configuration.runs_at(level)
    ]
    if level == "scheduler":
        configurations.sort(
            key=lambda configuration: configuration.runs_at("manager")
        )  # what only a scheduler has comes first
    places = len(configurations)
    large = [
        scenario.trace(configurations[number * places // len(LARGE)].shape(level))
        for number, scenario in enumerate(LARGE)
    ]
    spec = parse(f"{mutant.engine}:mutant={mutant.name}")
    streams = [_of_cell(configuration, level, seed, spec) for configuration in configurations]
    streams.append(iter(large))
    drawn = _drawn(
        Plan(
            mutant.policy,
            (level,),
            Restriction([], {}, historic=False),
            seed,
            stream="kills",
            galleries=GALLERIES,
        )
    )
    for trace in _in_turn(streams):
        yield trace
        yield next(drawn)
    yield from drawn


def _in_turn(streams: list[Iterator[Trace]]) -> Iterator[Trace]:
    while streams:
        for stream in list(streams):
            trace = next(stream, None)
            if trace is None:
                streams.remove(stream)
            else:
                yield trace


def _drawn(plan: Plan) -> Iterator[Trace]:
    for number in count():
        try:
            yield plan.draw(number)[1]
        except UsageError:
            continue


def _of_cell(
    configuration: Configuration, level: Level, seed: int, spec: EngineSpec
) -> Iterator[Trace]:
    shape = configuration.shape(level)
    for index, story in enumerate([story for story in SCENARIOS if story.applies(shape)]):
        yield story.trace(shape)
        if index % STORIES_A_RANDOM_TRACE == 0:
            number = seed * len(SCENARIOS) + index // STORIES_A_RANDOM_TRACE
            yield random_trace(shape, number, withdraw=number % 2 == 1)
        if index == 0:
            yield from ceiling(spec, configuration, level, seed)
