"""Faults in what is forgotten, and when: every answer is right, and hits go missing."""

from __future__ import annotations

from typing import Any

from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import BOTH, REFERENCE, core, wrap
from cachewitness.engines.mutant import declared, mutant


@mutant(
    name="keys-end-with-their-last-holder",
    mirrors="inference-sim/inference-sim#1057, #1079 (hashes deleted as blocks are freed)",
    anomaly="needless-eviction",
    checker="eviction",
    group="N",
    engines=BOTH,
)
def keys_end_with_their_last_holder(engine: Driver) -> None:
    """A block that nobody holds any more is freed for good, its key with it."""
    pool = core(engine).block_pool

    def free_blocks(original: Any, ordered_blocks: Any) -> None:
        blocks = list(ordered_blocks)
        for block in blocks:
            if block.ref_cnt == 1 and not block.is_null and block.block_hash is not None:
                pool._maybe_evict_cached_block(block)
        original(blocks)

    wrap(pool, "free_blocks", free_blocks)


@mutant(
    name="preemption-forgets-the-prefix",
    mirrors="RBLN-SW/vllm-rbln#136 (preemption evicts)",
    anomaly="needless-eviction",
    checker="eviction",
    group="N",
    engines=REFERENCE,
    level="scheduler",
)
def preemption_forgets_the_prefix(engine: Driver) -> None:
    """Who is preempted loses its keys with its blocks, and computes everything again."""
    manager = core(engine)

    def free(original: Any, request: Any) -> None:
        tables = (
            [] if request.status.is_finished else manager.coordinator.get_blocks(request.request_id)
        )
        own = [
            block
            for table in tables
            for block in table
            if block.ref_cnt == 1 and block.block_hash is not None
        ]
        original(request)
        for block in own:
            manager.block_pool._maybe_evict_cached_block(block)

    wrap(manager, "free", free)


@mutant(
    name="newest-block-evicted-first",
    mirrors="sgl-project/sglang-omni#1724 (review: the heap's order under a negated key)",
    anomaly="wrong-victim",
    checker="eviction",
    group="N",
    engines=REFERENCE,
)
def newest_block_evicted_first(engine: Driver) -> None:
    """Cached blocks are queued in front of those that were cached before, so what was used last
    goes first.
    """
    pool = core(engine).block_pool

    def free_blocks(original: Any, ordered_blocks: Any) -> None:
        blocks = list(ordered_blocks)
        original(blocks)
        unkeyed = [block for block in pool.free_block_queue.values() if block.block_hash is None]
        for block in [
            block
            for block in blocks
            if block.ref_cnt == 0 and not block.is_null and block.block_hash is not None
        ]:
            pool.free_block_queue.move_to_end(block.block_id, last=False)
        for block in reversed(unkeyed):
            pool.free_block_queue.move_to_end(block.block_id, last=False)

    wrap(pool, "free_blocks", free_blocks)


@mutant(
    name="heads-evicted-before-tails",
    mirrors="llm-d/llm-d-inference-sim#704; vllm-project/vllm#48489, #48532",
    anomaly="wrong-victim",
    checker="eviction",
    group="N",
    engines=BOTH,
)
def heads_evicted_before_tails(engine: Driver) -> None:
    """A table is given back from its first block on, so a prefix goes before what only it leads
    to.
    """
    wrap(
        core(engine).block_pool,
        "free_blocks",
        lambda original, blocks: original(list(blocks)[::-1]),
    )


@mutant(
    name="empty-blocks-wait-behind-cached-ones",
    mirrors="vLLM before its free queue put blocks without a hash in front",
    anomaly="needless-eviction",
    checker="eviction",
    group="N",
    engines=REFERENCE,
)
def empty_blocks_wait_behind_cached_ones(engine: Driver) -> None:
    """A freed block without a key is appended to the queue, and cached ones are evicted while it
    waits.
    """
    pool = core(engine).block_pool

    def free_blocks(original: Any, ordered_blocks: Any) -> None:
        blocks = list(ordered_blocks)
        original(blocks)
        for block in blocks:
            if block.ref_cnt == 0 and not block.is_null and block.block_hash is None:
                pool.free_block_queue.move_to_end(block.block_id)

    wrap(pool, "free_blocks", free_blocks)


@mutant(
    name="never-taken-blocks-wait-behind-returned-ones",
    mirrors=(
        "a free list that is filled at start-up behind what is given back meanwhile, as where pages"
        " are returned to the front (sgl-project/sglang-omni#1724, review)"
    ),
    anomaly="needless-eviction",
    checker="eviction",
    group="N",
    engines=REFERENCE,
)
def never_taken_blocks_wait_behind_returned_ones(engine: Driver) -> None:
    """Blocks that nobody ever took go to the end of the queue each time that one is given back, and
    cached ones are evicted meanwhile. Where all blocks wait in one queue (`free_list` fifo) it is a
    wrong victim that shows it.
    """
    pool = core(engine).block_pool
    never = {block.block_id for block in pool.free_block_queue.values()}

    def get_new_blocks(original: Any, num_blocks: int) -> Any:
        taken = original(num_blocks)
        never.difference_update(block.block_id for block in taken)
        return taken

    def free_blocks(original: Any, ordered_blocks: Any) -> None:
        original(ordered_blocks)
        for block_id in sorted(never):
            pool.free_block_queue.move_to_end(block_id)

    wrap(pool, "get_new_blocks", get_new_blocks)
    wrap(pool, "free_blocks", free_blocks)


@mutant(
    name="hit-does-not-renew-a-block",
    mirrors=(
        "ml-explore/mlx-lm#1495; antonellof/ferrox#14 (first in, first out under the name of LRU)"
    ),
    anomaly="wrong-victim",
    checker="eviction",
    group="N",
    engines=REFERENCE,
)
def hit_does_not_renew_a_block(engine: Driver) -> None:
    """A block that was hit returns to the place in the queue that its first release gave it."""
    pool = core(engine).block_pool
    turns: dict[Any, int] = {}

    def get_new_blocks(original: Any, num_blocks: int) -> Any:
        taken = original(num_blocks)
        for block in taken:
            turns.pop(block.block_id, None)
        return taken

    def free_blocks(original: Any, ordered_blocks: Any) -> None:
        original(ordered_blocks)
        cached = [block for block in pool.free_block_queue.values() if block.block_hash is not None]
        for block in cached:
            turns.setdefault(block.block_id, max(turns.values(), default=0) + 1)
        for block in sorted(cached, key=lambda block: turns[block.block_id]):
            pool.free_block_queue.move_to_end(block.block_id)

    wrap(pool, "get_new_blocks", get_new_blocks)
    wrap(pool, "free_blocks", free_blocks)


@mutant(
    name="tier-evicts-the-newest",
    mirrors="sgl-project/sglang-omni#1724 (review: the heap's order under a negated key)",
    anomaly="wrong-victim",
    checker="eviction",
    group="N",
    engines=REFERENCE,
    level="scheduler",
)
def tier_evicts_the_newest(engine: Driver) -> None:
    """A full tier gives up what it stored or found last."""
    tier: Any = getattr(core(engine), "tier", None)
    if tier is None:
        return

    def evict(original: Any) -> Any:
        key = next(
            (key for key in reversed(tier._cached) if tier._cached[key].num_copies == 0), None
        )
        return None if key is None else tier._cached.pop(key)

    wrap(tier, "_evict", evict)


@mutant(
    name="tier-is-first-in-first-out",
    mirrors=(
        "ml-explore/mlx-lm#1495; antonellof/ferrox#14 (first in, first out under the name of LRU)"
    ),
    anomaly="wrong-victim",
    checker="eviction",
    group="N",
    engines=REFERENCE,
    level="scheduler",
)
def tier_is_first_in_first_out(engine: Driver) -> None:
    """What the tier serves, or is given again, keeps its age: it evicts by the time of the first
    store.
    """
    tier: Any = getattr(core(engine), "tier", None)
    if tier is None:
        return

    def unrenewed(original: Any, *args: Any) -> Any:
        order = dict.fromkeys(tier._cached)
        answer = original(*args)
        for key in [
            *filter(tier._cached.__contains__, order),
            *[key for key in tier._cached if key not in order],
        ]:
            tier._cached.move_to_end(key)
        return answer

    wrap(tier, "fetch", unrenewed)
    wrap(tier, "store", unrenewed)


@mutant(
    name="tier-sized-in-anothers-pages",
    mirrors="LMCache/LMCache#2951 (sizes of one group counted for all)",
    anomaly="needless-eviction",
    checker="eviction",
    group="M",
    engines=REFERENCE,
    level="scheduler",
)
def tier_sized_in_anothers_pages(engine: Driver) -> None:
    """The tier counts a place for each group that a key could be of, and evicts while most of
    its places are free.
    """
    manager = core(engine)
    tier: Any = getattr(manager, "tier", None)
    if tier is None:
        return
    room = len(tier.blocks) // (2 * len(manager.coordinator.single_type_managers))

    def store(original: Any, request_id: str, block: Any) -> Any:
        if len(tier._cached) >= room and (place := tier._evict()) is not None:
            tier._set_key(place, None, None)
            tier._free.append(place)
        return original(request_id, block)

    wrap(tier, "store", store)


@mutant(
    name="keys-put-off-for-good",
    mirrors=(
        "vLLM's delay_cache_blocks, for blocks that a connector has yet to load;"
        " vllm-project/vllm#33270 (0 % hits)"
    ),
    anomaly="lost-replay-boundary",
    checker="replay-boundary-retained",
    group="N",
    engines=REFERENCE,
)
def keys_put_off_for_good(engine: Driver) -> None:
    """Keys of a request that loads nothing are put off until its load has ended, which never
    comes.
    """

    def allocate_slots(original: Any, *args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, "delay_cache_blocks": True})

    wrap(core(engine), "allocate_slots", allocate_slots)


@mutant(
    name="index-of-stored-prefixes-outlives-eviction",
    mirrors=(
        "taco-project/FlexKV#195 (entries left behind by an eviction); sgl-project/sglang#28222"
        " (one hit of four)"
    ),
    anomaly="lost-replay-boundary",
    checker="replay-boundary-retained",
    group="N",
    engines=REFERENCE,
)
def index_of_stored_prefixes_outlives_eviction(engine: Driver) -> None:
    """What an index says is stored is not keyed again; a reset empties the index, an eviction
    does not.
    """
    _skip_what_is_known(core(engine).block_pool, emptied_by="reset_prefix_cache")


@mutant(
    name="index-of-stored-prefixes-outlives-a-reset",
    mirrors="vllm-project/aibrix#2287 (an index that is not invalidated by the engine's reset)",
    anomaly="lost-replay-boundary",
    checker="replay-boundary-retained",
    group="L",
    engines=REFERENCE,
)
def index_of_stored_prefixes_outlives_a_reset(engine: Driver) -> None:
    """What an index says is stored is not keyed again; an eviction takes its keys out of the
    index, a reset does not.
    """
    _skip_what_is_known(core(engine).block_pool, emptied_by="")


@mutant(
    name="withdrawal-takes-committed-keys",
    mirrors=(
        "vllm-project/vllm#43569, #57580 (keys of a step that does not run), mended by the table"
        " and not by the step"
    ),
    anomaly="forgotten-prefix",
    checker="content-floor",
    group="N",
    engines=REFERENCE,
)
def withdrawal_takes_committed_keys(engine: Driver) -> None:
    """A request whose step is withdrawn loses the keys of its whole table, those of steps that
    ran among them.
    """
    manager = core(engine)

    def withdraw_keys(original: Any, request_id: str) -> None:
        original(request_id)
        for table in manager.coordinator.get_blocks(request_id):
            for block in table:
                if block.block_hash is not None:
                    manager.block_pool._drop_keys(block)

    wrap(manager.block_pool, "withdraw_keys", withdraw_keys)


def _skip_what_is_known(pool: Any, emptied_by: str) -> None:
    """Let a pool key a block only if its key is not in an index of those that it keyed before."""
    index: set[Any] = set()

    def insert(original: Any, request_id: str, key: Any, block: Any, num_tokens: int) -> None:
        if key not in index or pool.cached_block_hash_to_block.get_one_block(key) is not None:
            index.add(key)
            original(request_id, key, block, num_tokens)

    def evict(original: Any, block: Any) -> None:
        if block.block_hash is not None and not emptied_by:
            index.discard(block.block_hash)
        original(block)

    def move(original: Any, request_id: str, src_block: Any, dst_block: Any) -> None:
        index.difference_update(
            [src_block.block_hash, *pool.cached_block_hashes_by_block.get(src_block.block_id, ())]
        )
        original(request_id, src_block, dst_block)

    def empty(original: Any) -> Any:
        index.clear()
        return original()

    wrap(pool, "_insert", insert)
    wrap(pool, "move_block_hashes", move)
    wrap(pool, "_maybe_evict_cached_block", evict)
    if emptied_by:
        wrap(pool, emptied_by, empty)


MUTANTS = declared(globals())
