"""The policy `furiosa` as it is registered: Furiosa-LLM's two pools and radix tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from msgspec.structs import replace

from cachewitness.core.engine import Engine
from cachewitness.core.trace_format import Layout, TraceHeader
from cachewitness.engines.choices import Choices
from cachewitness.engines.layout_rules import LayoutRules
from cachewitness.engines.on_tensors import OnTensors, Serving, served_plainly
from cachewitness.engines.policy import PolicyKind, Rule
from cachewitness.engines.sizing import Sizing
from cachewitness.systems.furiosa.reference import EXPECTED_LENGTH, NOT_APPLICABLE
from cachewitness.vectors.case import PolicyAnswers
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness_reference.furiosa.spec import AXES, PINNED_RELEASE, REPOSITORY, RULES


def configurations() -> list[Configuration]:
    """Return the configurations of a run: every option, and a window that is no multiple of the
    block.
    """
    even = layouts.load("full-swa")
    groups = [replace(group, window=21 if group.kind == "sliding" else 0) for group in even.groups]
    uneven = replace(
        even,
        name="full-swa-uneven",
        groups=groups,
        story="a window that is no multiple of the block",
    )
    return [*variants(even), *variants(uneven)[:2]]


def cold_configurations() -> list[Configuration]:
    """Return the configurations on which tensors are compared."""
    return variants(layouts.load("full-swa"))[:3]


def variants(layout: Layout) -> list[Configuration]:
    """Return the configurations of one layout: each option that the documents leave open, and
    the default.
    """
    lengths = {"expected_average_seq_length": 4 * layout.groups[0].block_size}
    chosen = (
        {"default_ratio": "per_token"},
        lengths,
        lengths | {"hit_granularity": "block"},
        lengths | {"window_tail": "W"},
        lengths | {"out_of_window": "freed"},
    )
    return [Configuration(layout, options, "furiosa", least_pages) for options in chosen]


def least_pages(layout: Layout, options: Mapping[str, Any]) -> int:
    """Return the smallest pool that holds one sequence of the length that memory is split for."""
    from cachewitness.systems.furiosa.reference import engine

    return engine.least_pages(layout, options)


def serve(layout: Layout, serving: Serving) -> TraceHeader:
    """Return the header of a scheduler that answers prompts.

    Memory is split by token: a split for the longest request leaves the windows of cached prefixes
    no room, and then nothing is hit.
    """
    return served_plainly("furiosa", layout, serving, default_ratio="per_token")


def _steer(engine: Any, choices: Choices) -> None:
    from cachewitness.systems.furiosa.reference.choices import steer

    steer(engine, choices)


def _open(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    from cachewitness.systems.furiosa.reference.engine import open_engine

    return open_engine(header, options)


def _answers() -> PolicyAnswers:
    from cachewitness.systems.furiosa.reference.vectors.answers import ANSWERS

    return ANSWERS


def _plan() -> click.Command:
    from cachewitness.systems.furiosa.reference.plan import command

    return command


POLICY = PolicyKind(
    name="furiosa",
    summary="the two pools and the radix tree of Furiosa-LLM",
    source=REPOSITORY,
    pinned=PINNED_RELEASE,
    releases=(PINNED_RELEASE,),
    rules=[Rule(rule.name, rule.summary, rule.implemented) for rule in RULES.values()],
    axes=AXES,
    open=_open,
    steer=_steer,
    configurations=configurations,
    tensors=OnTensors(cold_configurations, serve, checkpoint="window"),
    layouts=LayoutRules(variants, least_pages=least_pages),
    not_applicable=NOT_APPLICABLE,
    answers=_answers,
    variables=(EXPECTED_LENGTH,),
    sizing=Sizing(_plan, aliases=("furiosa_llm",)),
)
