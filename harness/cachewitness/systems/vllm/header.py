"""What an engine of vLLM's shape declares of itself: one pool that all groups alias, page 0 the
null block, unless a plug-in has made several.

Sources: vLLM 0.33.0, `v1/core/kv_cache_utils.py`; `v1/core/single_type_kv_cache_manager.py`.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from cachewitness._util.errors import UsageError
from cachewitness.core.events import (
    Eviction,
    Group,
    Header,
    KeyEvents,
    Pool,
    Retention,
    Rules,
    Stores,
)
from cachewitness.core.trace_format import GroupSpec, TraceHeader
from cachewitness.engines.adapter import CAPABILITIES, SECOND
from cachewitness.engines.observe import ObservedManager
from cachewitness.engines.observe_pins import POOL
from cachewitness.engines.observe_tier import TIER
from cachewitness.engines.several_pools import SeveralPoolsState
from cachewitness_reference.vllm.config import Options

PRUNABLE = ("sliding", "recurrent")


LRU = Eviction("lru")
"""vLLM's free queue: blocks without a key are prepended and go first; others are appended as they
are let go, tails first."""
TIER_LRU = Eviction("lru-used")
"""The plain tier: a key that is stored again, or fetched, goes last."""


def describe(
    trace: TraceHeader,
    engine: str,
    engine_version: str,
    rules: Rules,
    options: Options | None = None,
    eviction: Eviction | None = LRU,
    *,
    further: Collection[str] = (),
) -> Header:
    """Return the history header of an engine of vLLM's shape: one pool that all groups alias, page
    0 the null block.

    `options` say how recurrent groups are run, in mode `align` if they are left out. `further` are
    capabilities beside those of every engine of this shape, such as `prompt_logprobs`.
    """
    options = options or Options()
    kinds = {group.kind for group in trace.layout.groups}
    not_applicable = {}
    if "recurrent" not in kinds or not rules.caching:
        not_applicable["no-fabricated-snapshots"] = _why(rules, "no recurrent group")
    if not rules.retention.groups or not rules.caching:
        not_applicable["interval-sparsity"] = _why(rules, "no group that retention prunes")
    return Header(
        engine=engine,
        level=trace.level,
        pools=[Pool(id=POOL, pages=trace.pages, null=[0], eviction=eviction)],
        groups=[_group(index, spec, options) for index, spec in enumerate(trace.layout.groups)],
        rules=rules,
        capabilities=[*CAPABILITIES, "withdraw", *further],
        not_applicable=not_applicable,
        engine_version=engine_version,
        trace=trace.name,
    )


def _group(index: int, spec: GroupSpec, options: Options) -> Group:
    """Return a group as the worker sees it. In mode `none` one block holds the state of a whole
    request.
    """
    recurrent = spec.kind == "recurrent"
    mode = options.mamba_cache_mode
    return Group(
        id=index,
        kind=spec.kind,
        block_size=options.max_model_len if recurrent and mode == "none" else spec.block_size,
        pool=POOL,
        window=spec.window,
        chunk=spec.chunk,
        snapshots="every-block" if recurrent and mode == "all" else "chunk-end",
    )


def retention(
    trace: TraceHeader, interval: int | None, kinds: Collection[str] = PRUNABLE, **declared: bool
) -> Retention:
    """Return what vLLM keeps of the groups of a layout.

    `interval` in tokens, `kinds` of groups that it governs, `declared` as in `Retention`.
    """
    groups = [index for index, spec in enumerate(trace.layout.groups) if spec.kind in kinds]
    return Retention(interval=interval, groups=groups, **declared)


def checkpoint_alignment(trace: TraceHeader, options: Options, alignment: int) -> int:
    """Return at multiples of how many tokens chunks end for the state of a prompt; 0 where states
    are kept of every block, or of none.

    Chunks stop at a state's blocks, and inside them where hits end there. Where hits end at common
    multiples with wider or unlike blocks of attention, which boundary a replay can use is not
    asked, so nothing is declared.

    Source: `v1/core/sched/scheduler.py`, `Scheduler._mamba_block_aligned_split`.
    """
    sizes = {spec.block_size for spec in trace.layout.groups if spec.kind == "recurrent"}
    stops = options.mamba_cache_mode == "align" and bool(sizes)
    return alignment if stops and all(size % alignment == 0 for size in sizes) else 0


def key_events(trace: TraceHeader, hash_block_size: int) -> KeyEvents:
    """Return what vLLM's events for routers leave open. `hash_block_size` in tokens.

    Where blocks of a group are null, or retention drops them, the tokens of an event are those of
    all blocks and its hashes of the blocks that were kept. An event of part of a block names a
    parent inside the block, which has no event of its own.
    """
    pruned = any(group.kind != "full" for group in trace.layout.groups)
    finer = any(hash_block_size < group.block_size for group in trace.layout.groups)
    return KeyEvents(gaps=pruned, orphans=pruned or finer)


def _why(rules: Rules, otherwise: str) -> str:
    return otherwise if rules.caching else "prefix caching is off"


def with_pools(header: Header, observed: ObservedManager) -> Header:
    """Return the header with the pools that the groups of a manager lie in, if they are several.
    Raises UsageError for what is not driven with several.
    """
    state = observed.state
    if not isinstance(state, SeveralPoolsState):
        return header
    if observed.copies_expected or observed.tiered:
        raise UsageError(
            "several block pools are not driven with hits inside a block, drafts beside states or a"
            " connector: what is copied does not say in which pool it is"
        )
    nulls = state.null()
    pools = [
        Pool(id=pool, pages=pages, null=nulls[pool], eviction=LRU)
        for pool, pages in state.sizes().items()
    ]
    groups = [
        msgspec.structs.replace(group, pool=pool)
        for group, pool in zip(header.groups, observed.pools, strict=True)
    ]
    return msgspec.structs.replace(header, pools=pools, groups=groups)


def with_tier(
    header: Header,
    pages: int,
    eviction: Eviction | None = TIER_LRU,
    stores: Stores | None = None,
) -> Header:
    """Return the header with a second tier of so many pages, and in it a group for each of the
    device's; `stores` says what is put there.
    """
    if not pages:
        return header
    count = len(header.groups)
    aside = [
        msgspec.structs.replace(group, id=count + group.id, pool=TIER, source_group=group.id)
        for group in header.groups
    ]
    pools = [*header.pools, Pool(id=TIER, pages=pages, tier=SECOND, eviction=eviction)]
    rules = msgspec.structs.replace(header.rules, stores=stores)
    return msgspec.structs.replace(
        header, pools=pools, groups=[*header.groups, *aside], rules=rules
    )
