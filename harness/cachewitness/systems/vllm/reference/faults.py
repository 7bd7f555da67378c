"""The faults in vLLM's policy that the self-test of `fuzz` and `campaign` plants, and those that
the documentation shows.

All others are in `cachewitness_faults.vllm`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from cachewitness.engines.driver import Driver
from cachewitness.engines.fault_tools import BOTH, REFERENCE, adapter, bound, core, groups, wrap
from cachewitness.engines.mutant import declared, mutant


@mutant(
    name="null-block-published",
    mirrors="vllm-project/vllm#53084",
    anomaly="fabricated-snapshot",
    checker="no-fabricated-snapshots",
    group="A",
    engines=REFERENCE,
)
def null_block_published(engine: Driver) -> None:
    """Null columns of a recurrent group are keyed too.

    Forget that null columns are skipped when keys are given out.
    """
    pool = core(engine).block_pool

    def cache_blocks(original: Any, *args: Any, **kwargs: Any) -> Any:
        pool.null_block.is_null = False
        try:
            return original(*args, **kwargs)
        finally:
            pool.null_block.is_null = True

    for manager in groups(engine, "Mamba"):
        wrap(manager, "cache_blocks", cache_blocks)


@mutant(
    name="skipped-boundary-published",
    mirrors="ModelEngine-Group/unified-cache-management#1130",
    anomaly="fabricated-snapshot",
    checker="no-fabricated-snapshots",
    group="A",
    engines=REFERENCE,
)
def skipped_boundary_published(engine: Driver) -> None:
    """The state at a chunk's end is keyed as every boundary that the chunk skipped."""
    pool = core(engine).block_pool

    def plant(manager: Any) -> None:
        def cache_blocks(
            original: Any, request: Any, num_tokens: int, *args: Any, **kwargs: Any
        ) -> Any:
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


@mutant(
    name="tail-published-early",
    mirrors="vllm-project/vllm#43569",
    anomaly="partial-commit",
    checker="commit-order",
    group="B",
    engines=REFERENCE,
)
def tail_published_early(engine: Driver) -> None:
    """The last block of a chunk is keyed before it is full.

    Key the block in which a chunk ends although the chunk does not fill it.
    """
    manager = core(engine)
    size = manager.coordinator.single_type_managers[0].block_size

    def cache_blocks(original: Any, request: Any, num_computed_tokens: int) -> None:
        original(request, min(num_computed_tokens + size - 1, request.num_tokens))

    wrap(manager, "cache_blocks", cache_blocks)


@mutant(
    name="replay-boundary-masked",
    mirrors="vllm-project/vllm#53504",
    anomaly="lost-replay-boundary",
    checker="replay-boundary-retained",
    group="N",
    engines=BOTH,
)
def replay_boundary_masked(engine: Driver) -> None:
    """Retention drops the boundary at which an exact replay resumes.

    Ask for the interval's boundaries alone.
    """

    def reachable_block_mask(original: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = bound(original, args, kwargs)
        for name in ("reachable", "reachable_boundaries"):
            if name in arguments:
                arguments[name] = ()
        return original(**arguments)

    for manager in groups(engine, "Mamba") + groups(engine, "SlidingWindow"):
        wrap(manager, "reachable_block_mask", reachable_block_mask)


@mutant(
    name="denser-than-interval",
    mirrors="vllm-project/vllm#45845",
    anomaly="over-dense-retention",
    checker="interval-sparsity",
    group="N",
    engines=BOTH,
)
def denser_than_interval(engine: Driver) -> None:
    """Snapshots are kept at every boundary, whatever the interval."""

    def reachable_block_mask(original: Any, *args: Any, **kwargs: Any) -> None:
        return None

    for manager in groups(engine, "Mamba") + groups(engine, "SlidingWindow"):
        wrap(manager, "reachable_block_mask", reachable_block_mask)


@mutant(
    name="hit-is-maximum-over-groups",
    mirrors="LMCache/LMCache#4247, vllm-project/vllm#43090",
    anomaly="group-misalignment",
    checker="safety-law",
    group="C",
    engines=BOTH,
)
def hit_is_maximum_over_groups(engine: Driver) -> None:
    """The longest hit of any group counts for all of them.

    Report the longest hit of any group and let the others start there with null columns.
    """
    manager = core(engine)
    pool = manager.block_pool
    coordinator = manager.coordinator

    def find_longest_cache_hit(original: Any, block_hashes: Any, max_length: int) -> Any:
        blocks, hit, further = original(block_hashes, max_length)
        if not further:
            return blocks, hit, further
        longest = hit + further
        columns = []
        for group, single in enumerate(coordinator.single_type_managers):
            scale = single.block_size // pool.hash_block_size
            found = []
            for column in range(longest // single.block_size):
                cached = pool.get_cached_block(block_hashes[(column + 1) * scale - 1], [group])
                found.append(
                    cached[0]
                    if cached and type(single).__name__ == "FullAttentionManager"
                    else pool.null_block
                )
            columns.append(found)
        return tuple(columns), longest, 0

    wrap(coordinator, "find_longest_cache_hit", find_longest_cache_hit)


@mutant(
    name="lookup-one-unit-short",
    mirrors="vllm-project/vllm#43650",
    anomaly="lost-hit",
    checker="reuse-floor",
    group="N",
    engines=BOTH,
)
def lookup_one_unit_short(engine: Driver) -> None:
    """A look-up stops one unit too early.

    Look for a hit one unit below what may be hit, to be on the safe side.
    """
    coordinator = core(engine).coordinator
    unit = max(single.block_size for single in coordinator.single_type_managers)

    def find_longest_cache_hit(original: Any, block_hashes: Any, max_length: int) -> Any:
        return original(block_hashes, max(max_length - unit, 0))

    wrap(coordinator, "find_longest_cache_hit", find_longest_cache_hit)


@mutant(
    name="window-looked-up-short",
    mirrors="sgl-project/sglang#34870",
    anomaly="window-hole",
    checker="window-liveness",
    group="G",
    engines=BOTH,
)
def window_looked_up_short(engine: Driver) -> None:
    """A hit is content with one block less than the window reaches into."""
    pool = core(engine).block_pool
    coordinator = core(engine).coordinator
    windows = [
        group
        for group, single in enumerate(coordinator.single_type_managers)
        if single in groups(engine, "SlidingWindow")
    ]

    def find_longest_cache_hit(original: Any, *args: Any, **kwargs: Any) -> Any:
        answer = original(*args, **kwargs)
        for group in windows:
            held = [index for index, block in enumerate(answer[0][group]) if not block.is_null]
            if len(held) > 1:
                answer[0][group][held[0]] = pool.null_block
        return answer

    wrap(coordinator, "find_longest_cache_hit", find_longest_cache_hit)


@mutant(
    name="last-token-hit",
    mirrors="JamePeng/llama-cpp-python#178",
    anomaly="nothing-to-compute",
    checker="safety-law",
    group="P",
    engines=REFERENCE,
)
def last_token_hit(engine: Driver) -> None:
    """A prompt that is cached whole leaves no token to compute.

    Let the last token be hit as well.
    """

    def find_longest_cache_hit(original: Any, block_hashes: Any, max_length: int) -> Any:
        return original(block_hashes, max_length + 1)

    wrap(core(engine).coordinator, "find_longest_cache_hit", find_longest_cache_hit)


@mutant(
    name="reset-keeps-keys",
    mirrors="vllm-project/vllm#57727",
    anomaly="stale-hit",
    checker="safety-law",
    group="L",
    engines=BOTH,
)
def reset_keeps_keys(engine: Driver) -> None:
    """A reset reports success and forgets nothing."""
    wrap(core(engine), "reset_prefix_cache", lambda original: True)


@mutant(
    name="window-freed-early",
    mirrors="sgl-project/sglang#8649",
    anomaly="premature-release",
    checker="window-liveness",
    group="G",
    engines=BOTH,
)
def window_freed_early(engine: Driver) -> None:
    """A window block is given back one token early."""

    def get_num_skipped_tokens(original: Any, num_computed_tokens: int) -> int:
        skipped: int = original(num_computed_tokens)
        return skipped + 1 if skipped > 0 else skipped

    for manager in groups(engine, "SlidingWindow"):
        wrap(manager, "get_num_skipped_tokens", get_num_skipped_tokens)


@mutant(
    name="shared-block-freed-twice",
    mirrors="vllm-project/vllm#42571",
    anomaly="double-free",
    checker="ownership",
    group="H",
    engines=BOTH,
)
def shared_block_freed_twice(engine: Driver) -> None:
    """A block that two requests share is given back twice by one of them."""

    def free_blocks(original: Any, ordered_blocks: Any) -> None:
        blocks = list(ordered_blocks)
        shared = [block for block in blocks if not block.is_null and block.ref_cnt > 1]
        original(blocks + shared[:1])

    wrap(core(engine).block_pool, "free_blocks", free_blocks)


@mutant(
    name="block-leaked",
    mirrors="sgl-project/sglang#21404",
    anomaly="leak",
    checker="ownership",
    group="H",
    engines=BOTH,
)
def block_leaked(engine: Driver) -> None:
    """One block of a table is never given back.

    Forget the first block of a long table when it is given back.
    """

    def free_blocks(original: Any, ordered_blocks: Any) -> None:
        blocks = list(ordered_blocks)
        original(blocks[:-1] if len(blocks) > 2 else blocks)

    wrap(core(engine).block_pool, "free_blocks", free_blocks)


@mutant(
    name="stale-table-rows",
    mirrors="vllm-project/vllm#42273",
    anomaly="use-after-free",
    checker="safety-law",
    group="G",
    engines=BOTH,
)
def stale_table_rows(engine: Driver) -> None:
    """The worker's row of a request is not rewritten when it comes back.

    Let the worker's rows only ever grow, so that a request that comes back reads through its old
    ones.
    """
    rows: dict[str, list[list[int]]] = {}

    def tables(original: Any, r: str) -> list[list[int]]:
        now = original(r)
        old = rows.get(r, [[] for _ in now])
        rows[r] = [row + new[len(row) :] for row, new in zip(old, now, strict=True)]
        return rows[r]

    wrap(engine, "tables", tables)


@mutant(
    name="image-left-out",
    mirrors="ROCm/ATOM#1358",
    anomaly="cross-identity-hit",
    checker="identity",
    group="I",
    engines=REFERENCE,
)
def image_left_out(engine: Driver) -> None:
    """Multimodal content is not part of the key."""
    wrap(
        adapter(engine),
        "new_request",
        lambda original, op, tokens: original(msgspec.structs.replace(op, media=[]), tokens),
    )


@mutant(
    name="drafts-published",
    mirrors="vllm-project/vllm#43569",
    anomaly="partial-commit",
    checker="commit-order",
    group="D",
    engines=REFERENCE,
    level="scheduler",
)
def drafts_published(engine: Driver) -> None:
    """Blocks of drafts are keyed before the drafts are verified.

    Key blocks that drafts will fill before anybody knows whether they stand.
    """
    manager = core(engine)

    def allocate_slots(
        original: Any, request: Any, num_new_tokens: int, *args: Any, **kwargs: Any
    ) -> Any:
        given = original(request, num_new_tokens, *args, **kwargs)
        if given is not None and request.spec_token_ids:
            known = request.num_tokens
            hashed = len(request.block_hashes)
            request.append_output_token_ids(request.spec_token_ids)
            manager.cache_blocks(request, request.num_tokens)
            del request.all_token_ids[known:], request.block_hashes[hashed:]
        return given

    wrap(manager, "allocate_slots", allocate_slots)


@mutant(
    name="freed-while-in-flight",
    mirrors="vllm-project/vllm#47282",
    anomaly="use-after-free",
    checker="safety-law",
    group="D",
    engines=REFERENCE,
    level="scheduler",
)
def freed_while_in_flight(engine: Driver) -> None:
    """Pages that a step in flight reads are given back.

    Give back what the next query does not read, although a step in flight still does.
    """

    def allocate_slots(original: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        in_flight, request.num_in_flight_tokens = request.num_in_flight_tokens, 0
        try:
            return original(request, *args, **kwargs)
        finally:
            request.num_in_flight_tokens = in_flight

    wrap(core(engine), "allocate_slots", allocate_slots)


@mutant(
    name="stored-before-the-step",
    mirrors="vllm-project/vllm#45704",
    anomaly="partial-commit",
    checker="commit-order",
    group="K",
    engines=REFERENCE,
    level="scheduler",
)
def stored_before_the_step(engine: Driver) -> None:
    """A block is stored before the step that fills it has run."""

    def begin_step(original: Any, *step: Any) -> None:
        original(*step)
        begin: Any = engine.events[-1]
        begin.copies, begin.stores = begin.copies + begin.stores, []

    wrap(engine, "_begin", begin_step)


MUTANTS = declared(globals())
