"""What the server stores, serves and forgets: locks, windows, null blocks, memory, the order of
eviction.
"""

from __future__ import annotations

import pytest

from cachewitness_reference.lmcache.groups import (
    KVLayerGroups,
    LayerSpec,
    create_engine_group_infos,
)
from cachewitness_reference.lmcache.keys import ObjectKey
from cachewitness_reference.lmcache.server import LMCacheServer, Transfer
from cachewitness_reference.primitives import BlockId

FULL = LayerSpec("full", 4)
WINDOW = LayerSpec("sliding", 4, 8)
STATE = LayerSpec("mamba", 4)
TOKENS = list(range(1000, 1100))
NULL = 0


def server(
    *specs: LayerSpec,
    pages: int = 100,
    chunk: int = 4,
    apart: bool = True,
    world_size: int = 1,
    ratio: float = 0.2,
) -> LMCacheServer:
    """Return a server for one layer of each spec, with a session `r`."""
    infos = create_engine_group_infos([{index: spec} for index, spec in enumerate(specs)])
    layout = KVLayerGroups(infos, chunk, separate_object_groups=apart)
    found = LMCacheServer(layout, pages, world_size=world_size, ratio=ratio)
    found.start_session("r")
    return found


def table(count: int, first: int = 1, null: tuple[int, ...] = ()) -> list[BlockId]:
    """Return block ids, some of them null."""
    return [BlockId(NULL if index in null else first + index) for index in range(count)]


def stored(
    into: LMCacheServer, chunks: int, *tables: list[BlockId], r: str = "r", rank: int = 0
) -> Transfer:
    """Store the first chunks of a request and say that the copies have been made."""
    transfer = into.store(r, TOKENS, range(chunks), list(tables), rank)
    into.finish_store(transfer)
    return transfer


def present(found: LMCacheServer) -> list[tuple[int, int]]:
    """Return what can be found as (object group, chunk), by the prompt's digests."""
    order = {digest: index for index, digest in enumerate(found.sessions["r"].hashes)}
    return sorted((key.object_group_id, order[key.chunk_hash]) for key in found.l1.objects)


def hit(found: LMCacheServer, tokens: int, r: str = "r") -> int:
    """Look a prompt up, let go of it, and return how many chunks were hit."""
    found.start_session(r)
    chunks = found.lookup(r, TOKENS[:tokens], tokens)
    found.free_lookup_locks(r)
    return chunks


# --- store ----------------------------------------------------------------------------------------


def test_every_group_is_stored_and_served() -> None:
    """Document: the connector stores and retrieves the cache of every group."""
    found = server(FULL, WINDOW, STATE)
    transfer = stored(found, 3, table(3), table(3, 11), table(3, 21))
    assert sorted((copy.kernel_group, copy.block_id) for copy in transfer.copies) == [
        (group, 10 * group + index) for group in range(3) for index in (1, 2, 3)
    ]
    assert hit(found, 12) == 3
    found.start_session("s")
    assert found.lookup("s", TOKENS, 12) == 3
    loaded = found.retrieve("s", range(3), [table(3, 31), table(3, 41), table(3, 51)], 0)
    assert loaded.ok and loaded.log == "Retrieved 12 tokens"
    assert sorted((copy.kernel_group, copy.block_id) for copy in loaded.copies) == [
        *[(0, 31), (0, 32), (0, 33)],
        *[(1, 42), (1, 43)],  # a window of 8 tokens is two chunks
        (2, 53),  # of states the last alone
    ]


def test_what_is_being_written_cannot_be_found() -> None:
    found = server(FULL)
    transfer = found.store("r", TOKENS, range(2), [table(2)])
    assert hit(found, 8) == 0 and found.l1.memory_usage() == (2, 100)
    found.finish_store(transfer)
    assert hit(found, 8) == 2


def test_first_writer_wins() -> None:
    """A resident key is not written again; of two that write at once the first to end stays, the
    other's memory is free.
    """
    found = server(FULL)
    found.start_session("s")
    one, two = (
        found.store(r, TOKENS, range(1), [table(1, first)]) for r, first in (("r", 1), ("s", 2))
    )
    found.finish_store(two)
    found.finish_store(one)
    (resident,) = found.l1.objects.values()
    assert resident.memory.pages == (two.copies[0].page,) and found.l1.memory_usage() == (1, 100)
    assert found.store("r", TOKENS, range(1), [table(1, 5)]).copies == []


def test_underflow_of_one_group_skips_the_whole_store() -> None:
    """All or nothing: one block id too few in one group, and nothing is stored in any."""
    found = server(FULL, STATE)
    transfer = found.store("r", TOKENS, range(3), [table(3), table(2)])
    assert not transfer.ok and transfer.copies == [] and found.l1.memory_usage()[0] == 0
    assert (
        transfer.log == "STORE block ID underflow for request_id=r: each group needs num_chunks *"
        " blocks_per_chunk block IDs for 3 chunks (per-group blocks_per_chunk=[1, 1]); skipping"
        " the store."
    )


def test_chunks_whose_blocks_are_null_are_masked() -> None:
    """States exist where steps ended: the others are null and not stored, attention is."""
    found = server(FULL, STATE)
    stored(found, 4, table(4), table(4, 11, null=(0, 2)))
    assert present(found) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 1), (1, 3)]
    assert [hit(found, tokens) for tokens in (4, 8, 12, 16)] == [0, 2, 2, 4]


def test_a_group_that_shares_an_object_with_a_null_block_masks_it() -> None:
    """Our choice: together with a state that is not there, attention is not stored either."""
    found = server(FULL, STATE, apart=False)
    stored(found, 4, table(4), table(4, 11, null=(1,)))
    assert present(found) == [(0, 0), (0, 2), (0, 3)]
    assert hit(found, 16) == 1, "one object group needs every chunk"


def test_a_window_with_a_null_block_is_masked() -> None:
    """Our choice: of a chunk of two blocks, both inside the window, one null block is enough."""
    found = server(FULL, WINDOW, chunk=8)
    stored(found, 2, table(4), table(4, 11, null=(0,)))
    assert present(found) == [(0, 0), (0, 1), (1, 1)]


def test_null_blocks_that_are_not_kept_mask_nothing() -> None:
    """Of a chunk of two blocks a state is the last one; what is before it is null as a rule."""
    found = server(FULL, STATE, chunk=8)
    transfer = stored(found, 2, table(4), table(4, 11, null=(0, 2)))
    assert [copy.block_id for copy in transfer.copies if copy.kernel_group == 1] == [12, 14]


def test_a_group_that_does_not_fit_is_left_out_and_those_before_it_kept() -> None:
    """Seen on the release: out of memory, a store ends well, group 0 committed and the others
    missing; the look-up is 0.
    """
    found = server(FULL, STATE, pages=12)
    transfer = stored(found, 8, table(8), table(8, 11))
    assert transfer.ok and present(found) == [(0, chunk) for chunk in range(8)]
    assert hit(found, 32) == 0


def test_memory_is_given_per_group_or_not_at_all() -> None:
    found = server(FULL, pages=3)
    assert stored(found, 4, table(4)).copies == [] and found.l1.memory_usage() == (0, 3)


# --- retrieve -------------------------------------------------------------------------------------


def test_blocks_that_the_engine_has_are_skipped() -> None:
    """A hit of 8 of the engine's own inside the first chunk of 16: its two blocks are not
    written.
    """
    found = server(FULL, chunk=16)
    stored(found, 2, table(8))
    found.start_session("s")
    assert found.lookup("s", TOKENS, 32) == 2
    loaded = found.retrieve("s", range(2), [table(8, 31)], 8)
    assert [copy.block_id for copy in loaded.copies] == [33, 34, 35, 36, 37, 38]


def test_null_columns_of_the_engine_are_left_untouched() -> None:
    """Blocks outside the window and states before the last are null in the table, and stay so."""
    found = server(FULL, WINDOW, STATE)
    stored(found, 4, table(4), table(4, 11), table(4, 21))
    found.start_session("s")
    found.lookup("s", TOKENS, 16)
    loaded = found.retrieve(
        "s", range(4), [table(4, 31), table(4, 41, null=(0, 1, 2)), table(4, 51, null=(0, 1, 2))], 0
    )
    assert [copy.block_id for copy in loaded.copies if copy.kernel_group] == [44, 54]


def test_any_missing_key_fails_the_whole_retrieve() -> None:
    """Nothing is copied, in no group."""
    found = server(FULL, STATE)
    stored(found, 3, table(3), table(3, 11, null=(2,)))
    loaded = found.retrieve("r", range(3), [table(3, 31), table(3, 41)], 0)
    assert (loaded.ok, loaded.copies, loaded.log) == (
        False,
        [],
        "Some keys not found during retrieve!",
    )
    assert all(resident.read_locks == 0 for resident in found.l1.objects.values())


def test_underflow_fails_a_retrieve() -> None:
    found = server(FULL)
    stored(found, 2, table(2))
    assert found.retrieve("r", range(2), [table(1)], 0).log.startswith(
        "RETRIEVE block ID underflow for request_id=r"
    )


def test_a_chunk_counts_only_if_every_rank_has_it() -> None:
    found = server(FULL, world_size=2)
    stored(found, 3, table(3), rank=0)
    assert hit(found, 12) == 0
    stored(found, 2, table(2), rank=1)
    assert hit(found, 12) == 2


# --- locks ----------------------------------------------------------------------------------------


def test_a_look_up_locks_just_what_its_hit_needs() -> None:
    """Of attention all chunks, of a window its last two, of states the last; the others may go."""
    found = server(FULL, WINDOW, STATE)
    stored(found, 4, table(4), table(4, 11), table(4, 21))
    found.start_session("s")
    found.lookup("s", TOKENS, 12)
    locked = {key: resident for key, resident in found.l1.objects.items() if resident.read_locks}
    assert sorted((key.object_group_id, found.sessions["s"].locked[key]) for key in locked) == [
        *[(0, 0), (0, 1), (0, 2)],
        *[(1, 1), (1, 2)],
        (2, 2),
    ]
    assert not set(found.l1.delete(list(found.l1.objects))) & set(locked), "locked objects stay"


def test_what_the_engine_has_is_let_go_of_before_the_rest_is_loaded() -> None:
    """Of a chunk in which the engine's hit ends the lock stays; the retrieve gives it back when
    it has been made.
    """
    found = server(FULL, chunk=8)
    stored(found, 3, table(6))
    found.start_session("s")
    found.lookup("s", TOKENS, 24)
    found.free_lookup_locks("s", 12)
    assert sorted(found.sessions["s"].locked.values()) == [1, 2]
    loaded = found.retrieve("s", range(1, 3), [table(4, 31)], 4)
    assert [resident.read_locks for resident in found.l1.objects.values()] == [0, 1, 1]
    found.finish_retrieve(loaded)
    assert all(resident.read_locks == 0 for resident in found.l1.objects.values())


def test_clearing_keeps_what_is_read() -> None:
    found = server(FULL)
    stored(found, 2, table(2))
    found.start_session("s")
    found.lookup("s", TOKENS, 4)
    assert not found.clear() and len(found.l1.objects) == 1
    found.free_lookup_locks("s")
    assert found.clear() and found.l1.memory_usage() == (0, 100)


# --- eviction -------------------------------------------------------------------------------------


def evicted(found: LMCacheServer) -> list[tuple[int, int]]:
    """Let the eviction thread look once; return what went, as (object group, chunk)."""
    order = {digest: index for index, digest in enumerate(found.sessions["r"].hashes)}
    return [(key.object_group_id, order[key.chunk_hash]) for key in found.tick()]


def test_eviction_begins_at_the_watermark() -> None:
    """At 0.8 of the memory; one page less and nothing goes. The last chunk of the older store is
    the oldest key.
    """
    found = server(FULL, pages=10)
    stored(found, 7, table(7))
    assert evicted(found) == []
    found.finish_store(found.store("r", TOKENS, range(7, 8), [table(1, 8)]))
    assert evicted(found) == [(0, 6)]


@pytest.mark.parametrize(
    ("keys", "ratio", "expected"),
    [(10, 0.2, 2), (4, 0.2, 1), (9, 0.5, 4), (3, 0.01, 1), (5, 1.0, 5)],
)
def test_eviction_is_a_share_of_the_keys_at_least_one(
    keys: int, ratio: float, expected: int
) -> None:
    """By count, rounded down."""
    found = server(FULL, pages=keys, ratio=ratio)
    stored(found, keys, table(keys))
    assert len(found.tick()) == expected


def test_eviction_takes_later_chunks_and_later_groups_first() -> None:
    """Seen on the release: all states of a request die before any of its attention, the last
    chunk first in each.
    """
    found = server(FULL, WINDOW, STATE, pages=12, ratio=1.0)
    stored(found, 4, table(4), table(4, 11), table(4, 21))
    assert evicted(found) == [(group, chunk) for group in (2, 1, 0) for chunk in (3, 2, 1, 0)]


def test_locked_objects_are_passed_over() -> None:
    """The share is of all tracked keys; those that are read stay, and others go in their place."""
    found = server(FULL, pages=4, ratio=0.5)
    stored(found, 4, table(4))
    found.start_session("s")
    found.lookup("s", TOKENS, 16)
    assert evicted(found) == []
    found.free_lookup_locks("s", 12)
    assert evicted(found) == [(0, 2), (0, 1)]


def test_an_allocation_that_fails_evicts_nothing() -> None:
    found = server(FULL, pages=4)
    stored(found, 4, table(4))
    found.start_session("s")
    other = found.store("s", [9] * 8, range(2), [table(2)])
    assert other.ok and other.copies == [] and len(found.l1.objects) == 4


def test_a_hit_touches_what_it_needs_and_no_more() -> None:
    """States at 1 and 3, all attention: after a hit of two chunks the older half is the rest."""
    found = server(FULL, STATE, pages=100)
    stored(found, 4, table(4), table(4, 11, null=(0, 2)))
    found.start_session("s")
    assert found.lookup("s", TOKENS, 8) == 2
    order = {digest: index for index, digest in enumerate(found.sessions["r"].hashes)}
    oldest = [(key.object_group_id, order[key.chunk_hash]) for key in found.eviction.policy.order]
    assert oldest == [(1, 3), (0, 3), (0, 2), (1, 1), (0, 1), (0, 0)]


def test_the_end_of_a_session_touches_every_group_of_its_request() -> None:
    found = server(FULL, STATE)
    stored(found, 2, table(2), table(2, 11))
    found.start_session("s")
    found.finish_store(found.store("s", [9] * 4, range(1), [table(1), table(1)]))
    mine: list[ObjectKey] = found.eviction.policy.order[:4]
    found.end_session("r")
    assert found.eviction.policy.order[2:] == mine


def test_leftovers_of_eviction_are_not_served() -> None:
    """Objects go one by one: attention without its state, or a chunk without an earlier one, is
    there and never served.
    """
    found = server(FULL, STATE, pages=8, ratio=0.1)
    stored(found, 4, table(4), table(4, 11))
    assert evicted(found) == [(1, 3)] and hit(found, 16) == 3
    found.l1.delete(
        [key for key in found.l1.objects if key.chunk_hash == found.sessions["r"].hashes[0]]
    )
    assert len(found.l1.objects) == 5 and hit(found, 16) == 0
