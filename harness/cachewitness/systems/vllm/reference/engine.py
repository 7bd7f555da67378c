"""The policy `vllm`: this repository's own reference of it, at manager and at scheduler level.

A mutant plants a seeded fault into it, which is how the harness is shown to find faults; a release
makes the policy do what that release of vLLM does by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.core.events import Eviction, Rules, Stores
from cachewitness.core.trace_format import Submit, TraceHeader
from cachewitness.engines.driver import Driver
from cachewitness.engines.manager_adapter import ManagerAdapter
from cachewitness.engines.observe import ObservedManager
from cachewitness.engines.scheduler_adapter import SchedulerAdapter
from cachewitness.systems.vllm.header import (
    LRU,
    PRUNABLE,
    checkpoint_alignment,
    describe,
    key_events,
    retention,
    with_tier,
)
from cachewitness.systems.vllm.reference.capacity import longest_held
from cachewitness.systems.vllm.reference.reporting_pool import observable_manager
from cachewitness.workloads.configurations import SCHEDULER_OPTIONS
from cachewitness_reference.vllm.align_split import split_for
from cachewitness_reference.vllm.config import ConfigError, KVCacheConfig
from cachewitness_reference.vllm.kv_cache_manager import KVCacheManager
from cachewitness_reference.vllm.request import MultiModalFeature, Request
from cachewitness_reference.vllm.spec import RELEASES
from cachewitness_reference.vllm_extended.config import Options, build, options_of

PROGRESS_STEPS = 4
"""A request waits one step for a state of the same step; the rest is margin."""
TRANSFERS_AWAITED = 3
"""One after the other: somebody else's store that holds the room, a load, and the load of whoever
has to go first."""

FREE_LISTS = {"lru": LRU, "fifo": Eviction("lru", free_first=False), "lifo": None}
"""How keys end by the free list that is chosen. Of one that is last in first out no order can be
declared."""


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Driver:
    """Build the reference engine for a trace, at the level that the trace names.

    Raises UsageError for an option that the policy refuses, naming it.
    """
    config = configure(header, options.get("release", ""))
    if header.level != "scheduler":
        _refuse_scheduling(options_of(config))
    return assemble(header, config, observable_manager(config), "reference")


def _refuse_scheduling(options: Options) -> None:
    """Raise UsageError for what is the scheduler's alone."""
    for name in SCHEDULER_OPTIONS:
        if value := getattr(options, name, None):
            raise UsageError(
                f"option {name!r} ({value}) is the scheduler's; run it at scheduler level"
            )


def configure(header: TraceHeader, release: str = "") -> KVCacheConfig:
    """Return the checked configuration of a trace; `release` stands in for the one that the
    trace does not name.
    """
    options = dict(header.options)
    if release:
        if release not in RELEASES:
            raise UsageError(
                f"--engine: release {release!r} is unknown; known are {', '.join(RELEASES)}"
            )
        options.setdefault("release", release)
    groups = [
        {"kind": g.kind, "block_size": g.block_size, "window": g.window}
        for g in header.layout.groups
    ]
    try:
        return build(groups, header.pages, options)
    except ConfigError as error:
        raise UsageError(f"layout {header.layout.name!r}: {error}") from None


def rules(header: TraceHeader, config: KVCacheConfig) -> Rules:
    """Return what the policy declares of itself, in the terms of checkers."""
    options = options_of(config)
    alignment = (
        config.hash_block_size if config.enable_partial_hash_hits else config.scheduler_block_size
    )
    return Rules(
        caching=options.enable_caching,
        alignment=alignment,
        eagle_drop_tokens=alignment if options.use_eagle else 0,
        retention=retention(
            header,
            config.prefix_cache_retention_interval,
            ("sliding",) if config.release.retention == "sliding" else PRUNABLE,
            shared_prefix_boundary=config.pin_shared_prefix_boundary,
            lowered=config.eagle_replay_boundaries,
        ),
        progress_steps=PROGRESS_STEPS + TRANSFERS_AWAITED * options.tier_delay,
        reserved_pages=int(options.watermark * config.num_blocks),
        drafts=options.num_speculative_tokens,
        frees_behind=True,
        checkpoint_alignment=checkpoint_alignment(header, options, alignment),
        eagle_groups=_eagle_groups(config),
        key_events=(
            key_events(header, config.hash_block_size) if options.enable_kv_cache_events else None
        ),
    )


def _eagle_groups(config: KVCacheConfig) -> list[int]:
    """Return the groups that give tokens back, [] for all: those that are marked, and those
    looked up together with one.
    """
    marked = {group.kv_cache_spec for group in config.kv_cache_groups if group.is_eagle_group}
    return [
        index for index, group in enumerate(config.kv_cache_groups) if group.kv_cache_spec in marked
    ]


def assemble(
    header: TraceHeader, config: KVCacheConfig, manager: KVCacheManager, name: str
) -> Driver:
    """Put a manager, changed or not, under the harness's scheduling or the reference's
    scheduler.
    """

    def split(request: Any, tokens: int, hit: int) -> int:
        return split_for(config, request, tokens, hit, config.options.max_num_batched_tokens)

    def new_request(op: Submit, tokens: list[int]) -> Request:
        features = [MultiModalFeature(item.at, item.length, item.hash) for item in op.media]
        return Request(
            op.r,
            tokens,
            config.hash_block_size,
            cache_salt=op.salt,
            adapter=op.adapter,
            mm_features=features,
            skip_reading_prefix_cache=op.prompt_logprobs,
        )

    queue = FREE_LISTS[options_of(config).free_list]
    release = config.options.release
    declared = rules(header, config)
    described = describe(
        header, name, release, declared, config.options, queue, further=["prompt_logprobs"]
    )
    observed = ObservedManager(manager)
    if header.level == "scheduler":
        # What is keyed on the device is stored: of windows that is not all.
        kept = [group.id for group in described.groups if group.kind in ("full", "recurrent")]
        stores = Stores(answers=True, groups=kept, keyed=True) if kept else None
        tiered = with_tier(described, options_of(config).tier_pages, stores=stores)
        scheduled = SchedulerAdapter(config, observed, new_request)
        scheduled.holds = longest_held(config)
        return Driver(tiered, scheduled)
    aligned = (
        config.has_mamba_layers
        and config.options.enable_caching
        and config.options.mamba_cache_mode == "align"
    )
    chunks = split if aligned else None
    managed = ManagerAdapter(observed, new_request, config.options.max_model_len, chunks)
    managed.holds = longest_held(config)
    return Driver(described, managed)
