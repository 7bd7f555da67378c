"""Where a prompt resumes, what it holds then, what keeps its key, and what is overwritten first."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from typing import Any

import pytest

from cachewitness_reference.openvino_genai.block_pool import BlockPool
from cachewitness_reference.openvino_genai.config import SchedulerConfig
from cachewitness_reference.openvino_genai.orchestrator import KV, LA, Restored
from cachewitness_reference.openvino_genai.scheduler import Scheduler
from cachewitness_reference.openvino_genai.sequence import (
    Identity,
    MediaItem,
    Sequence,
    SequenceGroup,
)
from cachewitness_reference.openvino_genai.sizing import LayoutBytes, derive
from cachewitness_reference.primitives import BlockHash, Position

B, M = 4, 2
I = B * M  # noqa: E741 - the interval, as the document's formulas call it
TEXT = list(range(1000, 1400))
OTHER = list(range(9000, 9400))


def scheduler(
    *, kv: int = 64, hybrid: bool = True, caching: bool = True, multiplier: int = M
) -> Scheduler:
    config = SchedulerConfig(
        num_kv_blocks=kv,
        enable_prefix_caching=caching,
        cache_interval_multiplier=multiplier,
        max_num_batched_tokens=4096,
    )
    return Scheduler(config, derive(config, LayoutBytes(1, int(hybrid), B)), B, hybrid=hybrid)


def start(s: Scheduler, r: str, prompt: Tokens[int], **identity: Any) -> Restored:
    """Submit a request and look it up."""
    s.add_request(SequenceGroup(r, prompt, B, identity=Identity(**identity)))
    return s.restore_new()[r]


def run(s: Scheduler, r: str, generate: int, chunk: int = 0) -> None:
    """Run a request alone until it has generated so many tokens; its last one is not processed."""
    group = s.groups[r]
    while group.length < group.prompt_length + generate:
        s.complete(s.schedule(chunk))
        if group.num_available == 0:
            s.append(r, [7_000_000 + group.length])


def serve(
    s: Scheduler, r: str, prompt: Tokens[int], generate: int = 1, chunk: int = 0, **identity: Any
) -> Restored:
    """Serve one request to its end; return where it resumed."""
    found = start(s, r, prompt, **identity)
    run(s, r, generate, chunk)
    s.finish(r)
    return found


@pytest.mark.parametrize("multiplier", [1, 2, 8])
@pytest.mark.parametrize("beyond", [-1, 0, 1])
@pytest.mark.parametrize("times", [1, 2])
def test_a_shared_prefix_resumes_at_the_last_interval_end(
    multiplier: int, beyond: int, times: int
) -> None:
    """Measured: k * I - 1 shared tokens resume at (k - 1) * I, and k * I up to (k + 1) * I - 1
    at k * I.
    """
    s = scheduler(kv=96, multiplier=multiplier)
    interval = B * multiplier
    prompt = TEXT[: 3 * B * multiplier + 3]
    serve(s, "first", prompt)
    shared = times * interval + beyond
    assert (
        serve(s, "second", prompt[:shared] + OTHER[:9]).processed == shared // interval * interval
    )


def test_less_than_an_interval_is_not_restored_at_all() -> None:
    """Measured: I - 1 shared tokens give 0, however many KV blocks are cached."""
    s = scheduler()
    serve(s, "first", TEXT[:100])
    found = serve(s, "second", TEXT[: I - 1] + OTHER[:20])
    assert (found.cached, found.blocks) == (0, {})


@pytest.mark.parametrize("shared", [I, 2 * I - 1])
def test_from_one_interval_to_the_next_the_first_is_restored(shared: int) -> None:
    """Measured: I up to 2 * I - 1 shared tokens give I."""
    s = scheduler()
    serve(s, "first", TEXT[:100])
    assert serve(s, "second", TEXT[:shared] + OTHER[:20]).processed == I


@pytest.mark.parametrize(
    ("prompt", "generate"), [(2 * I - 2, 2), (2 * I - 2, 3), (2 * I - 2, 4), (19, 8)]
)
def test_a_finished_request_leaves_a_tail_checkpoint(prompt: int, generate: int) -> None:
    """Measured: a longer prompt of the same conversation resumes at P + G - 1, on an interval or
    not.
    """
    s = scheduler()
    start(s, "first", TEXT[:prompt])
    run(s, "first", generate)
    spoken = list(s.groups["first"].sequences[0].tokens)
    s.finish("first")
    assert serve(s, "second", spoken + OTHER[:20]).processed == prompt + generate - 1


def test_restored_is_the_largest_position_that_both_caches_hold() -> None:
    """Without the states nothing is restored; with a part of KV, the checkpoint within that
    part.
    """
    s = scheduler()
    serve(s, "first", TEXT[: 4 * I + 3])
    sequence = Sequence("probe", TEXT[: 4 * I + 3], B)
    forget(s, KV, sequence.boundary_hash(3 * I // B))
    assert start(s, "second", TEXT[: 4 * I] + OTHER[:3]).cached == 2 * I
    s.finish("second")
    for length in (I, 2 * I):
        forget(s, LA, sequence.boundary_hash(length // B))
    assert start(s, "third", TEXT[: 4 * I] + OTHER[:3]).cached == 0


def forget(s: Scheduler, kind: Any, key: BlockHash) -> None:
    """End one key, as if its idle block had been overwritten."""
    pool = s.cache.managers[kind].pool
    block = pool.find(key)
    assert block is not None
    pool._to_unused(block)


def test_a_checkpoint_needs_kv_up_to_its_very_end() -> None:
    """A tail checkpoint whose KV tail was overwritten does not count; the interval before it
    does.
    """
    s = scheduler()
    serve(s, "first", TEXT[: 2 * I + 3])
    forget(s, KV, Sequence("probe", TEXT[: 2 * I + 3], B).hash_of(Position(2 * I + 3)))
    assert start(s, "second", TEXT[: 2 * I + 3] + OTHER[:3]).cached == 2 * I


def test_the_longest_of_several_tails_is_restored() -> None:
    """Conversations that ended 1, 2 and 3 tokens into a block: the longest that fits the prompt
    is taken.
    """
    s = scheduler()
    for beyond in (1, 2, 3):
        start(s, f"r{beyond}", [*TEXT[: 2 * I], *OTHER[:beyond]])
    s.complete(s.schedule())
    for beyond in (1, 2, 3):
        s.finish(f"r{beyond}")
    assert start(s, "two", [*TEXT[: 2 * I], *OTHER[:2], 5, 6]).cached == 2 * I + 2
    assert start(s, "three", [*TEXT[: 2 * I], *OTHER[:3], 5, 6]).cached == 2 * I + 3


def test_a_tail_that_only_one_request_holds_moves_on_with_it() -> None:
    """A conversation's next turn takes the tail over and overwrites it: what ended there before
    is gone, intervals stay.
    """
    s = scheduler()
    serve(s, "first", TEXT[: 2 * I + 2])
    assert serve(s, "second", TEXT[: 2 * I + 3] + OTHER[:2]).cached == 2 * I + 2
    assert start(s, "third", TEXT[: 2 * I + 3] + OTHER[:2]).cached == 2 * I


def test_a_prompt_cached_in_full_leaves_a_token_to_compute() -> None:
    """Attention alone resumes at R - 1; a hybrid at the checkpoint before the last token, whose
    state has not taken it in.
    """
    plain = scheduler(hybrid=False)
    serve(plain, "first", TEXT[: 2 * I])
    assert (
        found := start(plain, "second", TEXT[: 2 * I])
    ).cached == 2 * I and found.processed == 2 * I - 1
    hybrid = scheduler()
    serve(hybrid, "first", TEXT[: 2 * I])
    found = start(hybrid, "second", TEXT[: 2 * I])
    assert (found.cached, found.processed) == (I, I)


def test_rewriting_the_last_token_copies_nothing() -> None:
    """Two prompts resume at R - 1 in one shared block: what they write is what it holds."""
    s = scheduler(hybrid=False)
    serve(s, "first", TEXT[: 2 * I])
    start(s, "second", TEXT[: 2 * I])
    start(s, "third", TEXT[: 2 * I])
    assert s.schedule().copies == []


def test_a_checkpoint_is_there_only_when_its_step_was_scheduled() -> None:
    """A prompt computed in chunks can be hit up to what has been scheduled, not up to its
    length.
    """
    s = scheduler()
    start(s, "first", TEXT[: 6 * I])
    s.complete(s.schedule(2 * I + 1))
    assert start(s, "second", TEXT[: 6 * I]).processed == 2 * I + 1


def test_a_batch_shares_nothing_within_itself() -> None:
    """Requests that come in together are looked up before any of them runs."""
    s = scheduler()
    for r in ("first", "second"):
        s.add_request(SequenceGroup(r, TEXT[: 3 * I], B))
    assert [found.cached for found in s.restore_new().values()] == [0, 0]


def test_earlier_checkpoints_are_held_as_far_as_they_reach_back() -> None:
    """Columns of states from the newest down to a gap; columns before it are empty."""
    s = scheduler()
    serve(s, "first", TEXT[: 4 * I + 3])
    forget(s, LA, Sequence("probe", TEXT, B).boundary_hash(2 * I // B))
    found = start(s, "second", TEXT[: 4 * I + 1] + OTHER[:5])
    assert found.cached == 4 * I
    states = found.blocks[LA]
    assert [block is None for block in states] == [True, True, False, False]
    assert len(found.blocks[KV]) == 4 * I // B


def test_prefix_caching_off_restores_nothing() -> None:
    s = scheduler(caching=False)
    serve(s, "first", TEXT[:40])
    assert start(s, "second", TEXT[:40]).cached == 0
    assert all(not manager.pool.cached for manager in s.cache.managers.values())


def test_a_running_tail_is_shared_and_copied_before_either_writes() -> None:
    """Who resumes inside another's block copies it, in both caches, in the prompt phase too; the
    other goes on as it was.
    """
    s = scheduler()
    start(s, "first", TEXT[: I + 3])
    s.complete(s.schedule())
    s.append("first", [42])
    assert start(s, "second", TEXT[: I + 3] + OTHER[:5]).processed == I + 3
    before = {kind: s.cache.table(kind, "first") for kind in (KV, LA)}
    output = s.schedule()
    assert {kind for kind, _ in output.copies} == {KV, LA} and len(output.copies) == 2
    for kind in (KV, LA):
        ours = s.cache.table(kind, "first")
        theirs = s.cache.table(kind, "second")
        assert ours[:-1] == theirs[: len(ours) - 1] and ours[-1] != theirs[len(ours) - 1]
        (copy,) = [copy for k, copy in output.copies if k is kind]
        assert copy.source == before[kind][-1] and copy.target in (ours[-1], theirs[len(ours) - 1])


def test_the_source_of_a_copy_is_not_handed_out_in_the_same_step() -> None:
    """Both sharers copy or write elsewhere and the source is freed: it stays held until the step
    has run.
    """
    s = scheduler()
    start(s, "first", TEXT[: I + 3])
    s.complete(s.schedule())
    s.append("first", [42])
    start(s, "second", TEXT[: I + 3] + OTHER[:5])
    output = s.schedule()
    s.preempt("first")
    s.preempt("second")
    sources = {kind: copy.source for kind, copy in output.copies}
    for kind, source in sources.items():
        assert s.cache.managers[kind].pool.blocks[source].references == 1
    s.complete(output)
    assert all(
        s.cache.managers[kind].pool.blocks[source].references == 0
        for kind, source in sources.items()
    )


IDENTITIES: list[dict[str, Any]] = [
    {"salt": "a"},
    {"adapter": "a"},
    {"media": (MediaItem(2, 3, "cat"),)},
    {"media": (MediaItem(2, 3, "dog"),)},
    {"media": (MediaItem(2, 4, "cat"),)},
]


def test_salt_adapter_and_media_tell_equal_tokens_apart() -> None:
    """No two of these identities share anything; each shares with itself."""
    s = scheduler(kv=256)
    for index, identity in enumerate([{}, *IDENTITIES]):
        assert serve(s, f"r{index}", TEXT[: 2 * I + 1], **identity).cached == 0
    for index, identity in enumerate([{}, *IDENTITIES]):
        assert start(s, f"s{index}", TEXT[: 2 * I + 1], **identity).cached == 2 * I


def test_what_ends_before_an_image_is_shared() -> None:
    s = scheduler()
    serve(s, "first", TEXT[: 4 * I], media=(MediaItem(2 * I + 1, 3, "cat"),))
    assert (
        start(s, "second", TEXT[: 4 * I], media=(MediaItem(2 * I + 1, 3, "dog"),)).cached == 2 * I
    )


def test_a_tail_is_not_a_block_of_fewer_tokens() -> None:
    """The digest of a tail differs from that of a full block of the same tokens, and from that
    of any other length.
    """
    whole = Sequence("a", TEXT[:8], 4)
    short = Sequence("b", TEXT[:8], 8)
    digests = {whole.hash_of(Position(n)) for n in range(1, 9)} | {short.hash_of(Position(4))}
    assert len(digests) == 9


def pool_of(count: int) -> BlockPool:
    return BlockPool(count, caching=True)


def named(pool: BlockPool, name: str) -> Any:
    """Take a block and key it."""
    block = pool.allocate(name)
    pool.register(block, BlockHash(name.encode()), None, Position(1), name)
    return block


def test_unused_blocks_go_before_cached_ones() -> None:
    pool = pool_of(3)
    pool.release(named(pool, "a"))
    assert {pool.allocate("x").block_id, pool.allocate("y").block_id} == {1, 2}
    assert pool.find(BlockHash(b"a")) is not None


def test_the_block_restored_or_overwritten_longest_ago_is_overwritten_first() -> None:
    """Not the one freed longest ago: a and b were freed in that order, but b's last use is older
    once a was restored.
    """
    pool = pool_of(2)
    a = named(pool, "a")
    b = named(pool, "b")
    pool.release(a)
    pool.share(a)
    pool.release(a)
    pool.release(b)
    assert pool.allocate("c") is b
    assert pool.find(BlockHash(b"b")) is None and pool.find(BlockHash(b"a")) is a


def test_a_held_block_keeps_its_key_and_an_idle_one_gives_way() -> None:
    """Of two blocks of the same content one is named: the held one, or the new one."""
    pool = pool_of(3)
    first = named(pool, "same")
    second = named(pool, "same")
    assert pool.find(BlockHash(b"same")) is first and second.key is None
    pool.release(first)
    third = named(pool, "same")
    assert pool.find(BlockHash(b"same")) is third and first.key is None
    assert (pool.num_free_blocks, pool.num_overwritable) == (1, 0)


def test_cached_blocks_count_as_free() -> None:
    """Usage counts live sequences alone: after the request ends, its pool is as free as before."""
    s = scheduler()
    free = [m.pool.num_free_blocks for m in s.cache.managers.values()]
    serve(s, "first", TEXT[:40])
    assert [m.pool.num_free_blocks for m in s.cache.managers.values()] == free
    assert all(m.pool.num_overwritable for m in s.cache.managers.values())


def test_a_lookup_costs_the_blocks_that_it_touches() -> None:
    """In a pool full of others' keys a look-up asks for no more keys than the prompt has blocks,
    thrice.
    """
    s = scheduler(kv=2048)
    for number in range(200):
        serve(s, f"r{number}", [number * 1000 + 5_000_000 + i for i in range(3 * I)])
    asked = 0
    original = BlockPool.find

    def counted(pool: BlockPool, key: BlockHash) -> Any:
        nonlocal asked
        asked += 1
        return original(pool, key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockPool, "find", counted)
        start(s, "probe", TEXT[: 10 * I])
    assert 0 < asked <= 3 * 10 * I // B


def test_forgetting_every_key_leaves_what_is_held() -> None:
    """Who runs goes on; nobody else is restored from what was forgotten."""
    s = scheduler()
    start(s, "first", TEXT[: 3 * I])
    s.complete(s.schedule(2 * I))
    table = s.cache.table(KV, "first")
    s.cache.clear_prefix_cache()
    assert s.cache.table(KV, "first") == table
    assert start(s, "second", TEXT[: 3 * I]).cached == 0
