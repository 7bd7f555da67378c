"""Faults in LMCache's store and in its connector."""

from __future__ import annotations

from functools import partial
from typing import Any

from cachewitness.engines.fault_tools import core, key_nothing_before, last_boundary, wrap
from cachewitness.engines.mutant import declared, mutant
from cachewitness.systems.lmcache.reference.planting import (
    connector_of,
    name_objects,
    where_there_is_a_store,
)
from cachewitness_reference.lmcache.server import Transfer

fault = partial(mutant, engines=("lmcache",), level="scheduler")


@fault(
    name="lmcache-prefix-counted-in-one-group",
    mirrors="LMCache/LMCache#2863",
    anomaly="fabricated-snapshot",
    checker="no-fabricated-snapshots",
    group="C",
)
@where_there_is_a_store
def prefix_counted_in_one_group(engine: Any) -> None:
    """The chunks of one object group are counted, and so many of all are served."""
    server = connector_of(engine).server

    def lookup(original: Any, request_id: str, tokens: Any, num_tokens: int) -> int:
        session = server._hashed(request_id, tokens)
        hit = 0
        while hit < num_tokens // server.groups.chunk_size and server.l1.contains(
            server._key(session, hit, 0, server.ranks[0])
        ):
            hit += 1
        return hit

    def retrieve(original: Any, request_id: str, *args: Any) -> Any:
        transfer = original(request_id, *args)
        return transfer if transfer.ok else Transfer(request_id)

    wrap(server, "lookup", lookup)
    wrap(server, "retrieve", retrieve)


@fault(
    name="lmcache-prompt-logprobs-from-the-store",
    mirrors="vllm-project/vllm v1/core/sched/scheduler.py (skip_reading_prefix_cache)",
    anomaly="unwanted-hit",
    checker="safety-law",
    group="M",
)
@where_there_is_a_store
def prompt_logprobs_from_the_store(engine: Any) -> None:
    """Who asks for log-probabilities of its prompt is not looked up on the device, but what the
    store has is loaded.
    """

    def get_computed_blocks(original: Any, request: Any) -> Any:
        found = original(request)
        request.skip_reading_prefix_cache = False
        return found

    wrap(core(engine), "get_computed_blocks", get_computed_blocks)


@fault(
    name="lmcache-null-blocks-stored",
    mirrors="vllm-project/vllm#53084",
    anomaly="fabricated-snapshot",
    checker="no-fabricated-snapshots",
    group="A",
)
@where_there_is_a_store
def null_blocks_stored(engine: Any) -> None:
    """What lies in the null block is stored as a chunk's state."""
    wrap(connector_of(engine).server, "_has_content", lambda original, blocks: True)


@fault(
    name="lmcache-failed-store-found",
    mirrors="LMCache/LMCache#4991",
    anomaly="partial-commit",
    checker="commit-order",
    group="K",
)
@where_there_is_a_store
def failed_store_found(engine: Any) -> None:
    """A store fails on its last page, and its object is found all the same."""

    def begin_step(original: Any, *step: Any) -> None:
        original(*step)
        begin: Any = engine.events[-1]
        begin.stores = begin.stores[:-1]

    wrap(engine, "_begin", begin_step)


@fault(
    name="lmcache-shared-prefix-not-stopped-at",
    mirrors="vllm-project/vllm#45238, as behind a connector (get_computed_blocks_for_connector)",
    anomaly="missed-checkpoint",
    checker="checkpoints",
    group="N",
)
@where_there_is_a_store
def shared_prefix_not_stopped_at(engine: Any) -> None:
    """Behind the connector nobody asks where a prefix that others share goes on beyond the hit,
    so no chunk stops there and siblings find no state.
    """

    def get_computed_blocks(original: Any, request: Any) -> Any:
        blocks, hit_length, _ = original(request)
        return blocks, hit_length, 0

    wrap(engine.adapter.scheduler.kv_cache_manager, "get_computed_blocks", get_computed_blocks)


@fault(
    name="lmcache-states-left-to-the-store",
    mirrors="vllm-project/vllm#53505 (what the pool had is lost behind a connector)",
    anomaly="key-owed",
    checker="keys",
    group="N",
)
@where_there_is_a_store
def states_left_to_the_store(engine: Any) -> None:
    """The device keys no state in front of a prompt's end, since the store has it, whose chunks
    are longer.
    """
    key_nothing_before(engine, "Mamba", last_boundary)


@fault(
    name="lmcache-last-token-not-reserved",
    mirrors="LMCache before 0.5.6",
    anomaly="state-position-skew",
    checker="safety-law",
    group="P",
)
@where_there_is_a_store
def last_token_not_reserved(engine: Any) -> None:
    """A prompt of whole chunks is served whole, with a state behind its last token."""
    connector_of(engine).reserve_last_token = False


@fault(
    name="lmcache-moved-blocks-not-tracked",
    mirrors="LMCache/LMCache#4984",
    anomaly="fabricated-snapshot",
    checker="no-fabricated-snapshots",
    group="A",
)
@where_there_is_a_store
def moved_blocks_not_tracked(engine: Any) -> None:
    """A block that left a request's table is stored as if it were still there."""
    connector = connector_of(engine)
    known: dict[str, list[list[Any]]] = {}

    def build_connector_meta(original: Any, scheduled: Any, tables: Any) -> Any:
        for r, table in tables.items():
            old = known.get(r, [[] for _ in table])
            known[r] = [row + list(new[len(row) :]) for row, new in zip(old, table, strict=True)]
        return original(scheduled, {r: known[r] for r in tables})

    wrap(connector, "build_connector_meta", build_connector_meta)


@fault(
    name="lmcache-salt-left-out-of-objects",
    mirrors="vllm-project/vllm#53495, #54342",
    anomaly="cross-identity-hit",
    checker="identity",
    group="I",
)
@where_there_is_a_store
def salt_left_out_of_objects(engine: Any) -> None:
    """Objects are named by their tokens alone."""
    name_objects(engine, lambda salt, adapter, kernels: ("", "", kernels))


@fault(
    name="lmcache-objects-survive-reset",
    mirrors=(
        "vllm-project/vllm#57727; LMCache 0.5.6 (a reset passes over locked keys, vLLM takes it for"
        " done)"
    ),
    anomaly="stale-hit",
    checker="safety-law",
    group="L",
)
@where_there_is_a_store
def objects_survive_reset(engine: Any) -> None:
    """A reset of the store passes over what a reader has locked, and reports success.

    Locked are the chunks that a request was told of while it waits for blocks, and those that a
    step in flight loads. Whoever asks next finds them.
    """
    connector = connector_of(engine)

    def reset_cache(original: Any) -> bool:
        l1 = connector.server.l1
        l1.delete([key for key in list(l1.objects) if l1.is_evictable(key)])
        return True

    wrap(connector, "reset_cache", reset_cache)


@fault(
    name="lmcache-watermark-of-another-total",
    mirrors="LMCache/LMCache#2951 (sizes of one group counted for all)",
    anomaly="needless-eviction",
    checker="eviction",
    group="M",
)
@where_there_is_a_store
def watermark_of_another_total(engine: Any) -> None:
    """The share in use is taken of the pages of one group, so the watermark is reached while
    most pages are free.
    """
    server = connector_of(engine).server
    parts = 2 * len(server.groups.kernel_groups)

    def tick(original: Any) -> Any:
        total = server.l1.num_pages
        server.l1.memory_usage = lambda: (total - len(server.l1._free), total // parts)
        try:
            return original()
        finally:
            del server.l1.memory_usage

    wrap(server.eviction, "tick", tick)


@fault(
    name="lmcache-newest-evicted",
    mirrors="sgl-project/sglang-omni#1724 (review: the heap's order under a negated key)",
    anomaly="wrong-victim",
    checker="eviction",
    group="N",
)
@where_there_is_a_store
def newest_evicted(engine: Any) -> None:
    """Eviction begins with the keys that were of use last."""
    policy = connector_of(engine).server.eviction.policy

    def get_eviction_actions(original: Any, ratio: float, is_eligible: Any) -> Any:
        order = list(policy._order)
        for key in reversed(order):
            policy._order.move_to_end(key)
        chosen = original(ratio, is_eligible)
        for key in order:
            policy._order.move_to_end(key)
        return chosen

    wrap(policy, "get_eviction_actions", get_eviction_actions)


@fault(
    name="lmcache-use-does-not-renew",
    mirrors="LMCache/LMCache#1116 (recency renewed by some uses alone); ml-explore/mlx-lm#1495",
    anomaly="wrong-victim",
    checker="eviction",
    group="N",
)
@where_there_is_a_store
def use_does_not_renew(engine: Any) -> None:
    """Keys that were looked up and loaded keep the age of their store."""
    wrap(
        connector_of(engine).server.eviction.policy, "on_keys_accessed", lambda original, keys: None
    )


@fault(
    name="lmcache-watermark-advances-twice",
    mirrors="LMCache 0.5.6, lmcache_mp_connector.py: what a look-up finds is set there, not added",
    anomaly="lost-store",
    checker="stores",
    group="N",
)
@where_there_is_a_store
def watermark_advances_twice(engine: Any) -> None:
    """Each look-up adds what it finds to what counts as stored.

    A request that waits for room is looked up again and again, and so many of its own chunks are
    passed over.
    """
    connector = connector_of(engine)

    def get_num_new_matched_tokens(original: Any, request_id: str, computed: int) -> int:
        tracker = connector.trackers[request_id]
        before = tracker.num_stored_tokens
        found: int = original(request_id, computed)
        tracker.num_stored_tokens += before
        return found

    wrap(connector, "get_num_new_matched_tokens", get_num_new_matched_tokens)


@fault(
    name="lmcache-last-chunk-passed-over",
    mirrors="jundot/omlx#1427, #3182 (what a turn ends with is silently not kept)",
    anomaly="lost-store",
    checker="stores",
    group="N",
)
@where_there_is_a_store
def last_chunk_passed_over(engine: Any) -> None:
    """Of several chunks that a step completes the last is not stored, and counts as if it were."""
    server = connector_of(engine).server

    def store(original: Any, request_id: str, tokens: Any, chunks: range, blocks: Any) -> Any:
        kept = chunks[: max(len(chunks) - 1, 1)]
        return original(request_id, tokens, kept, blocks)

    wrap(server, "store", store)


MUTANTS = declared(globals())
