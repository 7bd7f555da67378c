"""Puts vLLM's own objects together for a trace: a cache manager alone, or a scheduler over it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from msgspec.structs import replace

from cachewitness._util.errors import UsageError
from cachewitness.core.events import Header, Rules
from cachewitness.core.trace_format import TraceHeader
from cachewitness.engines.adapter import Driven
from cachewitness.engines.manager_adapter import ManagerAdapter
from cachewitness.engines.observe import ObservedManager
from cachewitness.systems.vllm.build import (
    block_sizes,
    block_sizes_of,
    cache_config,
    has_retention_field,
    is_ring,
    manager,
    request_maker,
    settle,
    tell_sizes,
)
from cachewitness.systems.vllm.clock import Clock, TimedManager
from cachewitness.systems.vllm.connectors.build import (
    LMCACHE,
    ConnectorChoice,
    configure,
    connected_header,
    connector_of,
    pages_of,
)
from cachewitness.systems.vllm.connectors.scheduler import ConnectedScheduler
from cachewitness.systems.vllm.context_parallel import divided, spread
from cachewitness.systems.vllm.declared import interval_of, rules_of
from cachewitness.systems.vllm.engine_config import (
    RUNNERS,
    build_scheduler,
    check_depth,
    engine_config,
    give_encoder_budget,
    model_runner,
    most_drafts,
)
from cachewitness.systems.vllm.header import describe, with_pools
from cachewitness.systems.vllm.plugged import Prepare, unprepared
from cachewitness.systems.vllm.prefill_checkpoints import PrefillCheckpoints, with_checkpoints
from cachewitness.systems.vllm.ranks import Ranks, RankScheduler, made
from cachewitness.systems.vllm.request_options import request_options
from cachewitness.systems.vllm.rswa import answer_windows
from cachewitness.systems.vllm.scheduler import RealScheduler
from cachewitness.systems.vllm.sizing import size
from cachewitness.systems.vllm.source import Source, variable
from cachewitness.systems.vllm.split import chunk_split
from cachewitness.systems.vllm.statistics import counts_admissions
from cachewitness.systems.vllm.worker import worker_of
from cachewitness_reference.vllm.options import RETENTION_VARIABLE
from cachewitness_reference.vllm_extended.config import Options

SCHEDULERS_SINCE = (0, 29)
"""The oldest release whose scheduler the adapter was written for."""


class Assembled(NamedTuple):
    """What an engine is made of: what it declares, its adapter, and the clock of the time inside
    vLLM.
    """

    header: Header
    adapter: Driven
    clock: Clock


def manager_engine(
    header: TraceHeader,
    options: Options,
    source: Source,
    sized: str = "",
    *,
    full: bool = False,
    prepare: Prepare = unprepared,
    ranks: int = 1,
) -> Assembled:
    """Return vLLM's cache manager under the harness's scheduling, `sized` by vLLM itself if it says
    how.

    `full`: key events tell of hits as well. `prepare` is called before the manager is built. Blocks
    of full attention lie on so many `ranks`. Raises UsageError for what this release cannot do.
    """
    clock = Clock()
    interval = interval_of(header, options, source)
    if sized:
        header, options, config, whole = size(source, header, options, interval, sized)
        sizes = block_sizes(source, config, whole)
    else:
        config = divided(cache_config(source, header, options, interval), header, ranks)
        sizes = block_sizes_of(source, header, config, options, ranks)
    prepare(kv_cache_config=config)
    with retaining(source, interval):
        core = manager(source, config, sizes, options, ranks)
    timed = TimedManager(core, clock)
    observed = ObservedManager(timed, source.utils.get_group_id)
    adapter = ManagerAdapter(
        observed,
        timed.new_requests(request_maker(source, sizes[1], options, full=full)),
        options.max_model_len,
        chunk_split(source, header, options, core, sizes),
        options.scheduler_reserve_full_isl,
    )
    # vLLM's start-up check has accepted the length, so it holds a request of that length alone.
    adapter.holds = options.max_model_len - 1 if sized else 0
    rules = rules_of(header, options, source, core, sizes, interval)
    described = described_by(header, options, source, rules, answer_windows(config))
    return Assembled(with_pools(described, observed), adapter, clock)


def scheduler_engine(
    header: TraceHeader,
    options: Options,
    source: Source,
    connector: ConnectorChoice | None = None,
    sized: str = "",
    *,
    full: bool = False,
    scheduler_cls: type | None = None,
    observer: type[ObservedManager] = ObservedManager,
    runner: str = RUNNERS[0],
    prepare: Prepare = unprepared,
    ranks: int = 1,
    shared_out: Ranks | None = None,
) -> Assembled:
    """Return vLLM's scheduler over the cache manager that it makes, with a connector if one is
    asked for.

    It is `sized` by vLLM itself if that says how. `full`: key events tell of hits as well.
    `scheduler_cls` takes the place of vLLM's own class, `observer` looks at its cache manager,
    `runner` is one of `RUNNERS`. `prepare` is called before the scheduler is built. Blocks of full
    attention lie on so many `ranks`. `shared_out`: requests are, to schedulers that what was
    prepared makes. Raises UsageError for what this release cannot do.
    """
    _refuse(header, options, source, connector, sized)
    options = dataclasses.replace(options, num_speculative_tokens=most_drafts(options))
    special = request_options(header)
    clock = Clock()
    interval = interval_of(header, options, source)
    if sized:
        header, options, config, whole = size(source, header, options, interval, sized)
    else:
        config = cache_config(source, header, options, interval)
        whole = engine_config(source, header, options)
    if scheduler_cls is not None:
        settle(source, whole.scheduler_config, {"scheduler_cls": scheduler_cls})
    if special.prefill_checkpoints:
        config = with_checkpoints(source, config, special.prefill_checkpoints)
    if connector is not None:
        config = configure(
            source, whole, config, connector, pages_of(header, options, connector.kind)
        )
    undivided = config, whole
    config = divided(config, header, ranks)
    whole = spread(source, whole, config, ranks)
    sizes = block_sizes(source, config, whole)
    tell_sizes(source, config, whole, sizes)
    prepare(kv_cache_config=config, vllm_config=whole, ranks=shared_out)
    with retaining(source, interval), model_runner(options, runner):
        front = build_scheduler(source, whole, config, sizes)
        check_depth(source, whole, options)
    schedulers = made(shared_out, front)
    for scheduler in schedulers:
        give_encoder_budget(scheduler, whole, special.encoder_budget)
    scheduler = schedulers[shared_out.seen if shared_out else 0]
    core = scheduler.kv_cache_manager
    timed = TimedManager(core, clock)
    observed = observer(
        timed, source.utils.get_group_id, tiered=connector is not None, published=True
    )
    connected = connector is not None
    new_request = request_maker(source, sizes[1], options, full=full, connected=connected)
    if shared_out is None:  # a rank gets a copy, which no clock is part of
        new_request = timed.new_requests(new_request)
    rules = rules_of(header, options, source, core, sizes, interval)
    alignment = getattr(config, "cache_hit_alignment_tokens", None) or rules.alignment
    further = {"clients": counts_admissions(core), "alignment": alignment, "ranks": len(schedulers)}
    rules = observed.declared(replace(rules, stats=True, **further))
    described = with_pools(
        described_by(header, options, source, rules, answer_windows(config)), observed
    )
    goes_on = shared_out is None and (connector is None or connector.kind.goes_on)
    able = [name for name in special.capabilities if goes_on or name != "session"]
    described = replace(described, capabilities=[*described.capabilities, *able])
    worker = worker_of(source, scheduler, *undivided, options)
    parts = (source, scheduler, observed, new_request, clock, options)
    if shared_out is not None:
        adapter: RealScheduler = RankScheduler(*parts, front=front, ranks=shared_out)
    elif connector is None:
        adapter = RealScheduler(*parts)
    else:
        pages = pages_of(header, options, connector.kind)
        driven = connector_of(source, scheduler, whole, config, sizes, connector.kind, pages)
        adapter = ConnectedScheduler(*parts, driven)
        described = connected_header(
            described, driven, options.tier_delay, engine_aborts=connector.load_failure == "fail"
        )
    adapter.worker = worker
    adapter.holds = options.max_model_len - 1 if sized else 0
    if special.prefill_checkpoints:
        adapter.checkpoints = PrefillCheckpoints(whole, config, (sizes[1], rules.alignment))
        adapter.publisher.nets = True
    return Assembled(described, adapter, clock)


def described_by(
    header: TraceHeader, options: Options, source: Source, rules: Rules, windows: Sequence[int] = ()
) -> Header:
    """Return what vLLM declares; the block of a ring is as long as the model. `windows` are
    those over answers, by group.
    """
    described = describe(
        header, "vllm", source.version, rules, options, further=["prompt_logprobs"]
    )
    length = options.max_model_len
    pairs = zip(described.groups, header.layout.groups, strict=True)
    groups = [
        replace(group, block_size=length) if is_ring(spec) else group for group, spec in pairs
    ]
    for index, window in enumerate(windows):
        groups[index] = replace(groups[index], answer_window=window)
    return replace(described, groups=groups)


def _refuse(
    header: TraceHeader,
    options: Options,
    source: Source,
    connector: ConnectorChoice | None,
    sized: str,
) -> None:
    """Raise UsageError for what vLLM's scheduler is not driven with."""
    if sized and connector is not None and connector.kind.name == LMCACHE:
        raise UsageError(
            "--engine: LMCache's connector is not driven with blocks that vLLM sizes; leave"
            " 'sized' out"
        )
    if source.is_before(SCHEDULERS_SINCE):
        since = "{}.{}".format(*SCHEDULERS_SINCE)
        raise UsageError(
            f"vLLM {source.version}: its Scheduler is driven from {since} on; run it at manager"
            " level"
        )
    if options.tier_pages and not connector:
        raise UsageError(
            "option 'tier_pages': vLLM's second tier is a connector; name one, --engine"
            " vllm:connector=simple"
        )
    drafts = most_drafts(options)
    limit = options.max_num_batched_tokens
    if limit <= drafts:
        raise UsageError(
            f"option 'max_num_batched_tokens' ({limit}): vLLM admits a decoding request with all"
            f" {drafts} drafts alone"
        )


@contextmanager
def retaining(source: Source, interval: int | None) -> Iterator[None]:
    """Have a release whose retention interval is an environment variable find it there."""
    if has_retention_field(source):
        yield
        return
    with variable(RETENTION_VARIABLE, None if interval is None else str(interval)):
        yield
