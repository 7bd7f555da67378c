"""Faults in Furiosa's two pools and radix tree."""

from __future__ import annotations

from functools import partial
from typing import Any

from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import left_while_waiting, wrap
from cachewitness.engines.mutant import declared, mutant
from cachewitness_reference.furiosa.hybrid_match import usable
from cachewitness_reference.furiosa.request import BlockCopy

fault = partial(mutant, engines=("furiosa",))


@fault(
    name="furiosa-window-matched-short",
    mirrors="lightseekorg/tokenspeed and sgl-project/sglang#35515 (tombstones in a window)",
    anomaly="window-hole",
    checker="window-liveness",
    group="G",
)
def window_matched_short(engine: Driver) -> None:
    """A match is content with one sliding block less than the window needs."""
    manager = _manager(engine)

    def match(original: Any, request: Any) -> Any:
        limit = request.num_tokens - 1
        options = manager.config.options
        path = manager.tree.match(request.identity, request.symbols, limit)
        return usable(
            path,
            manager.tree.matched(path, request.symbols, limit),
            block_size=manager.block_size,
            tail=max(manager.config.tail - manager.block_size, 0),
            whole_blocks=options.hit_granularity == "block",
        )

    def columns(original: Any, hit: Any) -> Any:
        """Name the block before a hole once more, so that the columns stay in place."""
        global_blocks, _ = original(hit)
        furthest = {entry.start // manager.block_size: entry.sliding_block for entry in hit.path}
        first = max(0, hit.length - manager.config.tail) // manager.block_size
        inside = [block for column, block in furthest.items() if column >= first]
        return (
            global_blocks,
            inside[next((i for i, block in enumerate(inside) if block is not None), 0) :],
        )

    wrap(manager, "match", match)
    wrap(manager, "columns", columns)


@fault(
    name="furiosa-window-cleaned-early",
    mirrors="sgl-project/sglang#8649",
    anomaly="premature-release",
    checker="window-liveness",
    group="G",
)
def window_cleaned_early(engine: Driver) -> None:
    """A sliding block is given back one token early."""
    manager = _manager(engine)

    def cleanup(original: Any, request: Any) -> None:
        request.num_computed += 1
        try:
            original(request)
        finally:
            request.num_computed -= 1

    wrap(manager, "cleanup", cleanup)


@fault(
    name="furiosa-active-entries-evicted",
    mirrors="sgl-project/sglang#31427",
    anomaly="double-free",
    checker="ownership",
    group="H",
)
def active_entries_evicted(engine: Driver) -> None:
    """Entries that running requests use are evicted like idle ones."""
    for pool in (_manager(engine).global_pool, _manager(engine).sliding_pool):
        wrap(pool, "hold", _held_but_idle(pool))


def _held_but_idle(pool: Any) -> Any:
    def hold(original: Any, block_id: Any) -> None:
        original(block_id)
        block = pool._blocks[block_id]
        if block.holds == 1 and block.entries:
            pool.num_held -= 1
            block.holds = 0
            pool._settle(block)

    return hold


@fault(
    name="furiosa-shared-block-written",
    mirrors="vllm-project/vllm#56196",
    anomaly="aliased-write",
    checker="ownership",
    group="H",
)
def shared_block_written(engine: Driver) -> None:
    """A hit that ends inside a block is written on in place."""
    manager = _manager(engine)

    def copy_last_block(original: Any, request: Any) -> None:
        ends = (
            (manager.global_pool, request.global_blocks[-1]),
            (
                manager.sliding_pool,
                request.sliding_blocks[-1],
            ),
        )
        for pool, block in ends:
            pool.hold(block)
        request.global_copy, request.sliding_copy = (BlockCopy(block, block) for _, block in ends)

    wrap(manager, "_copy_last_block", copy_last_block)


@fault(
    name="furiosa-one-tree-for-all",
    mirrors="vllm-project/vllm#3263",
    anomaly="cross-identity-hit",
    checker="identity",
    group="I",
)
def one_tree_for_all(engine: Driver) -> None:
    """Salt and adapter do not part trees."""

    def add(original: Any, request: Any) -> None:
        request.identity = ("", "")
        original(request)

    wrap(_adapter(engine).scheduler, "add", add)


@fault(
    name="furiosa-reset-by-name",
    mirrors="vllm-project/vllm#57727",
    anomaly="stale-hit",
    checker="safety-law",
    group="L",
)
def reset_by_name(engine: Driver) -> None:
    """A reset removes the leaves of the tree and leaves what led to them.

    Remove the entries that nothing hangs below, once, as an eviction does, and report that
    everything is forgotten.
    """
    manager = _manager(engine)

    def reset(original: Any) -> bool:
        if manager.global_pool.num_held or manager.sliding_pool.num_held:
            return False
        for leaf in [entry for entry in manager.tree.entries() if not entry.children]:
            manager.tree.remove(leaf)
        return True

    wrap(manager, "reset", reset)


def _manager(engine: Driver) -> Any:
    return _adapter(engine).manager


def _adapter(engine: Driver) -> Any:
    return engine.adapter


@fault(
    name="furiosa-newest-idle-evicted",
    mirrors="sgl-project/sglang-omni#1724 (review: the heap's order under a negated key)",
    anomaly="wrong-victim",
    checker="eviction",
    group="N",
)
def newest_idle_evicted(engine: Driver) -> None:
    """Both pools evict what became idle last."""
    for pool in (_manager(engine).global_pool, _manager(engine).sliding_pool):
        wrap(pool, "take", _from_the_other_end(pool))


def _from_the_other_end(pool: Any) -> Any:
    def take(original: Any) -> Any:
        for block_id in reversed(list(pool._idle)):
            pool._idle.move_to_end(block_id)
        block = original()
        for block_id in reversed(list(pool._idle)):
            pool._idle.move_to_end(block_id)
        return block

    return take


@fault(
    name="furiosa-entries-end-with-their-last-user",
    mirrors="inference-sim/inference-sim#1057, #1079 (hashes deleted as blocks are freed)",
    anomaly="needless-eviction",
    checker="eviction",
    group="N",
)
def entries_end_with_their_last_user(engine: Driver) -> None:
    """A leaf that no request runs through any more is removed from the tree, whatever room there
    is.
    """
    tree = _manager(engine).tree

    def end(original: Any, last: Any) -> None:
        original(last)
        entry = last
        while (
            entry.parent is not None
            and not entry.users
            and not entry.children
            and entry.global_block is not None
        ):
            parent = entry.parent
            tree.remove(entry)
            entry = parent

    wrap(tree, "end", end)


@fault(
    name="furiosa-partial-chunks-not-stored",
    mirrors=(
        "jundot/omlx#1427, #3182 (a guard on the last block refuses the store, and nothing behind"
        " it is stored)"
    ),
    anomaly="lost-replay-boundary",
    checker="replay-boundary-retained",
    group="N",
)
def partial_chunks_not_stored(engine: Driver) -> None:
    """A chunk that ends inside a block is not stored, and what is computed behind it has nothing
    to hang on.
    """
    manager = _manager(engine)
    refused = set[str]()

    def store(original: Any, request: Any) -> None:
        if request.num_computed % manager.block_size:
            refused.add(request.request_id)
        if request.request_id not in refused:
            original(request)

    def free(original: Any, request: Any) -> None:
        original(request)
        refused.discard(request.request_id)

    wrap(manager, "store", store)
    wrap(manager, "free", free)


@fault(
    name="furiosa-window-freed-with-its-request",
    mirrors=(
        "sgl-project/sglang#35515, #26907 (a hole in the last window leaves nothing of a branch to"
        " match)"
    ),
    anomaly="forgotten-prefix",
    checker="content-floor",
    group="N",
)
def window_freed_with_its_request(engine: Driver) -> None:
    """Where windows free what they left, a request that ends has left all of its window, so
    nothing behind it is usable.
    """
    manager = _manager(engine)
    if manager.config.options.out_of_window != "freed":
        return

    def free(original: Any, request: Any) -> None:
        window = [block for block in request.sliding_blocks if block is not None]
        original(request)
        for block in window:
            if manager.sliding_pool.is_idle(block):
                manager._evict_sliding(block)
        manager.diff.settle()

    wrap(manager, "free", free)


@fault(
    name="furiosa-blocks-kept-for-copies",
    mirrors="vllm-project/vllm#39734 (a length that is accepted, and for which there is no room)",
    anomaly="no-progress",
    checker="progress",
    group="M",
)
def blocks_kept_for_copies(engine: Driver) -> None:
    """A request is let in only if two blocks are left for copies beside the one that the accepted
    length allows for.
    """
    manager = _manager(engine)

    def room(original: Any, *args: Any) -> Any:
        everywhere, sliding = original(*args)
        return max(everywhere - 2 * manager.block_size, 0), sliding

    wrap(manager, "room", room)


@fault(
    name="furiosa-answers-not-stored",
    mirrors="raullenchai/Rapid-MLX#214 (nothing is kept of a turn's answer)",
    anomaly="key-owed",
    checker="keys",
    group="N",
)
def answers_not_stored(engine: Driver) -> None:
    """Nothing that was generated comes into the tree."""

    def store(original: Any, request: Any) -> None:
        computed = request.num_computed
        request.num_computed = min(computed, max(request.num_prompt_tokens, request.num_stored))
        try:
            original(request)
        finally:
            request.num_computed = computed

    wrap(_manager(engine), "store", store)


@fault(
    name="furiosa-who-left-while-waiting-holds-the-queue",
    mirrors=(
        "vLLM v1/core/sched/scheduler.py (num_waiting_for_streaming_input: a session that ends"
        " while it waits counts as waiting on)"
    ),
    anomaly="no-progress",
    checker="progress",
    group="O",
    level="scheduler",
)
def who_left_while_waiting_holds_the_queue(engine: Driver) -> None:
    """A request that ends while it waits is waited for, and nobody joins any more."""
    scheduler = _adapter(engine).scheduler
    gone = left_while_waiting(scheduler, "finish")
    wrap(scheduler, "join", lambda original, *args: 0 if gone else original(*args))


MUTANTS = declared(globals())
