"""Puts vLLM's scheduler together with HiSparse: its cache manager over two pools, its connector,
a worker that is played.
"""

from __future__ import annotations

from msgspec.structs import replace

from cachewitness._util.errors import UsageError
from cachewitness.core.events import Pool
from cachewitness.core.trace_format import GroupSpec, Layout, TraceHeader
from cachewitness.engines.observe_pins import POOL
from cachewitness.systems.vllm.assemble import Assembled, described_by, retaining
from cachewitness.systems.vllm.build import block_sizes, request_maker, tell_sizes
from cachewitness.systems.vllm.clock import Clock, TimedManager
from cachewitness.systems.vllm.connectors.tier import KeyNames
from cachewitness.systems.vllm.declared import interval_of, rules_of
from cachewitness.systems.vllm.engine_config import (
    RUNNER_VARIABLE,
    build_scheduler,
    check_depth,
    give_encoder_budget,
)
from cachewitness.systems.vllm.hisparse.books import Books
from cachewitness.systems.vllm.hisparse.build import size_hisparse
from cachewitness.systems.vllm.hisparse.observed import ObservedTiers
from cachewitness.systems.vllm.hisparse.places import Places
from cachewitness.systems.vllm.hisparse.scheduler import HiSparseScheduler
from cachewitness.systems.vllm.hisparse.worker import HiSparseWorker
from cachewitness.systems.vllm.request_options import request_options
from cachewitness.systems.vllm.source import Source, variable
from cachewitness_reference.vllm_extended.config import Options

WAYS = ("eager", "lazy")
"""When decoded rows go to the host: in their step (vLLM's default), or when their block is full."""
SINCE = (0, 33)
"""The oldest release that has HiSparse."""
UNKNOWN = ("prefill_checkpoints", "rswa_window")
"""Options of layers that no model with HiSparse has."""
ROWS_TO_SPARE = 8
"""So many more requests than run have a row in the worker: who is preempted or ends leaves with the
next step."""


def hisparse_engine(
    header: TraceHeader, options: Options, source: Source, *, eager: bool, full: bool = False
) -> Assembled:
    """Return vLLM's scheduler with HiSparse. `eager`: see `size_hisparse`; `full`: key events tell
    of hits as well.

    Raises UsageError for what this release cannot do, or the adapter does not play.
    """
    _refuse(header, options, source)
    clock = Clock()
    interval = interval_of(header, options, source)
    special = request_options(header)
    header, options, config, whole = size_hisparse(source, header, options, interval, eager=eager)
    sizes = block_sizes(source, config, whole)
    tell_sizes(source, config, whole, sizes)
    with retaining(source, interval), variable(RUNNER_VARIABLE, "1"):
        scheduler = build_scheduler(source, whole, config, sizes)
        check_depth(source, whole, options)
    give_encoder_budget(scheduler, whole, special.encoder_budget)
    places = Places.of(source, config)
    names = KeyNames(sizes[1])
    core = scheduler.kv_cache_manager
    timed = TimedManager(core, clock)
    books = Books(source, scheduler, places, names)
    observed = ObservedTiers(timed, source.utils.get_group_id, books, places)
    new_request = timed.new_requests(request_maker(source, sizes[1], options, full=full))
    adapter = HiSparseScheduler(
        source, scheduler, observed, new_request, clock, options, names, books
    )
    delay = max(1, options.tier_delay)
    most = min(options.max_num_seqs, config.num_blocks) + ROWS_TO_SPARE
    adapter.worker = HiSparseWorker(
        source, places, options.max_model_len, most, eager=eager, delay=delay
    )
    header = replace(header, pages=places.pages, layout=_layout(header, places))
    rules = rules_of(header, options, source, core, sizes, interval)
    rules = replace(rules, progress_steps=rules.progress_steps + delay, late_keys=True)
    described = described_by(header, options, source, rules)
    pools = [Pool(id=POOL, pages=places.pages, null=places.null())]
    described = replace(
        described, pools=pools, capabilities=[*described.capabilities, *special.capabilities]
    )
    return Assembled(described, adapter, clock)


def _layout(header: TraceHeader, places: Places) -> Layout:
    """Return the layout as the ledger knows it: the layers that lie on the host, by resident
    group, and the indexers.
    """
    groups = [GroupSpec(kind="full", block_size=places.block_size)] * (len(places.parts) + 1)
    return Layout(
        name=header.layout.name,
        groups=groups,
        story=header.layout.story,
        source=header.layout.source,
    )


def _refuse(header: TraceHeader, options: Options, source: Source) -> None:
    """Raise UsageError for what HiSparse is not driven with."""
    if header.level != "scheduler":
        raise UsageError(
            "--engine vllm: hisparse is run at scheduler level: its blocks move with the"
            " scheduler's steps"
        )
    if source.is_before(SINCE):
        raise UsageError(
            f"vLLM {source.version}: it has HiSparse from {SINCE[0]}.{SINCE[1]} on; leave"
            " hisparse out"
        )
    if options.num_speculative_tokens or options.use_eagle:
        raise UsageError(
            "option 'num_speculative_tokens': HiSparse is not driven with drafts; leave it out"
        )
    for name in (name for name in UNKNOWN if header.options.get(name)):
        raise UsageError(
            f"option {name!r}: HiSparse is not driven with it; leave one of the two out"
        )
    if not options.scheduler_reserve_full_isl:
        raise UsageError(
            "option 'scheduler_reserve_full_isl': vLLM refuses HiSparse without it; leave it on"
        )
