"""Faults in who holds what."""

from __future__ import annotations

from typing import Any

from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import BOTH, REFERENCE, core, wrap
from cachewitness.engines.mutant import declared, mutant


@mutant(
    name="touch-after-allocate",
    mirrors="vllm-project/vllm#10507",
    anomaly="aliased-write",
    checker="ownership",
    group="H",
    engines=BOTH,
)
def touch_after_allocate(engine: Driver) -> None:
    """Blocks that were hit are held only after new ones were allocated."""
    manager = core(engine)
    pool = manager.block_pool
    late = []

    def touch(original: Any, blocks: Any) -> None:
        late.extend(blocks)

    def allocate_new_blocks(original: Any, *args: Any, **kwargs: Any) -> Any:
        new = original(*args, **kwargs)
        held = list(late)
        late[:] = []
        hold(held)
        return new

    hold = pool.touch
    wrap(pool, "touch", touch)
    wrap(manager.coordinator, "allocate_new_blocks", allocate_new_blocks)


@mutant(
    name="second-hit-block-not-counted",
    mirrors="vllm-project/vllm#10507",
    anomaly="reference-count",
    checker="ownership",
    group="H",
    engines=BOTH,
)
def second_hit_block_not_counted(engine: Driver) -> None:
    """Of the blocks that are hit, the first alone is counted as held."""

    def touch(original: Any, blocks: Any) -> None:
        original(list(blocks)[:1])

    wrap(core(engine).block_pool, "touch", touch)


@mutant(
    name="negative-count-inflates-free",
    mirrors="vLLM's test test_external_computed_blocks_do_not_corrupt_free_pool",
    anomaly="double-free",
    checker="ownership",
    group="H",
    engines=REFERENCE,
    level="scheduler",
)
def negative_count_inflates_free(engine: Driver) -> None:
    """A request that holds more than it needs makes so many blocks free in the pool's own books."""
    manager = core(engine)
    owed = [0]

    def allocate_new_blocks(original: Any, request_id: str, num_tokens: int, *further: Any) -> Any:
        for single in manager.coordinator.single_type_managers:
            owed[0] += max(
                len(single.req_to_blocks[request_id]) - -(-num_tokens // single.block_size), 0
            )
        return original(request_id, num_tokens, *further)

    wrap(manager.coordinator, "allocate_new_blocks", allocate_new_blocks)
    wrap(manager.block_pool, "get_num_free_blocks", lambda original: original() + owed[0])


@mutant(
    name="evictable-hits-not-counted",
    mirrors="vllm-project/vllm#10507",
    anomaly="engine-crashed",
    checker="engine",
    group="H",
    engines=REFERENCE,
)
def evictable_hits_not_counted(engine: Driver) -> None:
    """Cached blocks that are hit count as room for others.

    Forget that cached blocks that are hit leave the free queue, when asking whether there is room.
    """
    for manager in core(engine).coordinator.single_type_managers:
        wrap(manager, "_get_num_evictable_blocks", lambda original, blocks: 0)


@mutant(
    name="refused-admission-keeps-hits",
    mirrors="sgl-project/sglang#16067",
    anomaly="leak",
    checker="ownership",
    group="H",
    engines=BOTH,
)
def refused_admission_keeps_hits(engine: Driver) -> None:
    """A request that is not admitted keeps what it matched.

    Hold what was hit before asking whether there is room, and keep holding it if there is none.
    """
    manager = core(engine)

    def allocate_slots(original: Any, *args: Any, **kwargs: Any) -> Any:
        given = original(*args, **kwargs)
        if given is None and kwargs.get("new_computed_blocks") is not None:
            for blocks in kwargs["new_computed_blocks"].blocks:
                manager.block_pool.touch(blocks)
        return given

    wrap(manager, "allocate_slots", allocate_slots)


@mutant(
    name="partial-hit-written-in-place",
    mirrors="sgl-project/sglang#31833",
    anomaly="aliased-write",
    checker="ownership",
    group="H",
    engines=REFERENCE,
)
def partial_hit_written_in_place(engine: Driver) -> None:
    """A hit that ends inside a block goes on in that block, without a copy."""
    for manager in core(engine).coordinator.single_type_managers:
        wrap(manager, "_has_partial_local_hit", lambda original, *args: False)


@mutant(
    name="computed-count-survives-preemption",
    mirrors="ikawrakow/ik_llama.cpp#1762",
    anomaly="stale-hit",
    checker="safety-law",
    group="E",
    engines=BOTH,
)
def computed_count_survives_preemption(engine: Driver) -> None:
    """A request that lost its blocks goes on where it was.

    Take a request's blocks away, and leave its count of computed tokens as it was.
    """

    def wait_again(original: Any, client: Any) -> None:
        computed = client.request.num_computed_tokens
        original(client)
        client.request.num_computed_tokens = computed

    if hasattr(engine.adapter, "_wait_again"):
        wrap(engine.adapter, "_wait_again", wait_again)


MUTANTS = declared(globals())
