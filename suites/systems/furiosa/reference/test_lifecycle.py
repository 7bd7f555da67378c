"""The lifecycle of a request over Furiosa-LLM's two pools, statement by statement of the document.

Blocks of four tokens and a window of six: a boundary needs the five tokens before it, so a request
that has computed t tokens keeps the sliding blocks from column (t - 5) // 4 on.
"""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness_reference.furiosa.config import CacheConfig, Layers, Options
from cachewitness_reference.furiosa.manager import HybridCacheManager
from cachewitness_reference.furiosa.request import Request, Status
from cachewitness_reference.furiosa.scheduler import RefusedRequest, Scheduler

SIZE, WINDOW = 4, 6


def config(global_blocks: int = 20, sliding_blocks: int = 12, **options: Any) -> CacheConfig:
    """Return pools of so many blocks."""
    return CacheConfig(Layers(SIZE, WINDOW), Options.parse(options), global_blocks, sliding_blocks)


def scheduler(*sizes: int, **options: Any) -> Scheduler:
    """Return a scheduler over them."""
    return Scheduler(config(*sizes, **options))


def run(engine: Scheduler, budget: int = 0) -> dict[str, int]:
    """Run one forward pass; whoever is at the end of its tokens generates 7. Return who computed
    how many tokens.
    """
    step = engine.schedule(budget)
    engine.complete(step)
    for name in step.num_tokens:
        request = engine.requests[name]
        if request.num_computed == request.num_tokens and engine.generated(name, [7]):
            engine.finish([name])
    return step.num_tokens


def added(engine: Scheduler, name: str, tokens: list[int], **identity: Any) -> Request:
    """Submit a request."""
    request = Request(name, tokens, **identity)
    engine.add(request)
    return request


def columns(request: Request) -> list[int]:
    """Return the columns in which a request holds sliding blocks."""
    return [column for column, block in enumerate(request.sliding_blocks) if block is not None]


# --- the document ---------------------------------------------------------------------------------


def test_prefill_takes_blocks_to_write_in_both_pools() -> None:
    """Ten tokens lie in three blocks of either pool."""
    manager = HybridCacheManager(config())
    request = Request("a", list(range(10)))
    manager.prefill(request, manager.match(request), 10)
    assert (len(request.global_blocks), columns(request)) == (3, [0, 1, 2])
    assert (manager.global_pool.num_held, manager.sliding_pool.num_held) == (3, 3)


def test_extend_takes_blocks_for_new_tokens_alone() -> None:
    """Six tokens, then five more: the half-full second block goes on, and one block of either
    pool is new.
    """
    engine = scheduler()
    request = added(engine, "a", list(range(11)))
    assert run(engine, 6) == {"a": 6}
    before = list(request.global_blocks)
    engine.schedule(5)
    assert request.global_blocks[:2] == before and len(request.global_blocks) == 3


def test_decode_takes_a_block_when_the_last_one_is_full() -> None:
    """Eight tokens fill two blocks; each fourth token after that takes one more of either pool."""
    engine = scheduler()
    request = added(engine, "a", list(range(8)))
    counts = []
    for _ in range(9):
        assert run(engine) in ({"a": 8}, {"a": 1})
        counts.append(len(request.global_blocks))
    assert counts == [2, 3, 3, 3, 3, 4, 4, 4, 4]


def test_extend_loads_the_cached_blocks_of_both_pools() -> None:
    """Whoever comes with a stored prefix of eight tokens holds its blocks, and takes new ones
    for the rest.
    """
    engine = scheduler()
    first = added(engine, "a", list(range(8)))
    run(engine)
    blocks = list(first.global_blocks)
    sliding = list(first.sliding_blocks)
    second = added(engine, "b", [*range(8), 50, 51])
    step = engine.schedule()
    assert step.hits["b"].length == 8 and step.num_tokens["b"] == 2
    assert second.global_blocks[:2] == blocks and second.sliding_blocks[:2] == sliding[:2]
    assert engine.manager.global_pool.num_held == 4, "two shared, one of either request's own"


def test_cleanup_gives_back_sliding_blocks_at_once_and_keeps_global_ones() -> None:
    """After t tokens the blocks before column (t - 5) // 4 are gone, while the request runs on;
    the global ones stay.
    """
    engine = scheduler(40, 12, out_of_window="freed")
    request = added(engine, "a", list(range(30)))
    for computed in (6, 12, 18, 24, 30):
        run(engine, 6)
        held = list(range((computed - 5) // 4, -(-computed // 4)))
        assert columns(request) == held
        assert len(request.global_blocks) == -(-computed // 4)
        assert engine.manager.sliding_pool.num_free == 12 - len(held)


def test_a_long_sequence_lives_in_a_small_sliding_pool() -> None:
    """Blocks outside the window do not wait for the end of the request: 76 tokens run in five
    sliding blocks of four.
    """
    engine = scheduler(21, 5)
    request = added(engine, "a", list(range(70)))
    while request.num_tokens < 76:
        assert run(engine, 8)
    assert engine.manager.sliding_pool.num_held <= 4


def test_global_blocks_stay_reusable_for_the_whole_prefix() -> None:
    """When the request has ended, all of its tokens but the last can be matched in the global
    pool.
    """
    engine = scheduler()
    added(engine, "a", list(range(24)))
    run(engine, 24)
    engine.finish(["a"])
    match = engine.manager.match(Request("b", [*range(24), 50]))
    assert (match.matched, match.length) == (24, 24)


@pytest.mark.parametrize(("global_blocks", "sliding_blocks"), [(4, 12), (20, 5)])
def test_both_pools_are_given_together_or_not_at_all(
    global_blocks: int, sliding_blocks: int
) -> None:
    """Whichever pool lacks a block, the request takes none of the other; the two are as long
    after every step.
    """
    engine = scheduler(global_blocks, sliding_blocks)
    for name, start in (("a", 0), ("b", 100), ("c", 200)):
        added(engine, name, list(range(start, start + 7)))
    for _ in range(30):
        run(engine)
        for request in engine.requests.values():
            assert len(request.global_blocks) == len(request.sliding_blocks)
            assert bool(request.global_blocks) == (request.status is Status.RUNNING)


@pytest.mark.parametrize(("out_of_window", "reusable"), [("freed", 8), ("evictable", 0)])
def test_eviction_pressure_is_off_the_sliding_pool(out_of_window: str, reusable: int) -> None:
    """A request of 60 tokens runs in a sliding pool of 32, because what its window has left serves
    it again.

    Freed at once, that is enough for it, and a request that was stored before stays whole. Where
    entries keep such blocks until memory is needed, the oldest go first, which are the stored
    request's.
    """
    engine = scheduler(40, 8, out_of_window=out_of_window)
    added(engine, "kept", list(range(100, 108)))
    run(engine)
    engine.finish(["kept"])
    long = added(engine, "long", list(range(60)))
    for _ in range(16):
        run(engine, 4)
        assert engine.manager.sliding_pool.num_held <= 4
    assert long.num_computed > 60
    match = engine.manager.match(Request("again", [*range(100, 108), 50]))
    assert (match.matched, match.length) == (8, reusable)


# --- our choices ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("tail", "held"), [("W-1", [2, 3]), ("W", [1, 2, 3])])
def test_the_window_keeps_w_minus_1_or_w_tokens(tail: str, held: list[int]) -> None:
    """After 13 tokens, 5 kept begin at token 8 (column 2), 6 at token 7 (column 1)."""
    engine = scheduler(window_tail=tail)
    request = added(engine, "a", list(range(13)))
    run(engine, 13)
    assert columns(request) == held


@pytest.mark.parametrize(("out_of_window", "known"), [("evictable", 8), ("freed", 0)])
def test_what_the_window_has_left_can_be_matched_or_not(out_of_window: str, known: int) -> None:
    """A sibling that parts at token 8 finds the window [3, 8) there, or gone with the first
    chunk's blocks.
    """
    engine = scheduler(out_of_window=out_of_window)
    added(engine, "a", list(range(24)))
    run(engine, 24)
    hit = engine.manager.match(Request("b", [*range(8), 50, 51]))
    assert (hit.matched, hit.length) == (8, known)


def test_a_chunk_is_what_fits() -> None:
    """Beside a request that holds two of seven sliding blocks, another computes twenty tokens of
    its prompt and no more.
    """
    engine = scheduler(40, 7)
    added(engine, "a", list(range(9)))
    run(engine)
    added(engine, "b", list(range(100, 130)))
    assert run(engine) == {"a": 1, "b": 20}


def test_the_last_to_come_gives_way_and_waits_in_front() -> None:
    """Two requests of seven tokens fill four global blocks; the first needs a third block at its
    ninth token.
    """
    engine = scheduler(4, 12)
    first = added(engine, "a", list(range(7)))
    second = added(engine, "b", list(range(100, 107)))
    added(engine, "c", list(range(200, 203)))
    while second.status is not Status.WAITING or first.num_computed == 0:
        run(engine)
    assert first.num_computed == 9 and [r.request_id for r in engine.waiting] == ["b", "c"]
    assert engine.manager.match(second).length == 4, (
        "what it had stored in a block that nobody took is still there"
    )


def test_a_request_joins_only_if_its_prompt_fits_the_global_pool() -> None:
    """Four of six blocks are held; a prompt of nine tokens waits although one of its chunks
    would fit.
    """
    engine = scheduler(6, 12)
    added(engine, "a", list(range(13)))
    run(engine)
    added(engine, "b", list(range(100, 109)))
    assert run(engine, 4) == {"a": 1}


@pytest.mark.parametrize("length", [0, 20, 21])
def test_a_prompt_that_leaves_no_room_to_generate_is_refused(length: int) -> None:
    """Six global blocks hold 20 tokens and the copy of a block."""
    engine = scheduler(6, 12)
    with pytest.raises(
        RefusedRequest, match=f"prompt of request 'a': {length} tokens; it may have 1 to 19"
    ):
        added(engine, "a", list(range(length)))


def test_a_request_ends_at_the_longest_length() -> None:
    """Nineteen tokens and one more are what six global blocks hold."""
    engine = scheduler(6, 12)
    request = added(engine, "a", list(range(19)))
    run(engine)
    assert request.status is Status.FINISHED and engine.manager.global_pool.num_held == 0


def test_a_name_is_taken_once_and_a_waiting_request_is_not_preempted() -> None:
    """Both are refused by name."""
    engine = scheduler()
    added(engine, "a", [1])
    with pytest.raises(RefusedRequest, match="'a' is already here"):
        added(engine, "a", [2])
    with pytest.raises(RefusedRequest, match="'a' is not running"):
        engine.preempt("a")


def test_a_reset_is_refused_while_somebody_runs_and_then_forgets_everything() -> None:
    """An active entry cannot be forgotten; afterwards every block is free."""
    engine = scheduler()
    added(engine, "a", list(range(12)))
    run(engine)
    assert not engine.reset()
    engine.finish(["a"])
    assert engine.reset()
    assert engine.manager.match(Request("b", list(range(12)))).matched == 0
    assert engine.manager.global_pool.num_free == 20 and engine.manager.sliding_pool.num_free == 12


def test_without_caching_nothing_is_stored() -> None:
    """Everything a request held is free when it ends."""
    engine = scheduler(enable_caching=False)
    added(engine, "a", list(range(12)))
    run(engine)
    engine.finish(["a"])
    assert engine.manager.global_pool.num_free == 20 and not engine.manager.tree.roots
