"""Faults in what is published, and when."""

from __future__ import annotations

from copy import copy
from typing import Any

from harness.engines.fault_tools import BOTH, REFERENCE, core, groups, wrap
from harness.engines.manager_height import ManagerHeight
from harness.engines.mutant import Mutant
from harness.engines.scheduler_height import SchedulerHeight


def null_block_published(engine: ManagerHeight) -> None:
    """Forget that null columns are skipped when keys are given out."""
    pool = core(engine).block_pool

    def cache_blocks(original: Any, *args: Any, **kwargs: Any) -> Any:
        pool.null_block.is_null = False
        try:
            return original(*args, **kwargs)
        finally:
            pool.null_block.is_null = True

    for manager in groups(engine, "Mamba"):
        wrap(manager, "cache_blocks", cache_blocks)


def skipped_boundary_published(engine: ManagerHeight) -> None:
    """Key the state at the end of a chunk as every boundary that the chunk passed."""
    pool = core(engine).block_pool

    def plant(manager: Any) -> None:
        def cache_blocks(original: Any, request: Any, num_tokens: int, *args: Any, **kwargs: Any) -> Any:
            done = original(request, num_tokens, *args, **kwargs)
            table = manager.req_to_blocks[request.request_id]
            scale = manager.block_size // pool.hash_block_size
            for column, block in enumerate(table[:-1]):
                nearest = next((later for later in table[column + 1 :] if not later.is_null), None)
                if block.is_null and nearest is not None and nearest.block_hash is not None:
                    length = (column + 1) * manager.block_size
                    key = request.block_hashes[(column + 1) * scale - 1] + nearest.block_hash[-4:]
                    pool._insert(request.request_id, key, nearest, length)
            return done

        wrap(manager, "cache_blocks", cache_blocks)

    for manager in groups(engine, "Mamba"):
        plant(manager)


def chunk_ends_off_the_grid(engine: ManagerHeight) -> None:
    """Let a prefill chunk end wherever the budget ends; its running state is later keyed as if it stood at the boundary."""
    engine.split = None


def tail_published_early(engine: ManagerHeight) -> None:
    """Key the block in which a chunk ends although the chunk does not fill it."""
    manager = core(engine)
    size = manager.coordinator.single_type_managers[0].block_size

    def cache_blocks(original: Any, request: Any, num_computed_tokens: int) -> None:
        original(request, min(num_computed_tokens + size - 1, request.num_tokens))

    wrap(manager, "cache_blocks", cache_blocks)


def withdrawn_keys_stay(engine: ManagerHeight) -> None:
    """Take a request back out of a step by freeing it, and leave its keys where they are."""
    manager = core(engine)

    def withdraw(original: Any, request: Any) -> list[str]:
        manager.free(request)
        return [request.request_id]

    wrap(manager, "withdraw", withdraw)


def same_step_state_hit(engine: ManagerHeight) -> None:
    """Let a state that was keyed in this very step be hit."""

    def plant(manager: Any) -> None:
        def get_num_blocks_to_allocate(original: Any, *args: Any, **kwargs: Any) -> Any:
            manager.cached_blocks_this_step.clear()
            return original(*args, **kwargs)

        wrap(manager, "get_num_blocks_to_allocate", get_num_blocks_to_allocate)

    for manager in groups(engine, "Mamba"):
        plant(manager)


def state_donated_without_copy(engine: ManagerHeight) -> None:
    """Go on writing into the block whose state was just keyed instead of taking a new one."""
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


def split_in_attention_units(engine: ManagerHeight) -> None:
    """Cut chunks at block boundaries of attention, where the blocks of recurrent groups are larger."""
    finest = min(single.block_size for single in core(engine).coordinator.single_type_managers)

    def split(original: Any, request: Any, tokens: int, hit: int) -> int:
        start: int = request.num_computed_tokens + hit
        end = start + tokens
        if end < request.num_tokens and end // finest * finest > start:
            return int(end // finest * finest - start)
        kept: int = original(request, tokens, hit)
        return kept

    if getattr(engine, "split", None) is not None:
        wrap(engine, "split", split)


def snapshot_keyed_a_block_late(engine: ManagerHeight) -> None:
    """Key each state as the boundary after the one that it stands at."""
    pool = core(engine).block_pool
    recurrent = {manager.kv_cache_group_id for manager in groups(engine, "Mamba")}

    def cache_full_blocks(original: Any, request: Any, *args: Any) -> Any:
        group, size = args[4], args[3]
        if group not in recurrent:
            return original(request, *args)
        scale, late = size // pool.hash_block_size, copy(request)
        late.block_hashes = request.block_hashes[scale:] + request.block_hashes[-1:] * scale
        return original(late, *args)

    wrap(pool, "cache_full_blocks", cache_full_blocks)


def hashes_in_anothers_units(engine: ManagerHeight) -> None:
    """Key blocks that have several hashes by their number, as if each had one."""
    pool = core(engine).block_pool

    def cache_full_blocks(original: Any, request: Any, *args: Any) -> Any:
        scale, coarse = args[3] // pool.hash_block_size, copy(request)
        coarse.block_hashes = [key for key in request.block_hashes for _ in range(scale)]
        return original(coarse, *args)

    wrap(pool, "cache_full_blocks", cache_full_blocks)


def copies_a_step_late(engine: SchedulerHeight) -> None:
    """Make the copies of a step before the next one, which is when somebody gets to it."""
    late: list[Any] = []

    def begin_step(original: Any, op: Any) -> None:
        original(op)
        begin: Any = engine.manager.events[-1]
        begin.copies, late[:] = list(late), list(begin.copies)

    wrap(engine, "_begin", begin_step)


MUTANTS = (
    Mutant(
        "null-block-published",
        "null columns of a recurrent group are keyed too",
        "vllm-project/vllm#53084",
        "fabricated-snapshot",
        "no-fabricated-snapshots",
        null_block_published,
        REFERENCE,
        group="A",
    ),
    Mutant(
        "skipped-boundary-published",
        "the state at a chunk's end is keyed as every boundary that the chunk skipped",
        "ModelEngine-Group/unified-cache-management#1130",
        "fabricated-snapshot",
        "no-fabricated-snapshots",
        skipped_boundary_published,
        REFERENCE,
        group="A",
    ),
    Mutant(
        "chunk-ends-off-the-grid",
        "a chunk may end between boundaries, its state is keyed at the next one",
        "vllm-project/vllm#47861",
        "fabricated-snapshot",
        "no-fabricated-snapshots",
        chunk_ends_off_the_grid,
        BOTH,
        group="A",
    ),
    Mutant(
        "tail-published-early",
        "the last block of a chunk is keyed before it is full",
        "vllm-project/vllm#43569",
        "partial-commit",
        "commit-order",
        tail_published_early,
        REFERENCE,
        group="B",
    ),
    Mutant(
        "withdrawn-keys-stay",
        "keys of a request that was withdrawn from its step stay",
        "vllm-project/vllm#57580, #43569",
        "uncommitted-hit",
        "commit-order",
        withdrawn_keys_stay,
        REFERENCE,
        group="B",
    ),
    Mutant(
        "same-step-state-hit",
        "a state keyed in this step is hit in this step",
        "vllm-project/vllm#29387",
        "uncommitted-hit",
        "commit-order",
        same_step_state_hit,
        BOTH,
        group="B",
    ),
    Mutant(
        "state-donated-without-copy",
        "a request goes on writing into the state that it published",
        "FlashML-org/FreeToken#287",
        "state-position-skew",
        "safety-law",
        state_donated_without_copy,
        REFERENCE,
        group="H",
    ),
    Mutant(
        "split-in-attention-units",
        "chunks end at attention's boundaries, between those of recurrent groups",
        "vllm-project/vllm#54076",
        "fabricated-snapshot",
        "no-fabricated-snapshots",
        split_in_attention_units,
        REFERENCE,
        group="A",
    ),
    Mutant(
        "snapshot-keyed-a-block-late",
        "a state is keyed as the boundary after its own",
        "waybarrios/vllm-mlx#683, JamePeng/llama-cpp-python#59",
        "state-position-skew",
        "safety-law",
        snapshot_keyed_a_block_late,
        REFERENCE,
        group="A",
    ),
    Mutant(
        "hashes-in-anothers-units",
        "a coarse block is keyed by the hash of a fine one",
        "ovg-project/kvcached#451",
        "stale-hit",
        "safety-law",
        hashes_in_anothers_units,
        REFERENCE,
        group="M",
    ),
    Mutant(
        "copies-a-step-late",
        "copies that a step needs are made before the next one",
        "sgl-project/sglang#24954",
        "state-position-skew",
        "safety-law",
        copies_a_step_late,
        REFERENCE,
        "scheduler",
        group="B",
    ),
)
