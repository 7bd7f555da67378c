"""What the change that gave Mamba groups a retention interval says of itself, statement by
statement.

The change is vLLM's PR 45845 (release 0.24); what older tests say of it already is not repeated
here (`docs/reference/coverage.md` names them). Blocks have 16 tokens, prompts 200, so states can
lie at 16, 32, ..., 192, and a replay resumes at 192.
"""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness_reference.primitives import Position
from cachewitness_reference.vllm.kv_cache_manager import KVCacheManager
from cachewitness_reference.vllm.request import Request
from cachewitness_reference.vllm.retention import mamba_mask, sliding_window_mask
from cachewitness_reference.vllm.scheduler import Scheduler
from cachewitness_reference.vllm_extended.assemble import get_kv_cache_manager
from cachewitness_reference.vllm_extended.config import build

FULL = {"kind": "full", "block_size": 16}
MAMBA = {"kind": "recurrent", "block_size": 16}
PROMPT = list(range(1000, 1200))
STATES = 1


class Seven:
    """Generates 7 and guesses nothing."""

    def draft(self, request: Request, count: int) -> list[int]:
        return []

    def sample(self, request: Request, drafts: list[int]) -> list[int]:
        return [7]


def scheduler(
    interval: int | None, blocks: int = 200, chunk: int = 16, **options: Any
) -> Scheduler:
    """Return a scheduler of the release that has the change, prefilling in chunks of so many
    tokens.
    """
    given = {
        "release": "0.24",
        "retention_interval": interval,
        "max_num_batched_tokens": chunk,
        **options,
    }
    config = build([FULL, MAMBA], blocks, given)
    return Scheduler(config, get_kv_cache_manager(config), Seven())


def serve(
    engine: Scheduler, name: str, tokens: list[int], generate: int = 1, *, finish: bool = True
) -> Request:
    """Run one request until it has generated so many tokens."""
    request = Request(name, tokens, engine.config.hash_block_size)
    engine.add_request(request)
    while request.num_output_tokens < generate:
        engine.update_from_output(engine.schedule())
    if finish:
        engine.finish_requests([name])
    return request


def hit(engine: Scheduler, tokens: list[int]) -> int:
    """Return how long a prefix a new request would find."""
    return engine.kv_cache_manager.get_computed_blocks(Request("probe", tokens, 16))[1]


def kept(engine: Scheduler, group: int = STATES) -> list[int]:
    """Return the lengths at which a group can be hit, once for each page."""
    blocks = engine.kv_cache_manager.block_pool.blocks
    return sorted(
        b.block_hash_num_tokens or 0 for b in blocks if b.block_hash and b.block_hash[-1] == group
    )


def test_dense_snapshots_of_several_pages_evict_attention_and_sparse_ones_do_not() -> None:
    """Ten blocks of a prompt with a snapshot of four pages each take 50 of 60 pages; a second
    prompt evicts the first.

    At an interval of 64 there are three snapshots, at 64, 128 and 160: 22 pages, and both prompts
    stay. Dense, the snapshots are 80 % of what is cached.
    """
    found = {}
    for interval in (None, 64):
        engine = scheduler(interval, blocks=61, pages_per_snapshot=4)
        serve(engine, "first", PROMPT[:161])
        assert kept(engine, 0) == list(range(16, 161, 16)), "attention is never thinned out"
        pages = len(kept(engine))
        assert (interval, pages / (pages + 10)) in ((None, 0.8), (64, 12 / 22))
        serve(engine, "second", list(range(5000, 5161)))
        found[interval] = hit(engine, [*PROMPT[:161], 1])
    assert found[64] == 160 > found[None]


@pytest.mark.parametrize("interval", [32, 64, 128])
def test_a_hit_is_at_most_an_interval_coarser(interval: int) -> None:
    """Wherever a sibling parts, dense retention resumes it at the last block, and sparse at the
    last kept boundary before.
    """
    dense = scheduler(None)
    sparse = scheduler(interval)
    for engine in (dense, sparse):
        serve(engine, "cold", PROMPT)
    boundaries = [0, *range(interval, 200, interval), 192]
    for parts in range(1, 200):
        tokens = [*PROMPT[:parts], *range(50)]
        assert hit(dense, tokens) == parts // 16 * 16
        assert hit(sparse, tokens) == max(b for b in boundaries if b <= parts)
        assert hit(dense, tokens) - hit(sparse, tokens) < interval


def test_intermediate_snapshots_are_free_for_reuse() -> None:
    """Dense, twelve attention blocks and twelve states keep their pages; at 64 nine states do
    not, nor do their pages.
    """
    free = {}
    for interval in (None, 64):
        engine = scheduler(interval)
        serve(engine, "cold", PROMPT)
        free[interval] = sum(
            1 for b in engine.kv_cache_manager.block_pool.blocks if b.block_hash is None
        )
    assert free[64] - free[None] == len(range(16, 193, 16)) - len([64, 128, 192])


@pytest.mark.parametrize(
    ("interval", "expected"), [(None, [96, 192, 208, 224]), (32, [96, 192, 224])]
)
def test_prefill_leaves_a_state_per_chunk_and_decoding_one_per_block(
    interval: int | None, expected: list[int]
) -> None:
    """In chunks of six blocks a prompt of 192 tokens leaves two states; generating 33 tokens
    more passes 208 and 224.
    """
    engine = scheduler(interval, chunk=96)
    serve(engine, "cold", PROMPT[:193], generate=33)
    assert kept(engine) == expected


def test_blocks_without_a_state_in_the_range_to_be_cached_are_passed_over() -> None:
    """Chunks end at 96 and 192; of 64, 128 and 192, which the interval asks for, only 192 has a
    state.
    """
    engine = scheduler(64, chunk=96)
    serve(engine, "cold", PROMPT)
    assert kept(engine) == [192]
    assert hit(engine, [*PROMPT[:150], 1]) == 0


def test_a_replay_boundary_without_a_state_is_inert() -> None:
    """Computed in one piece to its end, a prompt has no state at 192; keeping that boundary keys
    nothing, and nothing hits.
    """
    config = build([FULL, MAMBA], 60, {"release": "0.24", "retention_interval": 0})
    manager = get_kv_cache_manager(config)
    manager.new_step_starts()
    assert manager.allocate_slots(Request("cold", PROMPT, 16), 200) is not None
    manager.new_step_starts()
    assert manager.get_computed_blocks(Request("replay", PROMPT, 16))[1] == 0
    assert not any(b.block_hash and b.block_hash[-1] == STATES for b in manager.block_pool.blocks)


def test_the_live_footprint_stays_at_two_blocks_while_the_cached_one_grows_with_every_block() -> (
    None
):
    """Over 80 generated tokens the request holds two states at most, and five more are cached."""
    engine = scheduler(None)
    request = serve(engine, "cold", PROMPT, finish=False)
    before = len(kept(engine))
    manager = engine.kv_cache_manager
    assert isinstance(manager, KVCacheManager)
    states = manager.coordinator.single_type_managers[STATES]
    for _ in range(80):
        engine.update_from_output(engine.schedule())
        held = states.req_to_blocks["cold"]
        assert sum(not block.is_null for block in held) <= 2
    assert request.num_output_tokens == 81
    assert len(kept(engine)) - before == 80 // 16


@pytest.mark.parametrize("length", [17, 32, 33, 63, 64, 65, 128, 129, 191, 192, 193, 200])
@pytest.mark.parametrize("interval", [0, 32, 64, 128])
def test_an_exact_replay_resumes_at_the_latest_boundary_below_its_last_token(
    interval: int, length: int
) -> None:
    """Whatever the interval: a look-up is capped one token short of the prompt."""
    engine = scheduler(interval)
    serve(engine, "cold", PROMPT[:length])
    assert hit(engine, PROMPT[:length]) == (length - 1) // 16 * 16


@pytest.mark.parametrize("interval", [0, 32, 48, 64])
def test_states_are_thinned_out_as_windows_of_one_block_are(interval: int) -> None:
    """The mask of a snapshot is that of a window that needs one block, over any range."""
    for start in range(8):
        for reachable in ([], [Position(150)], [Position(31), Position(199)]):
            columns = range(start, 14)
            states = mamba_mask(
                columns, block_size=16, alignment=16, interval=interval, reachable=reachable
            )
            window = sliding_window_mask(
                columns,
                block_size=16,
                contiguous=1,
                alignment=16,
                use_eagle=False,
                interval=interval,
                reachable=reachable,
            )
            assert states == window
