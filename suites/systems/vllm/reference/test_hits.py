"""What counts as a hit: over groups, alignments, identities, inside blocks, and within one step."""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness_reference.primitives import GENESIS, chain
from cachewitness_reference.vllm.config import build
from cachewitness_reference.vllm.kv_cache_manager import KVCacheBlocks, KVCacheManager
from cachewitness_reference.vllm.request import MultiModalFeature, Request, RequestStatus

FULL = {"kind": "full", "block_size": 16}
MAMBA = {"kind": "recurrent", "block_size": 16}
TOKENS = list(range(100, 300))


def manager(groups: list[dict[str, Any]], num_blocks: int = 100, **options: Any) -> KVCacheManager:
    return KVCacheManager(build(groups, num_blocks, {"retention_interval": None, **options}))


def request(m: KVCacheManager, name: str, tokens: list[int], **identity: Any) -> Request:
    return Request(name, tokens, m.kv_cache_config.hash_block_size, **identity)


def compute(m: KVCacheManager, r: Request, *chunk_ends: int) -> int:
    """Run a request up to each of these positions, one step each; return its hit."""
    hit = 0
    for number, end in enumerate(chunk_ends):
        m.new_step_starts()
        if number == 0:
            blocks, hit, r.shared_prefix_boundary = m.get_computed_blocks(r)
            assert m.allocate_slots(r, end - hit, hit, blocks) is not None
        else:
            assert m.allocate_slots(r, end - r.num_computed_tokens) is not None
        r.num_computed_tokens = end
        r.status = RequestStatus.RUNNING
    return hit


def hit_of(m: KVCacheManager, tokens: list[int], **identity: Any) -> int:
    m.new_step_starts()
    return m.get_computed_blocks(request(m, "probe", tokens, **identity))[1]


def test_the_last_token_is_never_hit() -> None:
    m = manager([FULL])
    compute(m, request(m, "r", TOKENS[:64]), 64)
    assert hit_of(m, TOKENS[:64]) == 48
    assert hit_of(m, TOKENS[:65]) == 64


def test_a_lookup_changes_nothing() -> None:
    m = manager([FULL, MAMBA])
    r = request(m, "r", TOKENS[:64])
    compute(m, r, 16, 32, 48, 64)
    pool = m.block_pool
    before = (
        [(block.ref_cnt, block.block_hash) for block in pool.blocks],
        list(pool.free_block_queue),
    )
    hit_of(m, TOKENS)
    assert (
        [(block.ref_cnt, block.block_hash) for block in pool.blocks],
        list(pool.free_block_queue),
    ) == before


def test_a_hybrid_hit_ends_where_a_state_was_written() -> None:
    m = manager([FULL, MAMBA])
    compute(m, request(m, "r", TOKENS[:90]), 32, 80, 90)
    blocks, hit, shared_prefix_boundary = m.get_computed_blocks(
        request(m, "s", TOKENS[:70] + [1] * 20)
    )
    assert (hit, shared_prefix_boundary) == (
        32,
        64,
    ), "attention has 64, and there is no state at 64"
    assert [len(group) for group in blocks.blocks] == [2, 2]
    assert blocks.blocks[1][0].is_null and not blocks.blocks[1][1].is_null


def test_columns_between_chunk_ends_are_null_and_have_no_key() -> None:
    m = manager([FULL, MAMBA])
    r = request(m, "r", TOKENS[:96])
    compute(m, r, 48, 96)
    table = m.coordinator.single_type_managers[1].req_to_blocks["r"]
    assert [block.is_null for block in table] == [True, True, False, True, True, False]
    assert [block.block_hash_num_tokens for block in table if not block.is_null] == [48, 96]


def test_the_state_before_the_last_is_given_back_when_the_next_is_written() -> None:
    m = manager([FULL, MAMBA])
    r = request(m, "r", TOKENS[:96])
    compute(m, r, 16, 32, 48, 64, 80)
    table = m.coordinator.single_type_managers[1].req_to_blocks["r"]
    assert [column for column, block in enumerate(table) if not block.is_null] == [3, 4]
    assert hit_of(m, TOKENS[:40]) == 32, "what was given back is cached"


def test_hits_of_groups_with_unequal_blocks_are_multiples_of_their_lcm() -> None:
    groups = [
        {"kind": "full", "block_size": 24},
        {"kind": "sliding", "block_size": 16, "window": 16},
    ]
    m = manager(groups)
    compute(m, request(m, "r", TOKENS[:150]), 150)
    assert hit_of(m, TOKENS[:150]) == 144
    assert hit_of(m, TOKENS[:140]) == 96


@pytest.mark.parametrize(("window", "columns"), [(2, 1), (17, 1), (18, 2), (33, 2), (34, 3)])
def test_a_window_hit_needs_the_blocks_of_its_window_and_no_others(
    window: int, columns: int
) -> None:
    """A query that counts itself reads window - 1 earlier tokens."""
    m = manager([FULL, {"kind": "sliding", "block_size": 16, "window": window}])
    compute(m, request(m, "r", TOKENS[:97]), 97)
    m.new_step_starts()
    blocks, hit, _ = m.get_computed_blocks(request(m, "s", TOKENS[:97]))
    assert hit == 96
    assert [block.is_null for block in blocks.blocks[1]] == [True] * (6 - columns) + [
        False
    ] * columns


def test_attention_may_be_shared_within_a_step_and_a_state_may_not() -> None:
    for groups, admitted in (([FULL], True), ([FULL, MAMBA], False)):
        m = manager(groups)
        m.new_step_starts()
        assert m.allocate_slots(request(m, "r", TOKENS[:32]), 32) is not None
        second = request(m, "s", TOKENS[:33])
        blocks, hit, _ = m.get_computed_blocks(second)
        assert hit == 32
        assert (m.allocate_slots(second, 1, hit, blocks) is not None) is admitted
        if not admitted:
            m.new_step_starts()
            assert m.allocate_slots(second, 1, hit, blocks) is not None


def test_a_hit_inside_a_block_is_copied_before_it_is_written() -> None:
    m = manager([FULL, MAMBA], hash_block_size=4)
    first = request(m, "r", TOKENS[:27])
    compute(m, first, 16, 24, 27)
    copies, retained = m.take_kv_cache_block_copies()
    assert len(copies) == 1, "the state at 24 is saved from the producer's next chunk"
    m.block_pool.free_blocks(retained)
    m.free(first)
    second = request(m, "s", TOKENS[:27])
    m.new_step_starts()
    blocks, hit, _ = m.get_computed_blocks(second)
    assert hit == 24
    assert m.allocate_slots(second, 3, hit, blocks) is not None
    copies, retained = m.take_kv_cache_block_copies()
    tables = m.get_block_ids("s")
    assert [copy.src_block_id for copy in copies] == [blocks.blocks[g][1].block_id for g in (0, 1)]
    assert [copy.dst_block_id for copy in copies] == [tables[g][1] for g in (0, 1)]
    assert all(block.ref_cnt >= 1 for block in retained), (
        "both ends are held until the copy has run"
    )
    m.block_pool.free_blocks(retained)
    m.free(second)
    assert m.reset_prefix_cache()


def test_a_running_producer_keeps_its_block_and_the_key_moves_to_the_copy() -> None:
    m = manager([FULL, MAMBA], hash_block_size=4)
    r = request(m, "r", TOKENS[:27])
    compute(m, r, 16, 24)
    producing = m.coordinator.single_type_managers[1].req_to_blocks["r"][1]
    assert producing.block_hash_num_tokens == 24
    m.new_step_starts()
    m.allocate_slots(r, 3)
    assert m.coordinator.single_type_managers[1].req_to_blocks["r"][1] is producing
    assert producing.block_hash is None
    (copy,), retained = m.take_kv_cache_block_copies()
    assert copy.src_block_id == producing.block_id
    assert m.block_pool.blocks[copy.dst_block_id].block_hash_num_tokens == 24
    m.block_pool.free_blocks(retained)


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ({}, {"cache_salt": "s"}, 0),
        ({"adapter": "a"}, {"adapter": "b"}, 0),
        (
            {"mm_features": [MultiModalFeature(40, 4, "x")]},
            {"mm_features": [MultiModalFeature(40, 4, "y")]},
            32,
        ),
        (
            {"mm_features": [MultiModalFeature(30, 4, "x")]},
            {"mm_features": [MultiModalFeature(30, 4, "y")]},
            16,
        ),
        (
            {"mm_features": [MultiModalFeature(40, 4, "x")]},
            {"mm_features": [MultiModalFeature(41, 4, "x")]},
            32,
        ),
        ({"adapter": "a", "cache_salt": "s"}, {"adapter": "a", "cache_salt": "s"}, 64),
    ],
)
def test_identity_belongs_to_the_prefix_not_to_the_request(
    one: dict[str, Any], other: dict[str, Any], shared: int
) -> None:
    m = manager([FULL])
    compute(m, request(m, "r", TOKENS[:65], **one), 65)
    assert hit_of(m, TOKENS[:65], **other) == shared


def test_a_digest_covers_the_prefix_the_tokens_and_the_extra_keys() -> None:
    one = chain(GENESIS, [1, 2], None)
    assert (
        len(
            {
                one,
                chain(one, [1, 2], None),
                chain(GENESIS, [2, 1], None),
                chain(GENESIS, [1, 2], ("a",)),
            }
        )
        == 4
    )
    assert chain(GENESIS, [1, 2], None) == one


def test_a_coarser_block_is_named_by_its_last_hash() -> None:
    fine = Request("r", TOKENS[:64], 4)
    m = manager(
        [{"kind": "full", "block_size": 32}, {"kind": "sliding", "block_size": 4, "window": 8}]
    )
    compute(m, fine, 64)
    blocks = m.coordinator.single_type_managers[0].req_to_blocks["r"]
    assert [(b.block_hash or b"")[:-4] for b in blocks] == [
        fine.block_hashes[7],
        fine.block_hashes[15],
    ]


def test_a_withdrawn_request_leaves_no_key_and_takes_along_who_adopted_its_blocks() -> None:
    m = manager([FULL])
    first, second, third = (
        request(m, name, TOKENS[:length]) for name, length in (("r", 33), ("s", 40), ("t", 40))
    )
    m.new_step_starts()
    m.allocate_slots(first, 33)
    blocks, hit, _ = m.get_computed_blocks(second)
    assert hit == 32
    m.allocate_slots(second, 8, hit, blocks)
    m.allocate_slots(third, 40, 0, KVCacheBlocks(((),)))
    assert m.withdraw(first) == ["r", "s"]
    assert m.block_pool.get_num_free_blocks() == 99 - 3, "the third computes for itself"
    assert hit_of(m, TOKENS[:33]) == 32, "its own keys stay"
    m.free(third)
    assert m.reset_prefix_cache()


def test_withdrawing_a_later_chunk_keeps_the_keys_of_steps_that_ran() -> None:
    m = manager([FULL, MAMBA])
    r = request(m, "r", TOKENS[:64])
    compute(m, r, 32)
    m.new_step_starts()
    m.allocate_slots(r, 32)
    m.withdraw(r)
    assert hit_of(m, TOKENS[:64]) == 32
    assert m.block_pool.get_num_free_blocks() == 99


def test_withdrawal_drops_the_copies_that_nobody_needs_any_more() -> None:
    m = manager([FULL, MAMBA], hash_block_size=4)
    first = request(m, "r", TOKENS[:27])
    compute(m, first, 16, 24)
    m.free(first)
    second = request(m, "s", TOKENS[:27])
    m.new_step_starts()
    blocks, hit, _ = m.get_computed_blocks(second)
    m.allocate_slots(second, 3, hit, blocks)
    assert m.withdraw(second) == ["s"]
    assert m.take_kv_cache_block_copies() == ([], [])
    assert hit_of(m, TOKENS[:27]) == 24, "what it would have copied is still there"
    assert m.block_pool.get_num_free_blocks() == 99
