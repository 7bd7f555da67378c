"""Faults in copies from and to a second tier that take time, and may fail."""

from __future__ import annotations

from typing import Any

from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import REFERENCE, adapter, core, wrap
from cachewitness.engines.mutant import declared, mutant
from cachewitness_reference.vllm_extended.loading_scheduler import LoadingScheduler


def _slow(engine: Driver) -> LoadingScheduler | None:
    """Return the scheduler if its tier takes time; elsewhere there is nothing to plant."""
    return (
        adapter(engine).scheduler
        if isinstance(adapter(engine).scheduler, LoadingScheduler)
        else None
    )


@mutant(
    name="runs-before-its-load-has-landed",
    mirrors="sgl-project/sglang#22811",
    anomaly="stale-hit",
    checker="safety-law",
    group="K",
    engines=REFERENCE,
    level="scheduler",
)
def runs_before_its_load_has_landed(engine: Driver) -> None:
    """A request runs over pages that a load has yet to fill.

    Let a request run in the very step that its loads begin with.
    """
    scheduler: Any = _slow(engine)
    if scheduler is None:
        return

    def try_to_admit(original: Any, request: Any, output: Any, left: int, limit: int) -> Any:
        admitted = original(request, output, left, limit)
        if request.request_id not in scheduler.loading:
            return admitted
        del scheduler.loading[request.request_id]
        scheduler.loaded.add(request.request_id)
        scheduler.waiting.appendleft(request)
        return original(request, output, left, limit)

    wrap(scheduler, "_try_to_admit", try_to_admit)


@mutant(
    name="failed-load-counts",
    mirrors="sgl-project/sglang#30986",
    anomaly="partial-commit",
    checker="commit-order",
    group="K",
    engines=REFERENCE,
    level="scheduler",
)
def failed_load_counts(engine: Driver) -> None:
    """A load that failed leaves its page keyed and its tokens counted as computed.

    Take what could not be loaded for loaded.
    """

    def end_transfer(original: Any, transfer: Any) -> None:
        transfer.failed = transfer.failed and transfer.stores
        original(transfer)

    if _slow(engine):
        wrap(adapter(engine).manager, "end_transfer", end_transfer)


@mutant(
    name="failed-store-found",
    mirrors="LMCache/LMCache#4991",
    anomaly="partial-commit",
    checker="commit-order",
    group="K",
    engines=REFERENCE,
    level="scheduler",
)
def failed_store_found(engine: Driver) -> None:
    """A store that failed leaves its key to be found.

    Take what could not be stored for stored.
    """

    def end_transfer(original: Any, transfer: Any) -> None:
        transfer.failed = transfer.failed and not transfer.stores
        original(transfer)

    if _slow(engine):
        wrap(adapter(engine).manager, "end_transfer", end_transfer)


@mutant(
    name="keyed-when-its-load-begins",
    mirrors="vllm-project/vllm#43569",
    anomaly="partial-commit",
    checker="commit-order",
    group="B",
    engines=REFERENCE,
    level="scheduler",
)
def keyed_when_its_load_begins(engine: Driver) -> None:
    """A block can be hit before the load that fills it has ended.

    Key a block when its load begins, as if that were part of the step.
    """
    pool = core(engine).block_pool

    def fetch(original: Any, request_id: str, source: Any) -> Any:
        block = original(request_id, source)
        pool._insert(request_id, source.block_hash, block, source.block_hash_num_tokens)
        return block

    if _slow(engine):
        wrap(pool, "fetch_from_tier", fetch)


@mutant(
    name="abandoned-load-gives-its-pages-back",
    mirrors="LMCache/LMCache#5248",
    anomaly="aliased-write",
    checker="ownership",
    group="K",
    engines=REFERENCE,
    level="scheduler",
)
def abandoned_load_gives_its_pages_back(engine: Driver) -> None:
    """Pages of an aborted request are another's while a load still writes into them."""
    scheduler: Any = _slow(engine)
    if scheduler is None:
        return
    given_back: set[int] = set()

    def leave(original: Any, request: Any) -> None:
        loads = scheduler.loading.get(request.request_id, [])
        original(request)
        given_back.update(load.number for load in loads if not load.ended)
        adapter(engine).manager.block_pool.free_blocks(
            [load.block for load in loads if not load.ended]
        )

    def end(original: Any, transfer: Any) -> None:
        if transfer.number not in given_back:
            original(transfer)

    wrap(scheduler, "_leave", leave)
    wrap(core(engine).block_pool, "end_transfer", end)


@mutant(
    name="store-source-let-go",
    mirrors="vllm-project/vllm#46951",
    anomaly="partial-commit",
    checker="commit-order",
    group="K",
    engines=REFERENCE,
    level="scheduler",
)
def store_source_let_go(engine: Driver) -> None:
    """A block is given back, and written anew, while it is still being stored.

    Hold a block until its store begins, not until it ends.
    """
    scheduler: Any = _slow(engine)
    if scheduler is None:
        return

    def begin_stores(original: Any) -> Any:
        begun = original()
        adapter(engine).manager.block_pool.free_blocks([store.block for store in begun])
        return begun

    def end(original: Any, transfer: Any) -> None:
        if not transfer.stores:
            original(transfer)

    wrap(adapter(engine).manager, "begin_stores", begin_stores)
    wrap(core(engine).block_pool, "end_transfer", end)


@mutant(
    name="place-gives-way-while-loaded",
    mirrors="sgl-project/sglang#31427",
    anomaly="partial-commit",
    checker="commit-order",
    group="K",
    engines=REFERENCE,
    level="scheduler",
)
def place_gives_way_while_loaded(engine: Driver) -> None:
    """A place of the second tier is filled anew while a load still reads it.

    Let places be evicted from which loads are under way.
    """
    if not _slow(engine):
        return
    tier = core(engine).tier

    def fetch(original: Any, source: Any, target: Any) -> None:
        original(source, target)
        source.num_copies -= 1

    def end(original: Any, transfer: Any) -> None:
        transfer.place.num_copies += not transfer.stores
        original(transfer)

    wrap(tier, "fetch", fetch)
    wrap(tier, "end", end)


@mutant(
    name="loaded-requests-keep-their-blocks",
    mirrors="vllm-project/vllm#57104",
    anomaly="no-progress",
    checker="progress",
    group="O",
    engines=REFERENCE,
    level="scheduler",
)
def loaded_requests_keep_their_blocks(engine: Driver) -> None:
    """Requests that were loaded hold blocks that each of them lacks to go on.

    Let nobody who was loaded and cannot go on give up its blocks for others.
    """
    scheduler: Any = _slow(engine)
    if scheduler is None:
        return

    def last_loaded(original: Any, but: Any = None) -> Any:
        return original() if but is None else None

    wrap(scheduler, "_last_loaded", last_loaded)


@mutant(
    name="reset-lets-go-of-pending-copies",
    mirrors=(
        "vllm-project/vllm#39726 (a reset releases the blocks of transfers that the worker goes on"
        " with)"
    ),
    anomaly="double-free",
    checker="ownership",
    group="L",
    engines=REFERENCE,
    level="scheduler",
)
def reset_lets_go_of_pending_copies(engine: Driver) -> None:
    """A reset takes loads and stores that are under way for called off: their pages are another's
    while the copies go on.

    Whoever waits for a load waits for its turn again, and the reset succeeds if nobody else holds a
    block.
    """
    scheduler: Any = _slow(engine)
    if scheduler is None:
        return
    called_off: set[int] = set()

    def reset(original: Any, reset_running_requests: bool = False) -> bool:
        for request in [scheduler.requests[r] for r in scheduler.loading]:
            scheduler._leave(request)
            scheduler._preempt(request)
        under_way, scheduler.transfers = scheduler.transfers, []
        core(engine).block_pool.free_blocks(
            [each.block for each in under_way if each.number not in called_off]
        )
        called_off.update(each.number for each in under_way)
        try:
            return bool(original(reset_running_requests))
        finally:
            scheduler.transfers = under_way

    def end(original: Any, transfer: Any) -> None:
        if transfer.number not in called_off:
            original(transfer)

    wrap(scheduler, "reset_prefix_cache", reset)
    wrap(core(engine).block_pool, "end_transfer", end)


MUTANTS = declared(globals())
