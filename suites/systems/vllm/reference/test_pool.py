"""The pool: order of the free queue, eviction, duplicates, events, reset."""

from __future__ import annotations

from cachewitness_reference.primitives import GroupId
from cachewitness_reference.vllm.block_pool import BlockPool
from cachewitness_reference.vllm.events import AllBlocksCleared, BlockRemoved, BlockStored
from cachewitness_reference.vllm.key_index import KVCacheBlock
from cachewitness_reference.vllm.request import Request

GROUP = GroupId(0)


def pool(num_blocks: int = 8) -> BlockPool:
    return BlockPool(num_blocks, hash_block_size=4, enable_kv_cache_events=True)


def queue(of: BlockPool) -> list[int]:
    return list(of.free_block_queue)


def keyed(of: BlockPool, tokens: list[int], name: str = "r") -> tuple[Request, list[KVCacheBlock]]:
    """Take one block per four tokens and key them all."""
    request = Request(name, tokens, 4)
    blocks = of.get_new_blocks(len(tokens) // 4)
    of.cache_full_blocks(request, blocks, 0, len(blocks), 4, GROUP)
    return request, blocks


def test_the_null_block_is_never_handed_out() -> None:
    p = pool(4)
    assert [b.block_id for b in p.get_new_blocks(3)] == [1, 2, 3]
    assert p.null_block.block_id == 0 and p.null_block.ref_cnt == 0


def test_freed_blocks_without_a_key_go_first_and_keyed_ones_last() -> None:
    p = pool()
    _, blocks = keyed(p, list(range(8)))
    scratch = p.get_new_blocks(2)
    p.free_blocks(reversed(blocks + scratch))
    assert queue(p) == [
        4,
        3,
        5,
        6,
        7,
        2,
        1,
    ], "scratch in front, then what was never used, then the tail before its head"


def test_a_block_handed_out_again_loses_its_key() -> None:
    p = pool(3)
    request, blocks = keyed(p, list(range(8)))
    p.free_blocks(reversed(blocks))
    assert p.get_cached_block(request.block_hashes[1], [GROUP]) == [blocks[1]]
    p.get_new_blocks(1)
    assert p.get_cached_block(request.block_hashes[1], [GROUP]) is None
    assert p.get_cached_block(request.block_hashes[0], [GROUP]) == [blocks[0]]


def test_of_several_blocks_under_one_key_the_oldest_is_hit_and_the_next_takes_its_place() -> None:
    p = pool()
    request, (first,) = keyed(p, [1, 2, 3, 4])
    _, (second,) = keyed(p, [1, 2, 3, 4], "s")
    _, (third,) = keyed(p, [1, 2, 3, 4], "t")
    assert p.get_cached_block(request.block_hashes[0], [GROUP]) == [first]
    p.free_blocks([first])
    p.get_new_blocks(5)
    assert p.get_cached_block(request.block_hashes[0], [GROUP]) == [second]
    assert p.cached_block_hash_to_block.contain(third.block_hash or b"", third.block_id)  # type: ignore[arg-type]


def test_touching_a_cached_block_takes_it_out_of_the_queue() -> None:
    p = pool()
    _, blocks = keyed(p, [1, 2, 3, 4])
    p.free_blocks(blocks)
    before = p.get_num_free_blocks()
    p.touch(blocks)
    assert p.get_num_free_blocks() == before - 1 and blocks[0].ref_cnt == 1


def test_a_mask_subtracts_and_never_keys_a_null_column() -> None:
    p = pool()
    request = Request("r", list(range(12)), 4)
    one, two = p.get_new_blocks(2)
    done = p.cache_full_blocks(
        request, [one, p.null_block, two], 0, 3, 4, GROUP, [False, True, True]
    )
    assert done == [two] and two.block_hash_num_tokens == 12
    assert one.block_hash is None and p.null_block.block_hash is None


def test_a_longer_key_replaces_the_partial_one_of_the_same_block() -> None:
    p = pool()
    request = Request("r", list(range(8)), 4)
    (block,) = p.get_new_blocks(1)
    p.cache_partial_block(request, block, 4, GROUP)
    assert block.block_hash_num_tokens == 4
    p.cache_full_blocks(request, [block], 0, 1, 8, GROUP)
    assert block.block_hash_num_tokens == 8
    assert p.get_cached_block(request.block_hashes[0], [GROUP]) is None
    assert [type(event) for event in p.take_events()] == [BlockStored, BlockRemoved, BlockStored]


def test_reset_needs_everybody_gone_and_then_forgets_every_key() -> None:
    p = pool()
    request, blocks = keyed(p, list(range(8)))
    assert p.reset_prefix_cache() is False
    assert p.get_cached_block(request.block_hashes[0], [GROUP]) == [blocks[0]]
    p.free_blocks(blocks)
    assert p.reset_prefix_cache() is True
    assert p.get_cached_block(request.block_hashes[0], [GROUP]) is None
    assert isinstance(p.take_events()[-1], AllBlocksCleared)
    assert all(block.block_hash is None for block in p.blocks)


def test_a_stored_event_names_the_parent_and_the_tokens() -> None:
    p = pool()
    request = Request("r", list(range(12)), 4, adapter="a")
    blocks = p.get_new_blocks(3)
    p.cache_full_blocks(request, blocks, 1, 3, 4, GROUP)
    (event,) = p.take_events()
    assert isinstance(event, BlockStored)
    assert event.parent_block_hash == request.block_hashes[0]
    assert (event.block_hashes, event.token_ids) == (request.block_hashes[1:], list(range(4, 12)))
    assert event.extra_keys == [("a",)] * 2
