"""The policy `openvino_genai` as it is registered: the hybrid cache of OpenVINO GenAI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from cachewitness.core.engine import Engine
from cachewitness.core.trace_format import Layout, TraceHeader
from cachewitness.engines.choices import Choices
from cachewitness.engines.layout_rules import LayoutRules
from cachewitness.engines.on_tensors import OnTensors, Serving, served_plainly
from cachewitness.engines.policy import PolicyKind, Rule
from cachewitness.engines.sizing import Sizing
from cachewitness.vectors.case import PolicyAnswers
from cachewitness.workloads import layouts
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.model import Model
from cachewitness_reference.openvino_genai import spec


def configurations() -> list[Configuration]:
    """Return the configurations of a run: hybrids of several intervals, states without checkpoints,
    attention alone.

    The pools are a trace's own, of sizes that are named, or dynamic.
    """
    mamba = layouts.load("full-mamba")
    unequal = layouts.load("full-mamba-unequal")
    return [
        Configuration(layout, options, "openvino_genai")
        for layout, options in (
            (layouts.load("full"), {}),
            (mamba, {}),
            (mamba, {"cache_interval_multiplier": 2}),
            (mamba, {"cache_interval_multiplier": 4}),
            (unequal, {}),
            (layouts.load("full-swa-mamba"), {}),
            (mamba, {"enable_prefix_caching": False}),
            (mamba, {"enable_prefix_caching": False, "max_num_batched_tokens": spec.SIZE_MAX}),
            (mamba, {"dynamic_split_fuse": False}),
            (
                mamba,
                {
                    "num_kv_blocks": 24,
                    "enable_prefix_caching": True,
                    "cache_interval_multiplier": 2,
                },
            ),
            (mamba, {"num_kv_blocks": 24, "max_num_seqs": 3}),
            (
                mamba,
                {"num_kv_blocks": 0, "enable_prefix_caching": True, "cache_interval_multiplier": 1},
            ),
            (mamba, {"num_kv_blocks": 0}),
        )
    ]


def cold_configurations() -> list[Configuration]:
    """Return the configurations on which tensors are compared."""
    mamba = layouts.load("full-mamba")
    return [
        Configuration(mamba, {}, "openvino_genai"),
        Configuration(mamba, {"cache_interval_multiplier": 2}, "openvino_genai"),
        Configuration(layouts.load("full-swa-mamba"), {}, "openvino_genai"),
    ]


def serve(layout: Layout, serving: Serving) -> TraceHeader:
    """Return the header of a scheduler that answers prompts."""
    return served_plainly("openvino_genai", layout, serving)


def _fit(
    layout: Layout, model: Model | None, options: Mapping[str, Any], release: str
) -> tuple[Layout, dict[str, Any]]:
    from cachewitness.systems.openvino_genai.reference.fitting import fit

    return fit(layout, model, options, release)


def _remarks(layout: Layout, options: Mapping[str, Any], release: str) -> list[str]:
    from cachewitness.systems.openvino_genai.reference.fitting import remarks

    return remarks(layout, options, release)


def _steer(engine: Any, choices: Choices) -> None:
    from cachewitness.systems.openvino_genai.reference.choices import steer

    steer(engine, choices)


def _open(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    from cachewitness.systems.openvino_genai.reference.engine import open_engine

    return open_engine(header, options)


def _answers() -> PolicyAnswers:
    from cachewitness.systems.openvino_genai.reference.vectors.answers import ANSWERS

    return ANSWERS


def _plan() -> click.Command:
    from cachewitness.systems.openvino_genai.reference.plan import command

    return command


POLICY = PolicyKind(
    name="openvino_genai",
    summary=(
        "the hybrid cache of OpenVINO GenAI: two pools, checkpoints by interval, tails of finished"
        " requests"
    ),
    source=spec.REPOSITORY,
    pinned=spec.PINNED_COMMIT,
    releases=tuple(spec.RELEASES),
    rules=[Rule(rule.name, rule.summary, rule.implemented) for rule in spec.RULES.values()],
    axes=spec.AXES,
    open=_open,
    steer=_steer,
    configurations=configurations,
    tensors=OnTensors(cold_configurations, serve),
    answers=_answers,
    sizing=Sizing(_plan, aliases=("openvino",)),
    layouts=LayoutRules(fit=_fit, remarks=_remarks),
)
