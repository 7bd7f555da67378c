"""TensorRT-Edge-LLM's hybrid cache manager as an engine: batch rows are slots, compaction is one copy.

The manager has no blocks: a row is one page as long as the longest sequence, so tables have one column and `block_size` is
that length. Each group has a pool of its own with the same rows, since the ledger keeps one content per page. What the
layout calls a block is a measure only: a row has room for the longest prompt that a pool of `slots` such blocks could hold,
and for as much again to generate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import lcm
from typing import Any

import msgspec

from harness._util.errors import UsageError
from harness.engines.mutant import Mutant
from harness.engines.policy import PolicyKind, Rule, Serving, served_plainly
from harness.engines.policy_height import PolicyHeight
from harness.history.events import Group, Header, Pool, Rules
from harness.policies.tensorrt_edge.rows import TIER, Rows
from harness.trace import layouts
from harness.trace.configurations import Configuration
from harness.trace.format import GroupSpec, Layout, TraceHeader
from harness.vectors.case import Questions
from reference_impl.tensorrt_edge import spec
from reference_impl.tensorrt_edge.config import Config, KVConfig, KVLayerConfig, LayerType, MambaConfig
from reference_impl.tensorrt_edge.policy import HybridCachePolicy
from reference_impl.tensorrt_edge.runtime import Runtime, RuntimeOptions

NAME = "tensorrt_edge"
NO_KEYS = "the manager has no keys: a row is named by its request"
NOT_APPLICABLE = dict.fromkeys(("commit-order", "reuse-floor", "replay-boundary-retained", "interval-sparsity"), NO_KEYS)
CAPABILITIES = ["abort", "adapter", "media", "preempt", "reset", "salt", "update_weights"]
BLOCKS_PER_CAPTURE = 16
"""Where prompts are answered: a capture for every so many blocks that the pool of another policy would have."""

ALIASES = {
    "max_num_seqs": "max_batch_size",
    "max_model_len": "max_sequence_length",
    "tier_pages": "system_prompts",
}
"""The harness's names for options of this policy."""
CHOICES = {
    "joining": ("continuous", "static"),
    "survivors": ("ascending", "descending"),
    "compaction": ("simultaneous", "in_place"),
}
TOKENS_MAX = 1 << 24
RANGES = {
    "max_batch_size": (1, 1 << 12),
    "max_sequence_length": (1, TOKENS_MAX),
    "system_prompts": (0, 1 << 16),
    "max_num_batched_tokens": (1, TOKENS_MAX),
}
"""What is built at all; more would be a mistake in a configuration."""
SWITCHES = ("enable_caching", "replay_last_token")


def checked(header: TraceHeader) -> dict[str, Any]:
    """Return the options of a trace, by their names here, with defaults. Raises UsageError naming what does not fit."""
    options: dict[str, Any] = {
        "max_batch_size": spec.MAX_BATCH_SIZE_DEFAULT,
        "max_sequence_length": row_length(header.layout, header.pages),
        "system_prompts": spec.SYSTEM_PROMPTS_DEFAULT,
        "max_num_batched_tokens": 0,
        **{name: choices[0] for name, choices in CHOICES.items()},
        "enable_caching": True,
        "replay_last_token": False,
    }
    for given, value in header.options.items():
        name = ALIASES.get(given, given)
        if name not in options:
            known = ", ".join(sorted(options))
            raise UsageError(f"policy {NAME}: option {given!r} is unknown; known are {known}")
        _check(given, name, value)
        options[name] = value
    return options


def _check(given: str, name: str, value: object) -> None:
    where = f"policy {NAME}: option {given!r} ({value!r})"
    if name in CHOICES and value not in CHOICES[name]:
        raise UsageError(f"{where} must be one of {', '.join(CHOICES[name])}")
    if name in SWITCHES and not isinstance(value, bool):
        raise UsageError(f"{where} must be true or false")
    if name in RANGES:
        low, high = RANGES[name]
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise UsageError(f"{where} must be a whole number in [{low}, {high}]")


def row_length(layout: Layout, pages: int) -> int:
    """Return how many tokens a row holds: twice what `slots` blocks of the layout could hold of one request."""
    unit = lcm(*(group.block_size for group in layout.groups))
    blocks_per_unit = sum(unit // group.block_size for group in layout.groups)
    return min(max(2 * pages * unit // blocks_per_unit, 1), TOKENS_MAX)


def configure(layout: Layout, options: Mapping[str, Any]) -> Config:
    """Return the manager's configuration: a decoder layer for every layer of every group, heads of no matter what size."""
    types = [_kind(group) for group in layout.groups for _ in range(group.layers)]
    attention, mamba = types.count(LayerType.ATTENTION), types.count(LayerType.MAMBA)
    rows, length = options["max_batch_size"], options["max_sequence_length"]
    return Config(
        layer_types=tuple(types),
        kv_config=KVConfig(attention, rows, length, (KVLayerConfig(1, 64),) * attention),
        mamba_config=MambaConfig(mamba, rows, 1, 64, 64, 64, 4),
        max_batch_size=rows,
    )


def _kind(group: GroupSpec) -> LayerType:
    return LayerType.MAMBA if group.kind == "recurrent" else LayerType.ATTENTION


def describe(header: TraceHeader, options: Mapping[str, Any]) -> Header:
    """Return the history's header: a pool of rows for each group and, if anything is captured, a pool of places for each."""
    layout, places = header.layout, _places(options)
    length, count_of = options["max_sequence_length"], len(layout.groups)
    groups = [Group(i, g.kind, length, pool=i, window=g.window, chunk=g.chunk) for i, g in enumerate(layout.groups)]
    pools = [Pool(id=i, pages=options["max_batch_size"]) for i in range(count_of)]
    if places:
        aside = [
            Group(count_of + g.id, g.kind, length, pool=count_of + g.id, window=g.window, chunk=g.chunk, of=g.id)
            for g in groups
        ]
        pools += [Pool(id=group.pool, pages=places, tier=TIER) for group in aside]
        groups += aside
    recurrent = any(group.kind == "recurrent" for group in layout.groups)
    not_applicable = dict(NOT_APPLICABLE)
    if not (recurrent and places):
        not_applicable["no-fabricated-snapshots"] = "nothing is captured" if recurrent else "no recurrent group"
    if options["joining"] == "static":
        not_applicable["progress"] = "a static batch ends with its slowest request; others wait for it"
    return Header(
        engine="reference",
        engine_version=spec.PINNED_RELEASE,
        height=header.height,
        pools=pools,
        groups=groups,
        rules=Rules(caching=places > 0),
        capabilities=CAPABILITIES,
        not_applicable=not_applicable,
        trace=header.name,
    )


def _places(options: Mapping[str, Any]) -> int:
    return options["system_prompts"] if options["enable_caching"] else 0


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> PolicyHeight:
    """Build the engine for a trace. Raises UsageError for an option that does not fit, naming it.

    A release compacts in place, where the trace does not say how; its pairing of a state at N with N - 1 tokens is not done.
    """
    release = options.get("release", "")
    if release and release not in spec.RELEASES:
        raise UsageError(f"--engine: release {release!r} is unknown; known are {', '.join(spec.RELEASES)}")
    defaults = {"compaction": "in_place"} if release else {}
    return assemble(msgspec.structs.replace(header, options={**defaults, **header.options}))


def assemble(header: TraceHeader) -> PolicyHeight:
    """Put a runtime under the harness's operations."""
    options = checked(header)
    cache = HybridCachePolicy(configure(header.layout, options), in_place=options["compaction"] == "in_place")
    own = RuntimeOptions(_places(options), options["joining"], options["survivors"], options["replay_last_token"])
    described = describe(header, options)
    return PolicyHeight(described, Rows(described, Runtime(cache, own), options["max_num_batched_tokens"]))


def configurations() -> list[Configuration]:
    """Return the configurations of a run: every kind of group, rows and captures under pressure, each way to run."""
    full, unequal = layouts.load("full"), layouts.load("full-mamba-unequal")
    three, mamba, window = (layouts.load(name) for name in ("full-swa-mamba", "full-mamba", "full-swa"))
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
    three, mamba = layouts.load("full-swa-mamba"), layouts.load("full-mamba")
    return [_configuration(three), _configuration(mamba, survivors="descending"), _configuration(mamba, replay_last_token=True)]


def _configuration(layout: Layout, **options: Any) -> Configuration:
    return Configuration(layout, options, NAME)


def serve(layout: Layout, serving: Serving) -> TraceHeader:
    """Return the header of a runtime that answers prompts: a row for each of the batch, a capture for each prompt in the pool.

    A second tier, if there is one, says how many captures there are.
    """
    places = serving.tier_pages or max(1, serving.pages // BLOCKS_PER_CAPTURE)
    return served_plainly(NAME, layout, replace(serving, tier_pages=0), system_prompts=places)


def _mutants() -> Sequence[Mutant]:
    from harness.policies.tensorrt_edge.mutants import MUTANTS

    return MUTANTS


def _questions() -> Questions:
    from harness.policies.tensorrt_edge.vectors.questions import QUESTIONS

    return QUESTIONS


POLICY = PolicyKind(
    name=NAME,
    summary="the hybrid cache manager of TensorRT-Edge-LLM: batch rows, compaction, captured system prompts",
    source=spec.REPOSITORY,
    pinned=spec.PINNED_RELEASE,
    releases=spec.RELEASES,
    rules=[Rule(rule.name, rule.summary, rule.implemented) for rule in spec.RULES.values()],
    axes=spec.AXES,
    open=open_engine,
    configurations=configurations,
    cold_configurations=cold_configurations,
    serve=serve,
    not_applicable=NOT_APPLICABLE,
    mutants=_mutants,
    questions=_questions,
)
