"""The policy `lmcache` as it is registered: LMCache's store behind vLLM's scheduler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click
import msgspec

from cachewitness.core.engine import Engine
from cachewitness.core.trace_format import Layout, TraceHeader
from cachewitness.engines.choices import Choices
from cachewitness.engines.layout_rules import LayoutRules
from cachewitness.engines.on_tensors import OnTensors, Serving
from cachewitness.engines.policy import PolicyKind, Rule
from cachewitness.engines.sizing import Sizing
from cachewitness.systems.lmcache.reference import FEATURE_VARIABLES
from cachewitness.systems.vllm.reference import RETENTION_INTERVAL
from cachewitness.systems.vllm.reference import policy as of_vllm
from cachewitness.vectors.case import PolicyAnswers
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness_reference.lmcache import spec

NAME = "lmcache"
TIER_PAGES = 128
"""Pages of the first level where a layout alone is given."""
WHOLE_BLOCKS = "0.25"
"""The last release of vLLM that hits whole blocks alone, whatever their sizes."""


def configurations() -> list[Configuration]:
    """Return the configurations of a run: every kind of group, one object group and several,
    chunks of a block and of two.
    """
    full, mamba, window, three = (
        layouts.load(name) for name in ("full", "full-mamba", "full-swa", "full-swa-mamba")
    )
    unequal = layouts.load("full-mamba-unequal")
    fine = layouts.load("full-swa-unequal")
    apart: dict[str, Any] = {"separate_object_groups": True}
    return [
        _configuration(full, 16),
        _configuration(full, 40, chunk_size=32, save_decode_cache=True),
        _configuration(mamba, 64, retention_interval=0, **apart),
        _configuration(mamba, 24, retention_interval=None, **apart, save_decode_cache=True),
        _configuration(mamba, 64, retention_interval=0, max_num_batched_tokens=16),
        _configuration(mamba, 48, retention_interval=64, **apart, chunk_size=32),
        _configuration(window, 24, retention_interval=0, **apart),
        _configuration(window, 64, retention_interval=None, **apart, chunk_size=32),
        _configuration(three, 96, retention_interval=None, **apart),
        _configuration(three, 40, retention_interval=0, **apart, chunk_size=64),
        _configuration(three, 96, retention_interval=0),
        _configuration(unequal, 96, vllm_release=WHOLE_BLOCKS, **apart),
        _configuration(fine, 64, retention_interval=0, **apart),
        _configuration(mamba, 64, retention_interval=0, **apart, async_depth=1),
        _configuration(three, 96, retention_interval=None, **apart, num_speculative_tokens=3),
        _configuration(three, 96, retention_interval=None, **apart, engines=3),
    ]


def cold_configurations() -> list[Configuration]:
    """Return the configurations on which tensors are compared."""
    three, mamba, window = (
        layouts.load(name) for name in ("full-swa-mamba", "full-mamba", "full-swa")
    )
    return [
        Configuration(three, {"retention_interval": None, "separate_object_groups": True}, NAME),
        Configuration(mamba, {"retention_interval": 0, "separate_object_groups": True}, NAME),
        Configuration(window, {"retention_interval": 0}, NAME),
    ]


def variants(layout: Layout) -> list[Configuration]:
    """Return one layout with its object groups apart and, without states, together: with states
    LMCache's document requires them apart. With a vLLM that hits whole blocks alone if it has to.
    """
    sizes = {group.block_size for group in layout.groups}
    states = [group.block_size for group in layout.groups if group.kind == "recurrent"]
    whole = {"vllm_release": WHOLE_BLOCKS} if states and max(states) > math.gcd(*sizes) else {}
    return [
        _configuration(layout, TIER_PAGES, separate_object_groups=apart, **whole)
        for apart in ((True,) if states else (True, False))
    ]


def _configuration(layout: Layout, tier_pages: int, **options: Any) -> Configuration:
    return Configuration(layout, {"tier_pages": tier_pages, **options}, NAME)


def serve(layout: Layout, serving: Serving) -> TraceHeader:
    """Return the header of vLLM with LMCache behind it that answers prompts; LMCache stores the
    generated tokens too.
    """
    header = of_vllm.serve(layout, replace(serving, tier_pages=0))
    options = {name: value for name, value in header.options.items() if name != "tier_pages"}
    options |= {"tier_pages": serving.tier_pages or TIER_PAGES, "separate_object_groups": True}
    return msgspec.structs.replace(header, policy=NAME, options=options)


def _steer(engine: Any, choices: Choices) -> None:
    from cachewitness.systems.lmcache.reference.choices import steer

    steer(engine, choices)


def _open(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    from cachewitness.systems.lmcache.reference.engine import open_engine

    return open_engine(header, options)


def _answers() -> PolicyAnswers:
    from cachewitness.systems.lmcache.reference.vectors.answers import ANSWERS

    return ANSWERS


def _plan() -> click.Command:
    from cachewitness.systems.lmcache.reference.plan import command

    return command


POLICY = PolicyKind(
    name=NAME,
    summary="LMCache's store behind vLLM's scheduler, object groups folded into one hit",
    source=spec.REPOSITORY,
    pinned=spec.PINNED_RELEASE,
    releases=tuple(spec.RELEASES),
    rules=[Rule(rule.name, rule.summary, rule.implemented) for rule in spec.RULES.values()],
    axes=spec.AXES,
    open=_open,
    steer=_steer,
    configurations=configurations,
    tensors=OnTensors(cold_configurations, serve, tiered=True),
    layouts=LayoutRules(variants),
    levels=("scheduler",),
    plants_as="reference",
    answers=_answers,
    variables=(RETENTION_INTERVAL, *FEATURE_VARIABLES),
    sizing=Sizing(_plan),
)
