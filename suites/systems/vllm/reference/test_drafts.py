"""Drafts: what is scheduled for them, what is taken back, and where the states after them go."""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness_reference.vllm.config import AbsentRule, ConfigError, build
from cachewitness_reference.vllm.kv_cache_manager import KVCacheManager
from cachewitness_reference.vllm.request import Request
from cachewitness_reference.vllm.scheduler import Scheduler, SchedulerOutput

FULL = {"kind": "full", "block_size": 4}
WINDOW = {"kind": "sliding", "block_size": 4, "window": 5}
MAMBA = {"kind": "recurrent", "block_size": 4}
PROMPT = list(range(1000, 1100))


class Planned:
    """Generates 5000, 5001 and so on; of each three drafts as many are right as planned, then
    all.
    """

    def __init__(self, *right: int) -> None:
        self.right = list(right)

    def draft(self, request: Request, count: int) -> list[int]:
        right = self.right.pop(0) if self.right else count
        return [
            5000 + request.num_output_tokens + index if index < right else 9
            for index in range(count)
        ]

    def sample(self, request: Request, drafts: list[int]) -> list[int]:
        true = [5000 + request.num_output_tokens + index for index in range(len(drafts) + 1)]
        stood = next(
            (index for index, guess in enumerate(drafts) if guess != true[index]), len(drafts)
        )
        return true[: stood + 1]


def scheduler(
    groups: list[dict[str, Any]], *right: int, num_blocks: int = 60, **options: Any
) -> Scheduler:
    config = build(
        groups, num_blocks, {"num_speculative_tokens": 3, "retention_interval": None, **options}
    )
    return Scheduler(config, KVCacheManager(config), Planned(*right))


def add(engine: Scheduler, tokens: list[int], name: str = "r") -> Request:
    request = Request(name, tokens, engine.config.hash_block_size)
    engine.add_request(request)
    return request


def step(engine: Scheduler, budget: int = 0) -> SchedulerOutput:
    output = engine.schedule(budget)
    engine.update_from_output(output)
    return output


def copies(output: SchedulerOutput) -> list[tuple[int, int]]:
    return [(copy.src_block_id, copy.dst_block_id) for copy in output.kv_cache_block_copies]


def keyed(engine: Scheduler, request: Request, group: int) -> list[int]:
    """Return the lengths of prefixes of the request under which its group has a key."""
    pool = engine.kv_cache_manager.block_pool
    size = engine.config.hash_block_size
    hashes = enumerate(request.block_hashes, start=1)
    return [size * n for n, digest in hashes if pool.get_cached_block(digest, [group])]  # type: ignore[list-item]


def test_drafts_count_as_computed_until_they_are_judged() -> None:
    """Six known, one generated: three guesses go with it, of which one stands and two are taken
    off again.
    """
    engine = scheduler([FULL], 1)
    request = add(engine, PROMPT[:6])
    assert step(engine).num_scheduled_tokens == {"r": 6}
    output = engine.schedule()
    assert output.num_scheduled_tokens == {"r": 4}
    assert output.scheduled_spec_decode_tokens == {"r": [5001, 9, 9]}
    assert request.num_computed_tokens == 10
    assert engine.update_from_output(output) == {"r": [5001, 5002]}
    assert (request.num_computed_tokens, request.num_tokens) == (8, 9)


def test_nothing_is_guessed_while_a_prompt_is_read_or_the_budget_is_spent() -> None:
    engine = scheduler([FULL])
    add(engine, PROMPT[:10])
    assert step(engine, budget=6).scheduled_spec_decode_tokens == {}
    assert step(engine, budget=6).scheduled_spec_decode_tokens == {}
    assert step(engine, budget=3).num_scheduled_tokens == {"r": 3}
    assert step(engine, budget=1).scheduled_spec_decode_tokens == {}


def test_no_draft_is_scheduled_for_the_last_place_of_the_model() -> None:
    """Of sixteen places, twelve are known and one was generated: two guesses and what follows
    them fill the rest.
    """
    engine = scheduler([FULL], max_model_len=16)
    request = add(engine, PROMPT[:12])
    step(engine)
    assert step(engine).scheduled_spec_decode_tokens == {"r": [5001, 5002]}
    assert request.num_tokens == 16 and request.status.is_finished


def test_pages_are_given_out_ahead_of_the_drafts() -> None:
    """Six tokens and three ahead take three blocks of four; one more and six ahead (drafts, and
    the drafter's) take four.
    """
    engine = scheduler([FULL], 0)
    add(engine, PROMPT[:6])
    step(engine)
    assert len(engine.kv_cache_manager.get_block_ids("r")[0]) == 3  # type: ignore[attr-defined]
    step(engine)
    assert len(engine.kv_cache_manager.get_block_ids("r")[0]) == 4  # type: ignore[attr-defined]


def test_only_what_stands_is_keyed() -> None:
    """The second block is filled by drafts: by wrong ones it gets no key, by right ones its key
    comes with the next step.
    """
    for right, lengths in ((0, [4]), (3, [4, 8])):
        engine = scheduler([FULL], right)
        request = add(engine, PROMPT[:5])
        step(engine)
        step(engine)
        assert keyed(engine, request, 0) == [4]
        step(engine)
        assert keyed(engine, request, 0) == lengths


def test_a_request_has_a_page_for_the_state_after_each_draft() -> None:
    """They are given out with its first block and given back with its last."""
    engine = scheduler([MAMBA])
    free = engine.kv_cache_manager.block_pool.get_num_free_blocks()
    add(engine, PROMPT[:4])
    step(engine)
    assert free - engine.kv_cache_manager.block_pool.get_num_free_blocks() == 1 + 3
    engine.finish_requests(["r"])
    assert engine.kv_cache_manager.block_pool.get_num_free_blocks() == free


@pytest.mark.parametrize(("right", "home"), [(0, []), (1, [0]), (2, [1])])
def test_the_state_after_the_last_draft_that_stood_is_copied_home(
    right: int, home: list[int]
) -> None:
    """Known are 5 of blocks of 4, and up to two of three guesses stand: all in the second block,
    whose page gets the state.
    """
    engine = scheduler([FULL, MAMBA], right)
    add(engine, PROMPT[:4])
    step(engine)
    step(engine)
    manager = engine.kv_cache_manager.coordinator.single_type_managers[1]  # type: ignore[attr-defined]
    scratch = [block.block_id for block in manager.speculative_blocks["r"]]
    column = engine.kv_cache_manager.get_block_ids("r")[1][1]  # type: ignore[attr-defined]
    assert copies(step(engine)) == [(scratch[index], column) for index in home]


def test_the_state_at_a_boundary_that_drafts_passed_is_copied_under_its_key() -> None:
    """Known are 7 tokens; three guesses stand, up to 10. The state at 8 is the first draft's,
    the one at 10 the third's.
    """
    engine = scheduler([FULL, MAMBA], 3)
    request = add(engine, PROMPT[:6])
    for _ in range(3):
        step(engine, budget=4)
        if request.num_output_tokens:
            break
    output = step(engine)
    assert output.num_scheduled_tokens == {"r": 4} and request.num_computed_tokens == 10
    manager = engine.kv_cache_manager.coordinator.single_type_managers[1]  # type: ignore[attr-defined]
    first, _, third = (block.block_id for block in manager.speculative_blocks["r"])
    second_column = engine.kv_cache_manager.get_block_ids("r")[1][1]  # type: ignore[attr-defined]
    output = step(engine)
    third_column = engine.kv_cache_manager.get_block_ids("r")[1][2]  # type: ignore[attr-defined]
    assert copies(output) == [(first, second_column), (third, third_column)]
    assert keyed(engine, request, 1) == [4, 8]


def test_a_request_that_is_preempted_guesses_again_from_the_start() -> None:
    engine = scheduler([FULL, MAMBA], 2)
    request = add(engine, PROMPT[:6])
    while request.num_output_tokens < 2:
        step(engine)
    engine.preempt("r")
    assert (request.num_accepted_drafts, request.spec_token_ids, request.num_computed_tokens) == (
        0,
        [],
        0,
    )
    assert step(engine).scheduled_spec_decode_tokens == {}


@pytest.mark.parametrize(
    ("groups", "options", "kind", "names"),
    [
        (
            [FULL, MAMBA],
            {"num_speculative_tokens": 4},
            ConfigError,
            "less than the recurrent block size (4)",
        ),
        ([FULL], {"num_speculative_tokens": -1}, ConfigError, "at least 0"),
        ([FULL], {"num_speculative_tokens": 2, "async_depth": 1}, AbsentRule, "in flight"),
        ([FULL], {"num_speculative_tokens": 2, "async_depth": 2}, AbsentRule, "in flight"),
        ([FULL], {"async_depth": 3}, ConfigError, "from 0 to 2"),
    ],
)
def test_what_does_not_go_together_is_refused(
    groups: list[dict[str, Any]], options: dict[str, Any], kind: type[ConfigError], names: str
) -> None:
    with pytest.raises(kind) as refusal:
        build(groups, 20, options)
    assert names in str(refusal.value) and "\n" not in str(refusal.value)
