"""A step that is scheduled while one or two are in flight: placeholders, what is given back
when, stale output.
"""

from __future__ import annotations

from typing import Any

from cachewitness_reference.vllm.config import build
from cachewitness_reference.vllm.kv_cache_manager import KVCacheManager
from cachewitness_reference.vllm.request import Request, RequestStatus
from cachewitness_reference.vllm.scheduler import Scheduler
from suites.support.counting import Counting

FULL = {"kind": "full", "block_size": 4}
WINDOW = {"kind": "sliding", "block_size": 4, "window": 4}
PROMPT = list(range(1000, 1100))


def scheduler(groups: list[dict[str, Any]], num_blocks: int = 60, **options: Any) -> Scheduler:
    config = build(groups, num_blocks, {"async_depth": 1, **options})
    return Scheduler(config, KVCacheManager(config), Counting())


def add(engine: Scheduler, tokens: list[int], name: str = "r") -> Request:
    request = Request(name, tokens, engine.config.hash_block_size)
    engine.add_request(request)
    return request


def test_a_token_is_scheduled_before_it_is_known() -> None:
    """The second step goes one token past the prompt, and what it is comes with the first one's
    end.
    """
    engine = scheduler([FULL])
    request = add(engine, PROMPT[:6])
    first = engine.schedule()
    second = engine.schedule()
    assert (first.num_scheduled_tokens, second.num_scheduled_tokens) == ({"r": 6}, {"r": 1})
    assert (request.num_tokens, request.num_computed_tokens, request.num_output_placeholders) == (
        6,
        7,
        2,
    )
    assert engine.update_from_output(first) == {"r": [5000]}
    assert engine.update_from_output(second) == {"r": [5001]}
    assert (request.num_tokens, request.num_computed_tokens, request.num_output_placeholders) == (
        8,
        7,
        0,
    )


def test_a_block_is_keyed_when_its_last_token_is_known() -> None:
    """The fourth token is generated in the first step and computed in the second, scheduled
    before.
    """
    engine = scheduler([FULL])
    request = add(engine, PROMPT[:3])
    first = engine.schedule()
    second = engine.schedule()
    lengths = []
    for output in (first, second):
        engine.update_from_output(output)
        lengths.append(
            bool(engine.kv_cache_manager.block_pool.get_cached_block(request.block_hashes[0], [0]))
        )  # type: ignore[list-item]
        engine.schedule()
    assert lengths == [False, True]


def test_what_a_step_in_flight_reads_is_not_given_back() -> None:
    """Windows of four: token 8 reads no block but the third, while the step that computes 4 to 7
    still reads the first.
    """
    engine = scheduler([WINDOW], max_num_batched_tokens=4)
    add(engine, PROMPT[:12])
    table = engine.kv_cache_manager.get_block_ids  # type: ignore[attr-defined]
    engine.update_from_output(engine.schedule())
    in_flight = engine.schedule()
    last = engine.schedule()
    assert [block != 0 for block in table("r")[0]] == [True, True, True]
    engine.update_from_output(in_flight)
    engine.update_from_output(last)
    engine.schedule()
    assert [block != 0 for block in table("r")[0]] == [False, False, True, True]


def test_output_of_a_step_that_a_request_did_not_outlive_is_dropped() -> None:
    """Preempted, come back and aborted while steps are in flight: nothing of theirs is appended,
    nothing is lost.
    """
    engine = scheduler([FULL])
    request = add(engine, PROMPT[:6])
    first = engine.schedule()
    engine.preempt("r")
    again = engine.schedule()
    assert again.num_scheduled_tokens == {"r": 2}, "four are cached"
    assert engine.update_from_output(first) == {}
    assert (request.num_tokens, request.num_in_flight_tokens) == (6, 2)
    assert engine.update_from_output(again) == {"r": [5000]}
    last = engine.schedule()
    engine.finish_requests(["r"], RequestStatus.ABORTED)
    assert engine.update_from_output(last) == {}
    assert engine.kv_cache_manager.reset_prefix_cache()


def test_nothing_is_scheduled_past_the_model_s_length() -> None:
    """Seven of eight are known and the eighth is on its way: there is no ninth to compute."""
    engine = scheduler([FULL], max_model_len=8)
    request = add(engine, PROMPT[:7])
    first = engine.schedule()
    second = engine.schedule()
    assert second.num_scheduled_tokens == {}
    engine.update_from_output(first)
    engine.update_from_output(second)
    assert request.status is RequestStatus.FINISHED and request.num_tokens == 8


def test_a_third_step_is_scheduled_before_the_first_has_ended() -> None:
    """Two stages: two tokens past the prompt are computed before either is known; they come in
    order.
    """
    engine = scheduler([FULL], async_depth=2)
    request = add(engine, PROMPT[:6])
    steps = [engine.schedule() for _ in range(3)]
    assert [step.num_scheduled_tokens for step in steps] == [{"r": 6}, {"r": 1}, {"r": 1}]
    assert (request.num_tokens, request.num_computed_tokens, request.num_output_placeholders) == (
        6,
        8,
        3,
    )
    assert request.num_in_flight_tokens == 8
    assert [engine.update_from_output(step) for step in steps] == [
        {"r": [5000]},
        {"r": [5001]},
        {"r": [5002]},
    ]
    assert (request.num_tokens, request.num_computed_tokens, request.num_output_placeholders) == (
        9,
        8,
        0,
    )
    assert request.num_in_flight_tokens == 0


def test_what_the_older_of_two_steps_in_flight_reads_is_not_given_back() -> None:
    """Windows of four: the next query reads the fourth block and the third; each step in flight
    holds one block more.
    """
    engine = scheduler([WINDOW], max_num_batched_tokens=4, async_depth=2)
    add(engine, PROMPT[:20])
    table = engine.kv_cache_manager.get_block_ids  # type: ignore[attr-defined]
    older = engine.schedule()
    newer = engine.schedule()
    engine.update_from_output(older)
    newest = engine.schedule()
    engine.schedule()
    assert [block != 0 for block in table("r")[0]] == [
        True,
        True,
        True,
        True,
    ], "the step that computes 4 to 7 still reads the first"
    engine.update_from_output(newer)
    engine.schedule()
    assert [block != 0 for block in table("r")[0]] == [False, True, True, True, True]
    engine.update_from_output(newest)


def test_output_of_two_steps_that_a_request_did_not_outlive_is_dropped() -> None:
    """Preempted beside two steps, come back beside the same two: what they generate is dropped,
    and computed again.
    """
    engine = scheduler([FULL], async_depth=2)
    request = add(engine, PROMPT[:6])
    stale = [engine.schedule(), engine.schedule()]
    engine.preempt("r")
    again = engine.schedule()
    assert again.num_scheduled_tokens == {"r": 2}, "four are cached"
    assert [engine.update_from_output(step) for step in stale] == [{}, {}]
    assert (request.num_tokens, request.num_in_flight_tokens, request.num_output_placeholders) == (
        6,
        2,
        1,
    )
    assert engine.update_from_output(again) == {"r": [5000]}


def test_nothing_is_scheduled_past_the_model_s_length_beside_two_steps() -> None:
    """Six of eight are known and two are on their way: the third step computes nothing."""
    engine = scheduler([FULL], max_model_len=8, async_depth=2)
    request = add(engine, PROMPT[:6])
    steps = [engine.schedule() for _ in range(3)]
    assert [step.num_scheduled_tokens for step in steps] == [{"r": 6}, {"r": 1}, {}]
    for step in steps:
        engine.update_from_output(step)
    assert request.status is RequestStatus.FINISHED and request.num_tokens == 8
