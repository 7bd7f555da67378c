"""Faults in what is published, and when."""

from __future__ import annotations

from copy import copy
from typing import Any

from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import (
    BOTH,
    REFERENCE,
    adapter,
    core,
    groups,
    key_nothing_before,
    last_boundary,
    wrap,
)
from cachewitness.engines.mutant import declared, mutant


@mutant(
    name="chunk-ends-off-the-grid",
    mirrors="vllm-project/vllm#47861",
    anomaly="fabricated-snapshot",
    checker="no-fabricated-snapshots",
    group="A",
    engines=BOTH,
)
def chunk_ends_off_the_grid(engine: Driver) -> None:
    """A chunk may end between boundaries, its state is keyed at the next one.

    Let a prefill chunk end wherever the budget ends; its running state is later keyed as if it
    stood at the boundary.
    """
    adapter(engine).split = None


@mutant(
    name="withdrawn-keys-stay",
    mirrors="vllm-project/vllm#57580, #43569",
    anomaly="uncommitted-hit",
    checker="commit-order",
    group="B",
    engines=REFERENCE,
)
def withdrawn_keys_stay(engine: Driver) -> None:
    """Keys of a request that was withdrawn from its step stay.

    Take a request back out of a step by freeing it, and leave its keys where they are.
    """
    manager = core(engine)

    def withdraw(original: Any, request: Any) -> list[str]:
        manager.free(request)
        return [request.request_id]

    wrap(manager, "withdraw", withdraw)


@mutant(
    name="same-step-state-hit",
    mirrors="vllm-project/vllm#29387",
    anomaly="uncommitted-hit",
    checker="commit-order",
    group="B",
    engines=BOTH,
)
def same_step_state_hit(engine: Driver) -> None:
    """A state keyed in this step is hit in this step."""

    def plant(manager: Any) -> None:
        def get_num_blocks_to_allocate(original: Any, *args: Any, **kwargs: Any) -> Any:
            manager.cached_blocks_this_step.clear()
            return original(*args, **kwargs)

        wrap(manager, "get_num_blocks_to_allocate", get_num_blocks_to_allocate)

    for manager in groups(engine, "Mamba"):
        plant(manager)


@mutant(
    name="state-donated-without-copy",
    mirrors="FlashML-org/FreeToken#287",
    anomaly="state-position-skew",
    checker="safety-law",
    group="H",
    engines=REFERENCE,
)
def state_donated_without_copy(engine: Driver) -> None:
    """A request goes on writing into the state that it published.

    Go on writing into the block whose state was just keyed instead of taking a new one.
    """
    pool = core(engine).block_pool

    def plant(manager: Any) -> None:
        def allocate_new_blocks(original: Any, request_id: str, *args: Any, **kwargs: Any) -> Any:
            table = manager.req_to_blocks[request_id]
            before = len(table)
            new = original(request_id, *args, **kwargs)
            if len(table) > before > 0 and not table[before - 1].is_null and not table[-1].is_null:
                pool.free_blocks([table[-1]])
                table[-1] = table[before - 1]
                pool.touch([table[-1]])
            return new

        wrap(manager, "allocate_new_blocks", allocate_new_blocks)

    for manager in groups(engine, "Mamba"):
        plant(manager)


@mutant(
    name="split-in-attention-units",
    mirrors="vllm-project/vllm#54076",
    anomaly="fabricated-snapshot",
    checker="no-fabricated-snapshots",
    group="A",
    engines=REFERENCE,
)
def split_in_attention_units(engine: Driver) -> None:
    """Chunks end at attention's boundaries, between those of recurrent groups."""
    finest = min(single.block_size for single in core(engine).coordinator.single_type_managers)

    def split(original: Any, request: Any, tokens: int, hit: int) -> int:
        start: int = request.num_computed_tokens + hit
        end = start + tokens
        if end < request.num_tokens and end // finest * finest > start:
            return int(end // finest * finest - start)
        kept: int = original(request, tokens, hit)
        return kept

    if getattr(adapter(engine), "split", None) is not None:
        wrap(adapter(engine), "split", split)


@mutant(
    name="snapshot-keyed-a-block-late",
    mirrors="waybarrios/vllm-mlx#683, JamePeng/llama-cpp-python#59",
    anomaly="state-position-skew",
    checker="safety-law",
    group="A",
    engines=REFERENCE,
)
def snapshot_keyed_a_block_late(engine: Driver) -> None:
    """A state is keyed as the boundary after its own.

    Key each state as the boundary after the one that it stands at.
    """
    pool = core(engine).block_pool
    recurrent = {manager.kv_cache_group_id for manager in groups(engine, "Mamba")}

    def cache_full_blocks(original: Any, request: Any, *args: Any) -> Any:
        group = args[4]
        size = args[3]
        if group not in recurrent:
            return original(request, *args)
        scale = size // pool.hash_block_size
        late = copy(request)
        late.block_hashes = request.block_hashes[scale:] + request.block_hashes[-1:] * scale
        return original(late, *args)

    wrap(pool, "cache_full_blocks", cache_full_blocks)


@mutant(
    name="hashes-in-anothers-units",
    mirrors="ovg-project/kvcached#451",
    anomaly="stale-hit",
    checker="safety-law",
    group="M",
    engines=REFERENCE,
)
def hashes_in_anothers_units(engine: Driver) -> None:
    """A coarse block is keyed by the hash of a fine one.

    Key blocks that have several hashes by their number, as if each had one.
    """
    pool = core(engine).block_pool

    def cache_full_blocks(original: Any, request: Any, *args: Any) -> Any:
        scale = args[3] // pool.hash_block_size
        coarse = copy(request)
        coarse.block_hashes = [key for key in request.block_hashes for _ in range(scale)]
        return original(coarse, *args)

    wrap(pool, "cache_full_blocks", cache_full_blocks)


@mutant(
    name="copies-a-step-late",
    mirrors="sgl-project/sglang#24954",
    anomaly="state-position-skew",
    checker="safety-law",
    group="B",
    engines=REFERENCE,
    level="scheduler",
)
def copies_a_step_late(engine: Driver) -> None:
    """Copies that a step needs are made before the next one."""
    late: list[Any] = []

    def begin_step(original: Any, *step: Any) -> None:
        original(*step)
        begin: Any = engine.events[-1]
        begin.copies, late[:] = list(late), list(begin.copies)

    wrap(engine, "_begin", begin_step)


@mutant(
    name="answers-not-keyed",
    mirrors="vllm-project/vllm#52419 (most of a tail is not registered); raullenchai/Rapid-MLX#214",
    anomaly="key-owed",
    checker="keys",
    group="N",
    engines=BOTH,
)
def answers_not_keyed(engine: Driver) -> None:
    """Blocks with generated tokens get no key, so each turn computes the last answer again."""

    def cache_blocks(original: Any, request: Any, num_computed_tokens: int) -> None:
        original(request, min(num_computed_tokens, request.num_prompt_tokens))

    wrap(core(engine).coordinator, "cache_blocks", cache_blocks)


@mutant(
    name="chunk-states-not-keyed",
    mirrors="vllm-project/vllm#45845 (sparse states, here where all boundaries are declared)",
    anomaly="key-owed",
    checker="keys",
    group="N",
    engines=REFERENCE,
)
def chunk_states_not_keyed(engine: Driver) -> None:
    """Of a prompt that is computed in chunks the state in front of its end alone gets a key, and
    those behind the other chunks go without.
    """
    key_nothing_before(engine, "Mamba", last_boundary)


@mutant(
    name="window-blocks-keyed-with-the-prompt",
    mirrors="vllm-project/vllm#44082 (of a window what is needed for a hit is not kept)",
    anomaly="key-owed",
    checker="keys",
    group="N",
    engines=REFERENCE,
)
def window_blocks_keyed_with_the_prompt(engine: Driver) -> None:
    """A window's blocks get their keys when the prompt is complete, and those that it has left by
    then never do.
    """
    key_nothing_before(engine, "SlidingWindow", lambda manager, request: request.num_prompt_tokens)


@mutant(
    name="second-of-two-not-keyed",
    mirrors="sgl-project/sglang#34870 (what is inserted is taken for a duplicate)",
    anomaly="key-owed",
    checker="keys",
    group="N",
    engines=REFERENCE,
)
def second_of_two_not_keyed(engine: Driver) -> None:
    """A block whose prefix has a key gets none, and stays without when the first block goes."""
    pool = core(engine).block_pool

    def insert(original: Any, request_id: str, key: Any, block: Any, num_tokens: int) -> None:
        first = pool.cached_block_hash_to_block.get_one_block(key)
        if first is None or first is block:
            original(request_id, key, block, num_tokens)

    wrap(pool, "_insert", insert)


MUTANTS = declared(globals())
