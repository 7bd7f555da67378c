"""The policy `tensorrt_edge` as it is registered: TensorRT-Edge-LLM's hybrid cache manager."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from cachewitness.core.engine import Engine
from cachewitness.core.trace_format import Layout, TraceHeader
from cachewitness.engines.choices import Choices
from cachewitness.engines.on_tensors import OnTensors, Serving, served_plainly
from cachewitness.engines.policy import PolicyKind, Rule
from cachewitness.engines.sizing import Sizing
from cachewitness.systems.tensorrt_edge.reference import NOT_APPLICABLE
from cachewitness.vectors.case import PolicyAnswers
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness_reference.tensorrt_edge import spec

NAME = "tensorrt_edge"
BLOCKS_PER_CAPTURE = 16
"""Where prompts are answered: a capture for every so many blocks that the pool of another policy
would have."""


def configurations() -> list[Configuration]:
    """Return the configurations of a run: every kind of group, rows and captures under pressure,
    each way to run.
    """
    full = layouts.load("full")
    unequal = layouts.load("full-mamba-unequal")
    three, mamba, window = (
        layouts.load(name) for name in ("full-swa-mamba", "full-mamba", "full-swa")
    )
    return [
        _configuration(full),
        _configuration(mamba),
        _configuration(three),
        _configuration(three, max_batch_size=2, system_prompts=1),
        _configuration(mamba, max_batch_size=3, survivors="descending"),
        _configuration(window, max_batch_size=2, system_prompts=2),
        _configuration(mamba, replay_last_token=True),
        _configuration(three, joining="static", max_batch_size=3),
        _configuration(unequal, system_prompts=2),
    ]


def cold_configurations() -> list[Configuration]:
    """Return the configurations on which tensors are compared."""
    three = layouts.load("full-swa-mamba")
    mamba = layouts.load("full-mamba")
    return [
        _configuration(three),
        _configuration(mamba, survivors="descending"),
        _configuration(mamba, replay_last_token=True),
    ]


def _configuration(layout: Layout, **options: Any) -> Configuration:
    return Configuration(layout, options, NAME)


def serve(layout: Layout, serving: Serving) -> TraceHeader:
    """Return the header of a runtime that answers prompts: a row for each of the batch, a capture
    for each prompt in the pool.

    A second tier, if there is one, says how many captures there are.
    """
    places = serving.tier_pages or max(1, serving.pages // BLOCKS_PER_CAPTURE)
    return served_plainly(NAME, layout, replace(serving, tier_pages=0), system_prompts=places)


def _steer(engine: Any, choices: Choices) -> None:
    from cachewitness.systems.tensorrt_edge.reference.choices import steer

    steer(engine, choices)


def _open(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    from cachewitness.systems.tensorrt_edge.reference.engine import open_engine

    return open_engine(header, options)


def _answers() -> PolicyAnswers:
    from cachewitness.systems.tensorrt_edge.reference.vectors.answers import ANSWERS

    return ANSWERS


def _plan() -> click.Command:
    from cachewitness.systems.tensorrt_edge.reference.plan import command

    return command


POLICY = PolicyKind(
    name=NAME,
    summary=(
        "the hybrid cache manager of TensorRT-Edge-LLM: batch rows, compaction, captured system"
        " prompts"
    ),
    source=spec.REPOSITORY,
    pinned=spec.PINNED_RELEASE,
    releases=spec.RELEASES,
    rules=[Rule(rule.name, rule.summary, rule.implemented) for rule in spec.RULES.values()],
    axes=spec.AXES,
    open=_open,
    steer=_steer,
    configurations=configurations,
    tensors=OnTensors(cold_configurations, serve, keeps_answers=False),
    not_applicable=NOT_APPLICABLE,
    answers=_answers,
    sizing=Sizing(_plan, aliases=("tensorrt_edge_llm",)),
)
