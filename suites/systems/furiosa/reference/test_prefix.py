"""Furiosa-LLM's radix tree over two pools: matching, the valid portion, sharing, eviction.

Blocks of four tokens and a window of six, as in `test_furiosa_lifecycle`: to go on at h, the
sliding blocks of [h - 5, h) must be there. Expected lengths are worked out by hand, or by going
through every length one after another.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachewitness_reference.furiosa.block_pool import BlockPool
from cachewitness_reference.furiosa.config import CacheConfig, Layers, Options
from cachewitness_reference.furiosa.manager import HybridCacheManager
from cachewitness_reference.furiosa.radix_tree import Entry
from cachewitness_reference.furiosa.request import MediaItem, Request
from cachewitness_reference.furiosa.scheduler import Scheduler

SIZE, WINDOW = 4, 6
PROMPT = list(range(24))


def scheduler(global_blocks: int = 30, sliding_blocks: int = 30, **options: Any) -> Scheduler:
    """Return a scheduler over pools of so many blocks."""
    return Scheduler(
        CacheConfig(Layers(SIZE, WINDOW), Options.parse(options), global_blocks, sliding_blocks)
    )


def serve(engine: Scheduler, name: str, tokens: list[int], **identity: Any) -> int:
    """Prefill and end one request; return how long its hit was."""
    engine.add(Request(name, tokens, **identity))
    hit = -1
    while name in engine.requests:
        step = engine.schedule()
        hit = step.hits[name].length if name in step.hits else hit
        engine.complete(step)
        if engine.requests[name].num_computed == len(tokens):
            engine.finish([name])
    return hit


def hit(engine: Scheduler, tokens: list[int], **identity: Any) -> tuple[int, int]:
    """Return how long a prefix is stored in the global pool, and how much of it can be reused."""
    found = engine.manager.match(Request("probe", tokens, **identity))
    return found.matched, found.length


def punch(engine: Scheduler, *columns: int) -> None:
    """Take the sliding blocks of some columns of everything stored away."""
    manager = engine.manager
    blocks = {
        e.sliding_block
        for e in manager.tree.entries()
        if e.start // SIZE in columns and e.sliding_block is not None
    }
    for block in blocks:
        for entry in manager.sliding_pool.entries(block):
            assert isinstance(entry, Entry)
            manager.tree.open_hole(entry)


# --- the documents --------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [1, 3, 4, 5, 8, 11, 23])
def test_a_prefix_is_matched_token_by_token(shared: int) -> None:
    """Whoever parts after any number of tokens reuses all of them."""
    engine = scheduler()
    serve(engine, "a", PROMPT)
    assert serve(engine, "b", [*PROMPT[:shared], *range(100, 110)]) == shared


def test_a_match_shares_the_blocks_of_both_pools() -> None:
    """Of 24 tokens, stored once, the second request holds the same six global blocks and the
    same two sliding ones.
    """
    engine = scheduler()
    serve(engine, "a", PROMPT)
    free = engine.manager.global_pool.num_free, engine.manager.sliding_pool.num_free
    engine.add(second := Request("b", [*PROMPT, 50]))
    engine.schedule()
    assert [column for column, block in enumerate(second.sliding_blocks) if block is not None] == [
        4,
        5,
        6,
    ]
    assert len(second.global_blocks) == 7
    assert (engine.manager.global_pool.num_free, engine.manager.sliding_pool.num_free) == (
        free[0] - 1,
        free[1] - 1,
    )


@pytest.mark.parametrize(
    ("holes", "usable"),
    [
        ((), 24),
        ((5,), 20),  # [15, 20) needs columns 3 and 4
        ((4,), 16),  # both 24 and 20 need column 4; [11, 16) needs columns 2 and 3
        ((3,), 24),  # 24 reads [19, 24) alone
        ((3, 5), 12),  # 20 reads [15, 20)
        ((0, 2, 4), 0),
        ((0, 1, 2, 3), 24),
        ((1, 4), 16),
        ((1, 3, 5), 4),
    ],
)
def test_the_valid_portion_of_a_match_is_reused(holes: tuple[int, ...], usable: int) -> None:
    """Where sliding blocks are gone, the longest prefix whose own window is there is reused, and
    the rest computed.
    """
    engine = scheduler()
    serve(engine, "a", PROMPT)
    punch(engine, *holes)
    assert hit(engine, [*PROMPT, 50]) == (24, usable)
    assert serve(engine, "b", [*PROMPT, 50]) == usable


def test_what_is_computed_over_a_hole_fills_it() -> None:
    """After a sibling has computed the tokens from 16 on again, the whole prefix can be reused."""
    engine = scheduler()
    serve(engine, "a", PROMPT)
    punch(engine, 4)
    assert serve(engine, "b", [*PROMPT, 50]) == 16
    assert hit(engine, [*PROMPT, 51]) == (24, 24)


def test_entries_are_stored_after_each_forward_pass() -> None:
    """Nothing is known of a chunk while it is computed; after it, its twelve tokens are, and the
    next chunk's are not.
    """
    engine = scheduler()
    engine.add(Request("a", PROMPT))
    step = engine.schedule(12)
    assert hit(engine, PROMPT) == (0, 0)
    engine.complete(step)
    engine.schedule(12)
    assert hit(engine, PROMPT) == (12, 12)


def test_entries_lie_in_the_memory_of_the_pools() -> None:
    """What is stored takes blocks that are not free, and can be handed out all the same."""
    engine = scheduler()
    serve(engine, "a", PROMPT)
    for pool in (engine.manager.global_pool, engine.manager.sliding_pool):
        assert (pool.num_free, pool.num_available, pool.num_held) == (24, 30, 0)


def test_the_least_recently_used_goes_first_from_its_leaf() -> None:
    """Of two stored prompts of four blocks in a pool of eleven, the one that was used longest
    ago loses its last blocks.
    """
    engine = scheduler(11, 30)
    old = list(range(100, 116))
    recent = list(range(200, 216))
    serve(engine, "old", old)
    serve(engine, "recent", recent)
    assert serve(engine, "old again", [*old[:15], 50]) == 15
    assert serve(engine, "new", list(range(300, 320))) == 0
    assert hit(engine, [*old[:15], 51])[0] == 15, "used after the other one"
    assert hit(engine, [*recent, 51])[0] == 4, "three of its four blocks went, the last one first"


def test_active_entries_are_not_evicted() -> None:
    """While a request runs through a stored prefix, others take blocks until there is none, and
    the prefix stays.
    """
    engine = scheduler(10, 30)
    serve(engine, "a", PROMPT[:12])
    engine.add(runs := Request("runs", [*PROMPT[:12], 50]))
    engine.complete(engine.schedule())
    for index in range(4):
        serve(engine, f"other{index}", list(range(100 * index + 100, 100 * index + 117)))
    assert hit(engine, [*PROMPT[:12], 60])[0] == 12 and runs.num_computed == 13


# --- our choices ----------------------------------------------------------------------------------


def test_one_token_is_left_to_compute() -> None:
    """Logits are not stored: of a prompt that is stored whole, the last token is computed again."""
    engine = scheduler()
    serve(engine, "a", PROMPT)
    assert serve(engine, "b", PROMPT) == 23


def test_a_hit_inside_a_block_copies_it() -> None:
    """Whoever parts at token 10 writes into copies of the third blocks; their owner's tokens
    behind it stay.
    """
    engine = scheduler()
    serve(engine, "a", PROMPT)
    engine.add(second := Request("b", [*PROMPT[:10], 50]))
    engine.schedule()
    for copy, own in (
        (second.global_copy, second.global_blocks[2]),
        (second.sliding_copy, second.sliding_blocks[2]),
    ):
        assert copy is not None and copy.target == own != copy.source
    assert hit(engine, PROMPT)[1] == 23


def test_hits_can_be_whole_blocks_alone() -> None:
    """With the other granularity a match of 10 tokens is reused up to 8, and nothing is ever
    copied.
    """
    engine = scheduler(hit_granularity="block")
    serve(engine, "a", PROMPT)
    assert serve(engine, "b", [*PROMPT[:10], 50]) == 8
    assert serve(engine, "c", PROMPT) == 20


@pytest.mark.parametrize(("tail", "usable"), [("W-1", 21), ("W", 12)])
def test_w_tokens_before_a_boundary_reach_one_further(tail: str, usable: int) -> None:
    """A hit at 21 needs [16, 21), which begins in column 4, or [15, 21), which begins over the
    hole in column 3.
    """
    engine = scheduler(window_tail=tail)
    serve(engine, "a", PROMPT)
    punch(engine, 3)
    assert hit(engine, [*PROMPT[:21], 50]) == (21, usable)


def test_a_full_block_that_is_stored_already_is_exchanged() -> None:
    """Two requests with one prompt in one step compute it both; after that they hold the same
    blocks.
    """
    engine = scheduler()
    engine.add(first := Request("a", PROMPT))
    engine.add(second := Request("b", PROMPT))
    engine.complete(engine.schedule())
    assert (
        first.global_blocks == second.global_blocks
        and first.sliding_blocks == second.sliding_blocks
    )
    assert engine.manager.global_pool.num_free == 24


@pytest.mark.parametrize(
    "identity", [{"salt": "s"}, {"adapter": "x"}, {"media": [MediaItem(0, 2, "cat")]}]
)
def test_a_prefix_of_another_identity_is_no_match(identity: dict[str, Any]) -> None:
    """Salt, adapter and what a picture shows are part of what was computed."""
    engine = scheduler()
    serve(engine, "a", PROMPT, **identity)
    assert hit(engine, PROMPT) == (0, 0)
    assert hit(engine, PROMPT, **identity)[1] == 23


def test_a_prefix_before_the_picture_is_shared_whatever_it_shows() -> None:
    """Media count from their first placeholder on."""
    engine = scheduler()
    serve(engine, "a", PROMPT, media=[MediaItem(9, 4, "cat")])
    assert hit(engine, PROMPT, media=[MediaItem(9, 4, "dog")]) == (9, 9)
    assert hit(engine, PROMPT)[1] == 9


def test_an_empty_tree_is_forgotten() -> None:
    """A salt that nobody uses any more, and of which nothing is stored, leaves nothing behind."""
    engine = scheduler()
    serve(engine, "a", PROMPT, salt="s")
    assert list(engine.manager.tree.roots) == [("s", "")]
    assert engine.reset() and not engine.manager.tree.roots


# --- against brute force --------------------------------------------------------------------------


def stored(manager: HybridCacheManager) -> dict[tuple[Any, ...], bool]:
    """Return every stored prefix, identity first, and whether the sliding block of its last
    column is there.
    """
    prefixes: dict[int, tuple[Any, ...]] = {
        id(root): root.identity for root in manager.tree.roots.values()
    }
    found: dict[tuple[Any, ...], bool] = {}
    for entry in manager.tree.entries():
        prefix = prefixes[id(entry.parent)]
        for symbol in entry.symbols:
            prefix = (*prefix, symbol)
            found[prefix] = entry.sliding_block is not None
        prefixes[id(entry)] = prefix
    return found


def longest(known: dict[tuple[Any, ...], bool], request: Request, tail: int, unit: int) -> int:
    """Try every length from the longest on: all of it stored, and every column that its window
    touches there.
    """
    whole = (*request.identity, *request.symbols)
    for length in range(request.num_tokens - 1, 0, -1):
        columns = range(max(0, length - tail) // SIZE, (length - 1) // SIZE + 1)
        ends = [min(length, (column + 1) * SIZE) for column in columns]
        if (
            length % unit == 0
            and whole[: length + 2] in known
            and all(known[whole[: end + 2]] for end in ends)
        ):
            return length
    return 0


def check_books(engine: Scheduler) -> None:
    """Count every block's holders, names and pins anew."""
    manager = engine.manager
    for pool, sliding in ((manager.global_pool, False), (manager.sliding_pool, True)):
        holds, names, pins = (dict.fromkeys(range(pool.num_blocks), 0) for _ in range(3))
        for request in engine.requests.values():
            copy = request.sliding_copy if sliding else request.global_copy
            table = request.sliding_blocks if sliding else request.global_blocks
            for block in [*table, *([copy.source] if copy else [])]:
                if block is not None:
                    holds[block] += 1
        for entry in manager.tree.entries():
            named = entry.sliding_block if sliding else entry.global_block
            if named is not None:
                names[named] += 1
                pins[named] += entry.pinned and not sliding
        check_pool(pool, holds, names, pins)


def check_pool(
    pool: BlockPool, holds: dict[int, int], names: dict[int, int], pins: dict[int, int]
) -> None:
    """Compare with the pool's own books: free, idle or in use, each block one of them."""
    idle = [block for block in holds if names[block] and not holds[block] and not pins[block]]
    free = [block for block in holds if not names[block] and not holds[block]]
    assert [pool.holds(block) for block in pool_ids(pool)] == list(holds.values())
    assert [pool.is_idle(block) for block in pool_ids(pool)] == [block in idle for block in holds]
    assert (pool.num_free, pool.num_available) == (len(free), len(free) + len(idle))
    assert pool.num_held == sum(count > 0 for count in holds.values())


def pool_ids(pool: BlockPool) -> list[Any]:
    """Return the ids of a pool's blocks."""
    return list(range(pool.num_blocks))


ACTIONS = st.lists(
    st.tuples(st.sampled_from("asssffp"), st.integers(0, 9), st.integers(1, 30), st.integers(0, 3)),
    min_size=5,
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(
    ACTIONS,
    st.sampled_from(["token", "block"]),
    st.sampled_from(["W-1", "W"]),
    st.sampled_from(["evictable", "freed"]),
)
def test_matches_and_books_agree_with_brute_force(
    actions: list[tuple[str, int, int, int]], granularity: str, tail: str, out_of_window: str
) -> None:
    """Through any life, a match is the longest there is, and every block is free, idle or in
    use.
    """
    engine = scheduler(
        11, 11, hit_granularity=granularity, window_tail=tail, out_of_window=out_of_window
    )
    unit = SIZE if granularity == "block" else 1
    for number, (action, pick, length, family) in enumerate(actions):
        names = sorted(engine.requests)
        if action == "a" or not names:
            shared = min(length, 4 * family + pick)
            tokens = [*range(shared), *(1000 * family + i for i in range(shared, length))]
            engine.add(Request(f"r{number:03}", tokens, salt="s" * (pick == 9)))
        elif action == "f":
            engine.finish([names[pick % len(names)]])
        elif action == "p" and engine.running:
            engine.preempt(engine.running[pick % len(engine.running)].request_id)
        else:
            step = engine.schedule(length)
            check_books(engine)
            engine.complete(step)
            for name in step.num_tokens:
                request = engine.requests[name]
                if request.num_computed == request.num_tokens and engine.generated(name, [pick]):
                    engine.finish([name])
        check_books(engine)
        known = stored(engine.manager)
        for probe in engine.requests.values():
            assert engine.manager.match(probe).length == longest(
                known, probe, engine.config.tail, unit
            )
