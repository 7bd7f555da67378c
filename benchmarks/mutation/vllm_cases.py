"""What is run on vLLM for each mutant: random traces on every configuration, and behind every
connector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.mutation.cases import Case, in_turn
from benchmarks.vllm_hunt import early
from cachewitness.core.trace_format import Level
from cachewitness.systems.vllm.configurations import (
    connector_configurations,
    further_configurations,
)
from cachewitness.systems.vllm.reference.policy import (
    default_configurations,
    scheduler_configurations,
)
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from cachewitness.workloads.scenarios import SCENARIOS

CONNECTORS = (
    *("offloading", "simple", "multi", "offloading-outputs", "simple-lazy", "offloading-chunks"),
    *("offloading-sync", "example"),
)
ONE_GROUP = "example"
"""The connector that takes one group alone."""
MODELS = ("qwen3.5-0.8b", "gemma-3-27b", "deepseek-v4-flash", "glm-5.1", "gpt-oss-20b")
HISPARSE = {
    "eager": {"max_num_batched_tokens": 32, "async_depth": 1},
    "lazy": {"async_depth": 1},
}
TURNS = 3
"""Each scenario is run on so many of the configurations that it applies to."""


def cases(source: str, seed: int) -> list[Case]:
    """Return all cases, those of each kind in turn."""
    engine = f"vllm:source={source}"
    reporting = f"{engine},key_events=full"
    return in_turn(
        [
            _random(engine, "scheduler", seed),
            _random(engine, "manager", seed),
            _connected(engine, seed),
            _stories(engine, "scheduler"),
            _stories(engine, "manager"),
            _tiered(engine),
            _sized(engine, seed),
            _sparse(engine, seed),
            _random(reporting, "scheduler", seed, only=_is_full),
        ]
    )


def configurations(level: Level) -> list[Configuration]:
    """Return the configurations of a run in which the user chose nothing, diverse ones first."""
    further = (
        [*scheduler_configurations(), *further_configurations()] if level == "scheduler" else []
    )
    return [
        configuration
        for configuration in early([*default_configurations(), *further])
        if configuration.runs_at(level) and not configuration.options.get("tier_pages")
    ]


def _is_full(configuration: Configuration) -> bool:
    """Whether all groups are of full attention: of others vLLM tells hits wrongly as it is
    (vllm-project/vllm#57358).
    """
    return all(group.kind == "full" for group in configuration.layout.groups)


def _random(
    engine: str,
    level: Level,
    seed: int,
    only: Callable[[Configuration], bool] = lambda configuration: True,
) -> Iterator[Case]:
    for number, configuration in enumerate(filter(only, configurations(level))):
        trace = random_trace(configuration.shape(level), 1000 * seed + number, withdraw=False)
        yield Case(engine, trace, paired=level == "manager")


def _connected(engine: str, seed: int) -> Iterator[Case]:
    """Yield random traces behind each connector in turn, each time on the next configuration."""
    behind = early(connector_configurations())
    for turn in range(len(behind)):
        for place, connector in enumerate(CONNECTORS):
            alone = [one for one in behind if len(one.layout.groups) == 1]
            offered = alone if connector == ONE_GROUP else behind
            shape = offered[(turn + place) % len(offered)].shape("scheduler")
            number = 1000 * seed + turn * len(CONNECTORS) + place
            yield Case(
                f"{engine},connector={connector}", random_trace(shape, number, withdraw=False)
            )


def _sized(engine: str, seed: int) -> Iterator[Case]:
    """Yield a random trace on each model that goes through vLLM's own sizing, and one with a
    drafter.
    """
    for number, model in enumerate(MODELS):
        for drafts in ({}, {"use_eagle": True, "num_speculative_tokens": 2}):
            shape = Configuration(layouts.load(model), drafts).shape("scheduler")
            trace = random_trace(shape, 1000 * seed + number, withdraw=False)
            yield Case(f"{engine},sized=pages", trace)


def _sparse(engine: str, seed: int) -> Iterator[Case]:
    """Yield random traces on sparse attention whose blocks lie on the host."""
    for number, (way, options) in enumerate(HISPARSE.items()):
        shape = Configuration(layouts.load("full-sparse"), options).shape("scheduler")
        trace = random_trace(shape, 1000 * seed + number, withdraw=False)
        yield Case(f"{engine},hisparse={way}", trace)


def _stories(engine: str, level: Level) -> Iterator[Case]:
    """Yield each scenario on one of the configurations that it applies to."""
    shapes = [configuration.shape(level) for configuration in configurations(level)]
    for turn in range(TURNS):
        for number, story in enumerate(SCENARIOS):
            applies = [shape for shape in shapes if story.applies(shape)]
            if applies and not story.needs and not story.tiered:
                trace = story.trace(applies[(7 * turn + number) % len(applies)])
                yield Case(engine, trace, paired=level == "manager")


def _tiered(engine: str) -> Iterator[Case]:
    """Yield each scenario about a second tier behind one of the connectors."""
    shapes = [configuration.shape("scheduler") for configuration in connector_configurations()]
    for number, story in enumerate(story for story in SCENARIOS if story.tiered):
        for place, connector in enumerate(CONNECTORS):
            applies = [shape for shape in shapes if story.applies(shape)]
            if applies and not story.needs:
                shape = applies[(number + place) % len(applies)]
                yield Case(f"{engine},connector={connector}", story.trace(shape))
