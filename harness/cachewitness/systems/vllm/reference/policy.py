"""The policy `vllm` as it is registered: the prefix cache of vLLM's V1 engine.

Its configurations cover every kind of group, equal and unequal block sizes, the three kinds of
retention (dense, reachable boundaries alone, an interval), hits inside a block, events for routers,
snapshots of several pages and speculative look-ups; at scheduler level drafts, steps in flight and
a second tier as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click

from cachewitness.core.engine import Engine
from cachewitness.core.trace_format import Layout, Level, TraceHeader
from cachewitness.engines.choices import Choices
from cachewitness.engines.drawing import Drawing
from cachewitness.engines.layout_rules import LayoutRules
from cachewitness.engines.on_tensors import OnTensors, Serving
from cachewitness.engines.policy import PolicyKind, Rule
from cachewitness.engines.sizing import Sizing
from cachewitness.systems.vllm.reference import RETENTION_INTERVAL
from cachewitness.vectors.case import PolicyAnswers
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.scenarios.shape import Shape
from cachewitness.workloads.source import Source
from cachewitness_reference.vllm.spec import PINNED_RELEASE, RELEASES, REPOSITORY, RULES
from cachewitness_reference.vllm_extended.spec import RULES as FURTHER_RULES


def default_configurations() -> list[Configuration]:
    """Return the configurations of a run in which the user chose nothing, at any level."""
    configurations = [Configuration(layouts.load("full"))]
    for name in (
        "full-mamba",
        "full-swa",
        "full-swa-mamba",
        "full-mamba-unequal",
        "full-swa-unequal",
    ):
        configurations += variants(layouts.load(name))
    mamba = layouts.load("full-mamba")
    window = layouts.load("full-swa")
    configurations += [
        Configuration(mamba, {"retention_interval": 0, "hash_block_size": 4}),
        Configuration(mamba, {"retention_interval": None, "hash_block_size": 4}),
        Configuration(
            mamba, {"retention_interval": 64, "hash_block_size": 4, "enable_kv_cache_events": True}
        ),
        Configuration(mamba, {"retention_interval": 64, "pages_per_snapshot": 3}),
        Configuration(mamba, {"retention_interval": 0, "use_eagle": True}),
        Configuration(window, {"retention_interval": 64, "use_eagle": True}),
        Configuration(layouts.load("full-full-narrow"), {"retention_interval": None}),
    ]
    return configurations


def scheduler_configurations() -> list[Configuration]:
    """Return the further configurations of a run in which the user chose nothing, for suites at
    scheduler level.
    """
    full, mamba, window = (layouts.load(name) for name in ("full", "full-mamba", "full-swa"))
    three = layouts.load("full-swa-mamba")
    unequal = layouts.load("full-mamba-unequal")
    return [
        Configuration(full, {"num_speculative_tokens": 3}),
        Configuration(mamba, {"retention_interval": 0, "num_speculative_tokens": 3}),
        Configuration(three, {"retention_interval": None, "num_speculative_tokens": 4}),
        Configuration(unequal, {"retention_interval": None, "num_speculative_tokens": 7}),
        Configuration(
            mamba, {"retention_interval": 64, "use_eagle": True, "num_speculative_tokens": 2}
        ),
        Configuration(
            window, {"retention_interval": 64, "use_eagle": True, "num_speculative_tokens": 3}
        ),
        Configuration(three, {"retention_interval": None, "async_depth": 1}),
        Configuration(mamba, {"retention_interval": 0, "hash_block_size": 4, "async_depth": 1}),
        Configuration(three, {"retention_interval": 0, "async_depth": 2}),
        Configuration(full, {"tier_pages": 16}),
        Configuration(three, {"retention_interval": None, "tier_pages": 96}),
        Configuration(window, {"retention_interval": 0, "tier_pages": 24}),
        Configuration(mamba, {"retention_interval": None, "tier_pages": 96, "async_depth": 1}),
        Configuration(
            three, {"retention_interval": None, "tier_pages": 96, "num_speculative_tokens": 3}
        ),
        Configuration(full, {"tier_pages": 16, "tier_delay": 3}),
        Configuration(
            mamba, {"retention_interval": None, "tier_pages": 48, "tier_delay": 2, "async_depth": 1}
        ),
    ]


def cold_configurations() -> list[Configuration]:
    """Return the configurations on which tensors are compared.

    Each kind of group, dense retention, an interval and reachable boundaries alone, and blocks that
    are no multiple of the model's chunk.
    """
    return [
        Configuration(layouts.load("full-swa-mamba"), {"retention_interval": None}),
        Configuration(layouts.load("full-mamba"), {"retention_interval": 0}),
        Configuration(layouts.load("full-swa"), {"retention_interval": 64}),
        Configuration(layouts.load("full-mamba-unequal"), {"retention_interval": None}),
    ]


def variants(layout: Layout) -> list[Configuration]:
    """Return the three kinds of retention of one layout; one configuration alone if retention
    governs none of its groups.
    """
    shape = Shape(layout)
    if not (shape.has("sliding") or shape.has("recurrent")):
        return [Configuration(layout)]
    return [
        Configuration(layout, {"retention_interval": interval})
        for interval in (None, 0, 4 * shape.unit)
    ]


def serve(layout: Layout, serving: Serving) -> TraceHeader:
    """Return the header of a scheduler that answers prompts."""
    options: dict[str, Any] = {
        "enable_caching": serving.caching,
        "max_num_seqs": serving.batch,
        "max_num_batched_tokens": serving.budget,
        "max_model_len": serving.model_len,
        "num_speculative_tokens": serving.drafts,
        "async_depth": serving.in_flight,
        "tier_pages": serving.tier_pages if serving.caching else 0,
    }
    if serving.caching and any(group.kind != "full" for group in layout.groups):
        options["retention_interval"] = serving.retention_interval
    return TraceHeader(
        name="service", layout=layout, pages=serving.pages, level="scheduler", options=options
    )


def _configurations() -> list[Configuration]:
    return [*default_configurations(), *scheduler_configurations()]


def _open(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    from cachewitness.systems.vllm.reference.engine import open_engine

    return open_engine(header, options)


def _refuse(header: TraceHeader) -> None:
    from cachewitness.systems.vllm.reference.engine import configure

    configure(header)


def _steer(engine: Any, choices: Choices) -> None:
    from cachewitness.systems.vllm.reference.choices import steer

    steer(engine, choices)


def _answers() -> PolicyAnswers:
    from cachewitness.systems.vllm.reference.vectors.answers import ANSWERS

    return ANSWERS


def _plan() -> click.Command:
    from cachewitness.systems.vllm.reference.plan_command import command

    return command


def _draw(
    source: Source, layout: Layout | None, level: Level, *, historic: bool
) -> tuple[Layout, Iterable[dict[str, Any]]]:
    from cachewitness.systems.vllm.reference.draw import draw

    return draw(source, layout, level, historic=historic)


POLICY = PolicyKind(
    name="vllm",
    summary="the prefix cache of vLLM's V1 engine",
    source=REPOSITORY,
    pinned=PINNED_RELEASE,
    releases=tuple(RELEASES),
    rules=[
        Rule(rule.name, rule.summary, rule.implemented) for rule in (RULES | FURTHER_RULES).values()
    ],
    axes={
        "window": "W − 1",
        "recurrent": "block, thinned by the retention interval",
        "last token": "from the last block boundary (a hit leaves one token)",
        "group miss": "shortened to what all have",
        "duplicate": "both kept under one key",
        "eviction": "free queue, least recently freed first, tails before heads",
        "publication": "when the step is scheduled",
        "compaction": "none",
    },
    open=_open,
    configurations=_configurations,
    tensors=OnTensors(cold_configurations, serve),
    layouts=LayoutRules(variants),
    plants_as="reference",
    answers=_answers,
    variables=(RETENTION_INTERVAL,),
    sizing=Sizing(_plan),
    drawing=Drawing(_draw, _refuse),
    steer=_steer,
)
