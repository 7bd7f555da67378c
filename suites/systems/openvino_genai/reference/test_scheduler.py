"""Who runs, who waits, who gives way, who is dropped; forks; and a cache that grows."""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness_reference.openvino_genai.config import SchedulerConfig
from cachewitness_reference.openvino_genai.orchestrator import KV, LA
from cachewitness_reference.openvino_genai.scheduler import Scheduler, SchedulerOutput
from cachewitness_reference.openvino_genai.sequence import SequenceGroup, Status
from cachewitness_reference.openvino_genai.sizing import LayoutBytes, derive

UNLIMITED = 18446744073709551615
B = 32
LAYOUT = LayoutBytes(kv_block_bytes=32768, la_block_bytes=73728, kv_block_size=B)
PREFIX = {"enable_prefix_caching": True, "cache_interval_multiplier": 8}


def scheduler(version: str = "2026.4", **settings: Any) -> Scheduler:
    config = SchedulerConfig(**settings)
    return Scheduler(config, derive(config, LAYOUT, version), B, hybrid=True, version=version)


def add(s: Scheduler, r: str, prompt: int, **settings: Any) -> SequenceGroup:
    """Submit a prompt of so many tokens, unlike that of any other request."""
    first = (len(s.groups) + 1) * 1_000_000
    group = SequenceGroup(r, range(first, first + prompt), B, **settings)
    s.add_request(group)
    return group


def step(s: Scheduler, max_tokens: int = 0) -> SchedulerOutput:
    """Run one step; whoever is done with what it knows samples a token."""
    output = s.schedule(max_tokens)
    s.complete(output)
    for r in output.scheduled:
        group = s.groups[r]
        if group.num_available == 0:
            s.append(r, [group.length + 7 * index for index, _ in enumerate(group.sequences)])
    return output


def serve(s: Scheduler, limits: dict[str, int], steps: int = 200) -> dict[str, int]:
    """Run until every request has generated its tokens; return the step of each one's first
    token, counted from 1.
    """
    first: dict[str, int] = {}
    for number in range(1, steps):
        for r in step(s).scheduled:
            group = s.groups[r]
            if group.length > group.prompt_length:
                first.setdefault(r, number)
            if group.length - group.prompt_length == limits[r]:
                s.finish(r)
        if not s.groups:
            return first
    raise AssertionError("requests are left over")


def test_generation_comes_first_then_prompts_in_order_within_the_budget() -> None:
    s = scheduler(num_kv_blocks=64, max_num_batched_tokens=100)
    add(s, "a", 10)
    step(s)
    add(s, "b", 80)
    add(s, "c", 80)
    assert step(s).scheduled == {"a": 1, "b": 80, "c": 19}
    assert step(s).scheduled == {"a": 1, "b": 1, "c": 61}


@pytest.mark.parametrize(
    ("batch", "steps"), [(1, 300), (100, 3), (256, 2), (300, 1), (UNLIMITED, 1)]
)
def test_a_prompt_of_any_length_takes_as_many_steps_as_its_chunks(batch: int, steps: int) -> None:
    s = scheduler(num_kv_blocks=64, max_num_batched_tokens=batch, max_num_seqs=4)
    add(s, "a", 300)
    assert serve(s, {"a": 1}, 1000) == {"a": steps}


def test_max_num_seqs_does_not_bound_a_split_fuse_batch() -> None:
    """Measured: max_num_seqs = 2 with prefix caching, or with 8 states, runs four requests at
    once.
    """
    for settings in (PREFIX, {"num_linear_attention_blocks": 8}):
        s = scheduler(num_kv_blocks=128, max_num_seqs=2, **settings)
        for r in "abcd":
            add(s, r, 20)
        assert len(step(s).scheduled) == 4


def test_the_pool_of_states_bounds_concurrency_without_prefix_caching() -> None:
    """With max_num_seqs = 2, and so two states, two of four requests run."""
    s = scheduler(num_kv_blocks=128, max_num_seqs=2)
    for r in "abcd":
        add(s, r, 20)
    assert list(step(s).scheduled) == ["a", "b"]
    s.finish("a")
    assert list(step(s).scheduled) == ["b", "c"]


def test_client_mode_serves_one_request_after_another_and_never_grows() -> None:
    """Measured: one state, three requests of five tokens: first tokens in steps 1, 6 and 11."""
    s = scheduler(num_kv_blocks=64, max_num_batched_tokens=UNLIMITED)
    for r in "abc":
        add(s, r, 40)
    assert serve(s, dict.fromkeys("abc", 5)) == {"a": 1, "b": 6, "c": 11}
    assert s.cache.managers[LA].pool.num_blocks == 1


@pytest.mark.parametrize("prompt", [1, 32, 1000])
def test_without_prefix_caching_a_sequence_has_one_state_whatever_its_length(prompt: int) -> None:
    s = scheduler(num_kv_blocks=64, max_num_seqs=3)
    add(s, "a", prompt)
    for _ in range(6):
        step(s)
    assert len(s.cache.table(LA, "a")) == 1
    assert s.cache.managers[LA].pool.num_free_blocks == 2
    assert len(s.cache.table(KV, "a")) == -(-s.groups["a"].num_processed // B)


@pytest.mark.parametrize("prompt", [255, 256, 257, 600])
def test_with_prefix_caching_a_state_stays_at_every_interval(prompt: int) -> None:
    """ceil(tokens / 256) columns of states; inside an interval the same block is written again."""
    s = scheduler(num_kv_blocks=64, max_num_batched_tokens=100, **PREFIX)
    add(s, "a", prompt)
    seen: list[int | None] = []
    for _ in range(10):
        step(s)
        table = s.cache.table(LA, "a")
        assert table[: len(seen)] == seen
        assert len(table) == -(-s.groups["a"].num_processed // 256)
        seen = list(table)


def test_a_prompt_is_cut_to_the_pages_that_both_pools_have() -> None:
    """Eight KV blocks hold 256 tokens: of 300, no more are admitted; with one state of 128
    tokens, 128.
    """
    s = scheduler(num_kv_blocks=8, max_num_batched_tokens=1000, max_num_seqs=2)
    add(s, "a", 300)
    assert step(s).scheduled == {"a": 256}
    s = scheduler(
        num_kv_blocks=8,
        num_linear_attention_blocks=1,
        enable_prefix_caching=True,
        cache_interval_multiplier=4,
    )
    add(s, "a", 300)
    assert step(s).scheduled == {"a": 128}


def test_if_nothing_fits_every_request_is_dropped() -> None:
    """OUT_OF_MEMORY: the status is IGNORED and the pools are free again."""
    s = scheduler(num_kv_blocks=8, max_num_batched_tokens=1000, max_num_seqs=2)
    groups = [add(s, "a", 300), add(s, "b", 20)]
    step(s)
    output = step(s)
    assert (output.scheduled, output.dropped, s.groups) == ({}, ["a", "b"], {})
    assert [group.status for group in groups] == [Status.IGNORED] * 2
    assert all(m.pool.num_free_blocks == m.pool.num_blocks for m in s.cache.managers.values())


def test_a_batch_of_no_tokens_drops_what_it_is_given() -> None:
    """Measured: max_num_batched_tokens = 0 is no error; the request is ignored."""
    s = scheduler(num_kv_blocks=8, max_num_batched_tokens=0)
    add(s, "a", 10)
    assert s.schedule().dropped == ["a"]


def test_the_last_request_gives_way_in_part_to_the_last_checkpoint_that_it_holds() -> None:
    """A hybrid goes back to an interval end: KV and states are released to there, and it
    computes on from there.
    """
    s = scheduler(
        num_kv_blocks=24,
        max_num_batched_tokens=1000,
        enable_prefix_caching=True,
        cache_interval_multiplier=2,
    )
    add(s, "a", 6 * B)
    b = add(s, "b", 17 * B + 5)
    step(s)
    assert s.cache.managers[KV].pool.num_free_blocks == 0
    output = step(s)
    assert (output.rolled_back, output.preempted, b.num_processed) == (["b"], [], 16 * B)
    assert (len(s.cache.table(KV, "b")), len(s.cache.table(LA, "b"))) == (16, 8)
    assert list(output.scheduled) == ["a"]
    s.finish("a")
    assert step(s).scheduled == {"b": b.length - 1 - 16 * B}


def test_without_prefix_caching_a_hybrid_gives_way_in_full() -> None:
    """Its only state is its latest, and cannot be set back."""
    s = scheduler(num_kv_blocks=24, max_num_batched_tokens=1000, max_num_seqs=4)
    add(s, "a", 6 * B)
    b = add(s, "b", 17 * B + 5)
    step(s)
    output = step(s)
    assert (output.rolled_back, output.preempted, b.num_processed) == ([], ["b"], 0)
    assert s.cache.table(LA, "b") == []


def test_attention_alone_gives_way_block_by_block() -> None:
    """One block is missing, one is released: the victim goes on 5 tokens before where it was."""
    config = SchedulerConfig(
        num_kv_blocks=24, max_num_batched_tokens=1000, enable_prefix_caching=True
    )
    s = Scheduler(config, derive(config, LayoutBytes(32768)), B, hybrid=False)
    add(s, "a", 6 * B)
    b = add(s, "b", 17 * B + 5)
    step(s)
    output = step(s)
    assert (output.rolled_back, b.num_processed) == (["b"], 17 * B)


def test_nobody_gives_way_to_a_request_that_came_later() -> None:
    """The last request waits for a block; it takes none from the one before it."""
    s = scheduler(num_kv_blocks=4, max_num_batched_tokens=1000, max_num_seqs=4)
    add(s, "a", 2 * B - 8)
    add(s, "b", 2 * B)
    step(s)
    assert list(step(s).scheduled) == ["a"]


def test_a_preempted_request_waits_a_step_and_computes_again_what_it_generated() -> None:
    s = scheduler(num_kv_blocks=6, max_num_batched_tokens=1000, max_num_seqs=4)
    add(s, "a", 3 * B - 2)
    b = add(s, "b", 2 * B)
    for _ in range(3):
        step(s)
    assert len(s.cache.table(KV, "a")) == 3
    while not (output := step(s)).preempted:
        pass
    assert output.preempted == ["b"] and "b" not in output.scheduled
    known = b.length
    s.finish("a")
    assert step(s).scheduled == {"b": known}


def test_a_request_preempted_in_full_is_looked_up_again() -> None:
    """Its own blocks are still keyed: it goes on at its last checkpoint before its last known
    token.
    """
    s = scheduler(
        num_kv_blocks=24,
        max_num_batched_tokens=1000,
        enable_prefix_caching=True,
        cache_interval_multiplier=2,
    )
    group = add(s, "a", 5 * B)
    step(s)
    step(s)
    s.preempt("a")
    assert s.restore_new()["a"].cached == 5 * B + 1 == group.length - 1


def test_vllm_mode_computes_prompts_whole_and_generates_in_steps_without_them() -> None:
    s = scheduler(
        num_kv_blocks=64, max_num_batched_tokens=100, max_num_seqs=8, dynamic_split_fuse=False
    )
    for r, prompt in (("a", 60), ("b", 60), ("c", 30)):
        add(s, r, prompt)
    assert step(s).scheduled == {"a": 60}
    assert step(s).scheduled == {"b": 60, "c": 30}
    assert step(s).scheduled == {"a": 1, "b": 1, "c": 1}


def test_vllm_mode_admits_max_num_seqs() -> None:
    s = scheduler(
        num_kv_blocks=64,
        max_num_batched_tokens=100,
        max_num_seqs=2,
        num_linear_attention_blocks=8,
        dynamic_split_fuse=False,
    )
    for r in "abc":
        add(s, r, 10)
    assert step(s).scheduled == {"a": 10, "b": 10}
    assert step(s).scheduled == {"a": 1, "b": 1}


def test_a_fork_shares_every_block_and_copies_the_last_one_before_it_is_written() -> None:
    """Of two sequences one copies the tail, in both caches; the other goes on in place. Together
    they free everything.
    """
    s = scheduler(num_kv_blocks=64, max_num_batched_tokens=1000, **PREFIX)
    group = add(s, "a", 2 * B + 3)
    step(s)
    s.fork("a", "a:1")
    assert s.cache.table(KV, "a") == s.cache.table(KV, "a:1") and s.cache.table(
        LA, "a"
    ) == s.cache.table(LA, "a:1")
    for child, token in zip(group.sequences, (5, 6), strict=True):
        child.tokens[-1] = token
    output = step(s)
    assert sorted(kind.value for kind, _ in output.copies) == ["kv", "la"]
    assert output.num_tokens == 2
    for kind in (KV, LA):
        ours = s.cache.table(kind, "a")
        theirs = s.cache.table(kind, "a:1")
        assert ours[:-1] == theirs[:-1] and ours[-1] != theirs[-1]
    assert not step(s).copies
    s.finish("a")
    assert all(
        m.pool.num_free_blocks == m.pool.num_blocks and not m.tables
        for m in s.cache.managers.values()
    )


def test_a_fork_on_a_block_boundary_copies_nothing() -> None:
    """The next token of either lies in a new block, and so does its state."""
    s = scheduler(
        num_kv_blocks=64,
        max_num_batched_tokens=1000,
        enable_prefix_caching=True,
        cache_interval_multiplier=1,
    )
    add(s, "a", 2 * B)
    step(s)
    s.fork("a", "a:1")
    assert step(s).copies == []
    assert s.cache.table(KV, "a")[-1] != s.cache.table(KV, "a:1")[-1]


def test_forks_of_fixed_states_copy_their_one_block() -> None:
    s = scheduler(num_kv_blocks=64, max_num_batched_tokens=1000, max_num_seqs=4)
    add(s, "a", 2 * B)
    step(s)
    for child in ("a:1", "a:2"):
        s.fork("a", child)
    assert [kind for kind, _ in step(s).copies] == [LA, LA]
    assert len({s.cache.table(LA, r)[0] for r in ("a", "a:1", "a:2")}) == 3


def test_the_first_state_is_zeroed_and_only_that() -> None:
    s = scheduler(num_kv_blocks=64, max_num_batched_tokens=300, **PREFIX)
    add(s, "a", 600)
    assert [step(s).zeros for _ in range(3)] == [[0], [], []]


@pytest.mark.parametrize(
    ("prompt", "generated", "kv", "states"), [(40, 2, 2, 1), (40, 300, 3, 1), (1000, 2, 32, 4)]
)
def test_a_dynamic_cache_starts_with_room_for_its_first_requests(
    prompt: int, generated: int, kv: int, states: int
) -> None:
    """Measured with prefix caching and a multiplier of 8."""
    s = scheduler(**PREFIX)
    add(s, "a", prompt, max_new_tokens=generated)
    step(s)
    assert [m.pool.num_blocks for m in s.cache.managers.values()] == [kv, states]


def test_a_dynamic_cache_grows_by_256_tokens_when_it_is_full() -> None:
    """Measured: 3 KV blocks become 11 and one state two, when the 97th token comes."""
    s = scheduler(**PREFIX)
    group = add(s, "a", 40, max_new_tokens=300)
    while group.num_processed < 96:
        step(s)
    sizes = [m.pool.num_blocks for m in s.cache.managers.values()]
    step(s)
    assert (sizes, [m.pool.num_blocks for m in s.cache.managers.values()]) == ([3, 1], [11, 2])


def test_a_dynamic_cache_makes_room_for_a_new_prompt_beside_those_that_run() -> None:
    """The targets of all active requests together, in one go: 80 and 1 002 tokens are 3 + 32 KV
    blocks and 1 + 4 states.
    """
    s = scheduler(**PREFIX)
    add(s, "a", 40, max_new_tokens=300)
    step(s)
    add(s, "b", 1000, max_new_tokens=2)
    step(s)
    assert [m.pool.num_blocks for m in s.cache.managers.values()] == [35, 5]


def test_a_dynamic_cache_without_prefix_caching_has_a_state_for_every_sequence() -> None:
    """Two requests, one of them with three return sequences: four states; a fifth when another
    request comes.
    """
    s = scheduler()
    add(s, "a", 40)
    add(s, "b", 40, num_sequences=3)
    step(s)
    assert s.cache.managers[LA].pool.num_blocks == 4
    for number in range(3):
        add(s, f"c{number}", 40)
    step(s)
    assert s.cache.managers[LA].pool.num_blocks == 5


@pytest.mark.parametrize(("version", "states"), [("2026.4", 20), ("2026.3", 21), ("2026.2", 21)])
def test_explicit_states_of_a_dynamic_cache_by_release(version: str, states: int) -> None:
    """Measured on 2026.4: 20 stay 20; the sources before it add one for the sequence."""
    s = scheduler(version, num_linear_attention_blocks=20)
    add(s, "a", 40)
    step(s)
    assert s.cache.managers[LA].pool.num_blocks == states


def test_explicit_sizes_never_grow() -> None:
    """However many requests come, and however long they get."""
    s = scheduler(num_kv_blocks=16, max_num_seqs=2)
    for r in "abcd":
        add(s, r, 100)
    for _ in range(40):
        step(s)
    assert [m.pool.num_blocks for m in s.cache.managers.values()] == [16, 2]


def test_any_chunking_leaves_the_same_checkpoints() -> None:
    """Prompts of 600 tokens in steps of 1, 100 or 600: the same intervals can be restored, and
    the same tail.
    """
    found = set()
    for budget in (1, 100, 600):
        s = scheduler(num_kv_blocks=64, max_num_batched_tokens=budget, **PREFIX)
        add(s, "a", 600)
        while s.groups["a"].num_available != 0 and s.groups["a"].length == 600:
            step(s)
        keys = s.cache.managers[LA].pool.cached.values()
        found.add(tuple(sorted(block.content_length for block in keys)))
    assert found == {(256, 512, 600)}
