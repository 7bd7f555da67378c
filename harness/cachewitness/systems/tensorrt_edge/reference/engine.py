"""TensorRT-Edge-LLM's hybrid cache manager as an engine: batch rows are slots, compaction is one
copy.

The manager has no blocks: a row is one page as long as the longest sequence, so tables have one
column and `block_size` is that length. Each group has a pool of its own with the same rows, since
the ledger keeps one content per page. What the layout calls a block is a measure only: a row has
room for the longest prompt that a pool of `slots` such blocks could hold, and for as much again to
generate.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm
from typing import Any

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.core.events import Captures, Group, Header, Pool, Rules
from cachewitness.core.trace_format import GroupSpec, Layout, TraceHeader
from cachewitness.engines.adapter import CAPABILITIES, SECOND
from cachewitness.engines.driver import Driver
from cachewitness.systems.tensorrt_edge.reference import NOT_APPLICABLE
from cachewitness.systems.tensorrt_edge.reference.rows import Rows
from cachewitness_reference.tensorrt_edge import spec
from cachewitness_reference.tensorrt_edge.config import (
    Config,
    KVConfig,
    KVLayerConfig,
    LayerType,
    MambaConfig,
)
from cachewitness_reference.tensorrt_edge.policy import HybridCachePolicy
from cachewitness_reference.tensorrt_edge.runtime import Runtime, RuntimeOptions

NAME = "tensorrt_edge"
CORRECTED = f"corrected {spec.PINNED_RELEASE}"
"""What the reference calls itself where no release is asked for: it compacts as no release does."""

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
    """Return the options of a trace, by their names here, with defaults. Raises UsageError
    naming what does not fit.
    """
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
    """Return how many tokens a row holds: twice what `slots` blocks of the layout could hold of
    one request.
    """
    unit = lcm(*(group.block_size for group in layout.groups))
    blocks_per_unit = sum(unit // group.block_size for group in layout.groups)
    return min(max(2 * pages * unit // blocks_per_unit, 1), TOKENS_MAX)


def configure(layout: Layout, options: Mapping[str, Any]) -> Config:
    """Return the manager's configuration: a decoder layer for every layer of every group, heads
    of no matter what size.
    """
    types = [_kind(group) for group in layout.groups for _ in range(group.layers)]
    attention = types.count(LayerType.ATTENTION)
    mamba = types.count(LayerType.MAMBA)
    rows = options["max_batch_size"]
    length = options["max_sequence_length"]
    return Config(
        layer_types=tuple(types),
        kv_config=KVConfig(attention, rows, length, (KVLayerConfig(1, 64),) * attention),
        mamba_config=MambaConfig(mamba, rows, 1, 64, 64, 64, 4),
        max_batch_size=rows,
    )


def _kind(group: GroupSpec) -> LayerType:
    return LayerType.MAMBA if group.kind == "recurrent" else LayerType.ATTENTION


def describe(header: TraceHeader, options: Mapping[str, Any], version: str = CORRECTED) -> Header:
    """Return the history's header: a pool of rows for each group and, if anything is captured, a
    pool of places for each.
    """
    layout = header.layout
    places = _places(options)
    length = options["max_sequence_length"]
    count_of = len(layout.groups)
    groups = [
        Group(i, g.kind, length, pool=i, window=g.window, chunk=g.chunk)
        for i, g in enumerate(layout.groups)
    ]
    pools = [Pool(id=i, pages=options["max_batch_size"]) for i in range(count_of)]
    if places:
        aside = [
            Group(
                count_of + g.id,
                g.kind,
                length,
                pool=count_of + g.id,
                window=g.window,
                chunk=g.chunk,
                source_group=g.id,
            )
            for g in groups
        ]
        pools += [Pool(id=group.pool, pages=places, tier=SECOND) for group in aside]
        groups += aside
    recurrent = any(group.kind == "recurrent" for group in layout.groups)
    not_applicable = dict(NOT_APPLICABLE)
    if not (recurrent and places):
        not_applicable["no-fabricated-snapshots"] = (
            "nothing is captured" if recurrent else "no recurrent group"
        )
    captures = Captures(order="lru", again=int(options["replay_last_token"])) if places else None
    return Header(
        engine="reference",
        engine_version=version,
        level=header.level,
        pools=pools,
        groups=groups,
        rules=Rules(
            caching=places > 0, captures=captures, static_batches=options["joining"] == "static"
        ),
        capabilities=CAPABILITIES,
        not_applicable=not_applicable,
        trace=header.name,
    )


def _places(options: Mapping[str, Any]) -> int:
    return options["system_prompts"] if options["enable_caching"] else 0


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Driver:
    """Build the engine for a trace. Raises UsageError for an option that does not fit, naming it.

    A release compacts in place, where the trace does not say how; its pairing of a state at N with
    N - 1 tokens is not done.
    """
    release = options.get("release", "")
    if release and release not in spec.RELEASES:
        raise UsageError(
            f"--engine: release {release!r} is unknown; known are {', '.join(spec.RELEASES)}"
        )
    defaults = {"compaction": "in_place"} if release else {}
    return assemble(
        msgspec.structs.replace(header, options={**defaults, **header.options}),
        release or CORRECTED,
    )


def assemble(header: TraceHeader, version: str = CORRECTED) -> Driver:
    """Put a runtime under the harness's operations."""
    options = checked(header)
    cache = HybridCachePolicy(
        configure(header.layout, options), in_place=options["compaction"] == "in_place"
    )
    own = RuntimeOptions(
        _places(options), options["joining"], options["survivors"], options["replay_last_token"]
    )
    described = describe(header, options, version)
    return Driver(
        described, Rows(described, Runtime(cache, own), options["max_num_batched_tokens"])
    )
