"""How OpenVINO GenAI registers: its options, its configurations, its twin and its controls."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from harness._util.errors import EngineMissing, UsageError
from harness.engines.answering import chosen
from harness.engines.kind import EngineKind, WrittenFor
from harness.engines.protocol import Engine
from harness.trace.configurations import Configuration
from harness.trace.format import GroupSpec, Layout, TraceHeader

KV_BLOCK = 32
"""Tokens of a KV block on a CPU, which no option changes."""
MODELS = "CACHEWITNESS_OPENVINO_MODELS"
"""The environment variable that names the folder of the models."""
INSTALL, MODELS_MADE = "pip install 'cachewitness[openvino]'", "ci/stage_openvino.sh"
HYBRID, ATTENTION = ("qwen3-next", "lfm2"), "llama"
SHRINKING = 250
"""Traces that are tried in search of a smaller one: each opens a pipeline, which takes a third of a second."""


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Engine:
    """Open a pipeline for a trace.

    Raises EngineMissing without the package or the model, UsageError for what the engine does not take.
    """
    model = chosen("openvino-genai", options, "model", (*HYBRID, ATTENTION))
    caching = chosen("openvino-genai", options, "caching", ("on", "off")) == "on"
    multiplier = multiplier_of(header.layout)
    folder = options.get("models") or os.environ.get(MODELS, "")
    path = Path(folder) / model
    if not folder or not (path / "openvino_model.xml").is_file():
        where = f"{path} has none" if folder else f"name their folder, models=DIR or {MODELS}"
        raise EngineMissing(f"--engine openvino-genai: needs the model {model}: {where}; {MODELS_MADE} makes them", MODELS_MADE)
    try:
        from harness.engines.openvino_genai.pipeline import Pipeline
    except ImportError as error:
        raise EngineMissing(f"--engine openvino-genai: needs openvino-genai ({error}); {INSTALL}", INSTALL) from None
    return Pipeline(header, path, caching=caching, multiplier=multiplier)


def multiplier_of(layout: Layout) -> int:
    """Return how many KV blocks lie between two snapshots. Raises UsageError for a layout that OpenVINO GenAI cannot have."""
    blocks = {group.kind: group.block_size for group in layout.groups}
    snapshots = blocks.get("recurrent", 0)
    if blocks.get("full") != KV_BLOCK or len(layout.groups) != 2 or not snapshots or snapshots % KV_BLOCK:
        needs = f"a full group of {KV_BLOCK} tokens and a recurrent group of a multiple of that"
        raise UsageError(f"--engine openvino-genai: layout {layout.name} does not fit: it needs {needs}")
    return snapshots // KV_BLOCK


def configurations() -> list[Configuration]:
    """Return what a run takes: snapshots at every block, prompts cut into chunks, and longer intervals."""
    return [
        Configuration(_layout(1), {}, ""),
        Configuration(_layout(2), {"chunk": 100}, ""),
        Configuration(_layout(4), {"chunk": 256}, ""),
    ]


def _layout(multiplier: int) -> Layout:
    groups = [GroupSpec("full", KV_BLOCK), GroupSpec("recurrent", KV_BLOCK * multiplier)]
    story = f"KV blocks of {KV_BLOCK} tokens, a linear-attention block each {KV_BLOCK * multiplier}"
    return Layout(f"openvino-m{multiplier}", groups, story, "openvino.genai scheduler_config.hpp, cache_interval_multiplier")


ENGINE = EngineKind(
    name="openvino-genai",
    summary="the installed OpenVINO GenAI's continuous batching on tiny hybrid models",
    heights=("answers",),
    open=open_engine,
    options={
        "model": f"{', '.join(HYBRID)} (default: the first), or {ATTENTION}: attention alone",
        "models": f"the folder of the models; default: {MODELS}",
        "caching": "on (default), or off: the uncached twin",
    },
    policies=None,
    replays=False,
    configurations=configurations,
    cold={"caching": "off"},
    controls={"uncached": {"caching": "off"}, "attention-only": {"model": ATTENTION}},
    shrinking=SHRINKING,
    isolated=True,
    written_for=WrittenFor("OpenVINO GenAI", "openvino-genai", "2026.4", "2026.4"),
)
