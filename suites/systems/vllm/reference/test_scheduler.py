"""Who computes what in a step: chunk ends, admission, preemption, withdrawal, reset."""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness_reference.vllm.align_split import mamba_block_aligned_split
from cachewitness_reference.vllm.config import build
from cachewitness_reference.vllm.kv_cache_manager import KVCacheManager
from cachewitness_reference.vllm.request import Request, RequestStatus
from cachewitness_reference.vllm.scheduler import RefusedRequest, Scheduler

FULL = {"kind": "full", "block_size": 16}
MAMBA = {"kind": "recurrent", "block_size": 16}
PROMPT = list(range(1000, 1203))


class Counting:
    """Generates 5000, 5001 and so on."""

    def draft(self, request: Request, count: int) -> list[int]:
        return [5000 + request.num_output_tokens + index for index in range(count)]

    def sample(self, request: Request, drafts: list[int]) -> list[int]:
        return self.draft(request, len(drafts) + 1)


def scheduler(groups: list[dict[str, Any]], num_blocks: int = 200, **options: Any) -> Scheduler:
    config = build(groups, num_blocks, {"max_num_batched_tokens": 72, **options})
    return Scheduler(config, KVCacheManager(config), Counting())


def add(engine: Scheduler, name: str, tokens: list[int]) -> Request:
    request = Request(name, tokens, engine.config.hash_block_size)
    engine.add_request(request)
    return request


def step(engine: Scheduler, budget: int = 0) -> dict[str, int]:
    output = engine.schedule(budget)
    engine.update_from_output(output)
    return output.num_scheduled_tokens


def serve(engine: Scheduler, name: str, tokens: list[int]) -> tuple[int, int, list[int], int]:
    """Run one request up to its first token; return hit, shared-prefix boundary, chunks and
    copies.
    """
    request = add(engine, name, tokens)
    chunks: list[int] = []
    copies = 0
    while not request.num_output_tokens:
        output = engine.schedule()
        chunks.append(output.num_scheduled_tokens[name])
        copies += len(output.kv_cache_block_copies)
        engine.update_from_output(output)
    engine.finish_requests([name])
    return len(tokens) - sum(chunks), request.shared_prefix_boundary, chunks, copies


def test_chunks_end_on_block_boundaries_and_at_the_shared_prefix_boundary() -> None:
    """Seen on the real scheduler: 72 is rounded down to 64; the sibling stops exactly at the
    shared-prefix boundary.
    """
    engine = scheduler([FULL, MAMBA])
    assert serve(engine, "cold", PROMPT) == (0, 0, [64, 64, 64, 11], 0)
    assert serve(engine, "replay", PROMPT) == (192, 0, [11], 0)
    assert serve(engine, "first", PROMPT[:100] + [1] * 41) == (0, 96, [64, 32, 32, 13], 0)
    assert serve(engine, "second", PROMPT[:100] + [2] * 41)[0] == 96


def test_with_finer_hashes_the_prompt_stops_at_its_tail_and_a_replay_copies_one_block_per_group() -> (  # noqa: E501
    None
):
    engine = scheduler([FULL, MAMBA], hash_block_size=4)
    assert serve(engine, "cold", PROMPT) == (0, 0, [64, 64, 64, 8, 3], 1)
    assert serve(engine, "replay", PROMPT) == (200, 0, [3], 2)


def split(start: int, tokens: int, **changes: Any) -> int:
    defaults: dict[str, Any] = {
        "num_prompt_tokens": 100,
        "num_tokens": 100,
        "block_size": 16,
        "hash_block_size": 16,
        "partial_hits": False,
        "use_eagle": False,
        "shared_prefix_boundary": 0,
        "max_prefill_tokens": 64,
    }
    return mamba_block_aligned_split(start, tokens, **(defaults | changes))


@pytest.mark.parametrize(
    ("start", "tokens", "changes", "expected"),
    [
        (0, 50, {}, 48),
        (0, 10, {}, 0),
        (0, 100, {}, 96),
        (96, 4, {}, 4),
        (100, 1, {"num_tokens": 101}, 1),
        (0, 96, {"num_prompt_tokens": 96, "num_tokens": 96}, 80),
        (0, 100, {"use_eagle": True}, 80),
        (20, 40, {}, 12),
        (0, 64, {"shared_prefix_boundary": 40}, 32),
        (0, 10, {"block_size": 128}, 10),
        (96, 4, {"partial_hits": True, "hash_block_size": 2}, 2),
        (0, 120, {"num_tokens": 130, "max_prefill_tokens": 200}, 112),
    ],
)
def test_chunk_ends(start: int, tokens: int, changes: dict[str, Any], expected: int) -> None:
    """In order: floored; put off; last boundary; rest; decode; resend; EAGLE; re-align; shared
    prefix; wide; tail; resumed.
    """
    assert split(start, tokens, **changes) == expected


def test_running_requests_come_first_and_share_the_budget() -> None:
    engine = scheduler([FULL], max_num_batched_tokens=40)
    add(engine, "r", PROMPT[:30])
    add(engine, "s", PROMPT[100:150])
    assert step(engine) == {"r": 30, "s": 10}
    assert step(engine) == {"r": 1, "s": 39}
    assert step(engine, budget=1) == {"r": 1}


def test_no_more_requests_run_than_max_num_seqs() -> None:
    engine = scheduler([FULL], max_num_seqs=1)
    add(engine, "r", PROMPT[:10])
    add(engine, "s", PROMPT[20:30])
    assert step(engine) == {"r": 10}
    engine.finish_requests(["r"], RequestStatus.ABORTED)
    assert step(engine) == {"s": 10}


def test_a_request_is_admitted_only_if_all_of_it_fits() -> None:
    """Ten blocks: the first holds four, the second needs seven in the end, two for its first
    chunk.
    """
    for reserve, admitted in ((True, False), (False, True)):
        engine = scheduler([FULL], num_blocks=11, scheduler_reserve_full_isl=reserve)
        add(engine, "r", PROMPT[:60])
        step(engine)
        add(engine, "s", PROMPT[90:200])
        assert ("s" in step(engine, budget=30)) is admitted


def test_the_watermark_keeps_blocks_free_when_a_request_joins_others() -> None:
    """Ten of twenty blocks stay free: nine are, once the second is in."""
    for watermark, admitted in ((0.5, False), (0.0, True)):
        engine = scheduler([FULL], num_blocks=20, watermark=watermark)
        add(engine, "r", PROMPT[:60])
        assert step(engine) == {"r": 60}, "alone, the watermark does not apply"
        add(engine, "s", PROMPT[100:190])
        assert ("s" in step(engine)) is admitted


def test_the_request_that_came_last_is_preempted_and_computes_again() -> None:
    """Five blocks: two for the first, three for the second, until the first needs a third."""
    engine = scheduler([FULL], num_blocks=6, max_num_batched_tokens=100)
    add(engine, "r", PROMPT[:32])
    second = add(engine, "s", PROMPT[100:147])
    assert step(engine) == {"r": 32, "s": 47}
    output = engine.schedule()
    engine.update_from_output(output)
    assert (output.preempted_req_ids, output.num_scheduled_tokens) == (["s"], {"r": 1})
    assert second.status is RequestStatus.PREEMPTED and second.num_computed_tokens == 0
    assert step(engine) == {"r": 1}, "it does not fit beside the first"
    engine.finish_requests(["r"])
    assert step(engine) == {"s": 16}, (
        "what it generated counts, and two of its blocks are still cached"
    )
    assert second.num_output_tokens == 2


def test_a_withdrawn_request_waits_in_front_and_its_keys_are_gone() -> None:
    engine = scheduler([FULL, MAMBA])
    request = add(engine, "r", PROMPT[:64])
    other = add(engine, "s", PROMPT[100:108])
    output = engine.schedule()
    assert output.num_scheduled_tokens == {"r": 48, "s": 8}
    assert engine.withdraw(output, ["r"]) == ["r"]
    assert output.num_scheduled_tokens == {"s": 8}
    assert list(engine.waiting) == [request] and engine.running == [other]
    assert engine.kv_cache_manager.get_computed_blocks(request)[1] == 0
    engine.update_from_output(output)
    assert step(engine) == {"s": 1, "r": 48}


def test_reset_fails_while_somebody_runs_unless_they_are_preempted() -> None:
    engine = scheduler([FULL])
    first = add(engine, "r", PROMPT[:64])
    second = add(engine, "s", PROMPT[64:72])
    step(engine)
    assert engine.reset_prefix_cache() is False
    assert engine.reset_prefix_cache(reset_running_requests=True) is True
    assert list(engine.waiting) == [first, second], "in their old order"
    assert step(engine) == {"r": 65, "s": 7}


def test_new_weights_end_every_key() -> None:
    engine = scheduler([FULL])
    serve(engine, "cold", PROMPT[:65])
    engine.update_weights()
    assert serve(engine, "again", PROMPT[:65])[0] == 0


def test_keys_outlive_an_abort() -> None:
    engine = scheduler([FULL])
    add(engine, "r", PROMPT[:65])
    step(engine)
    engine.finish_requests(["r"], RequestStatus.ABORTED)
    assert serve(engine, "again", PROMPT[:65])[0] == 64


def test_requests_that_can_never_run_are_refused() -> None:
    engine = scheduler([FULL], max_model_len=64)
    with pytest.raises(RefusedRequest, match="max_model_len"):
        add(engine, "r", PROMPT[:64])
    add(engine, "s", PROMPT[:10])
    with pytest.raises(RefusedRequest, match="already"):
        add(engine, "s", PROMPT[:10])
    with pytest.raises(RefusedRequest, match="not running"):
        engine.preempt("s")


def test_a_request_ends_at_max_model_len() -> None:
    engine = scheduler([FULL], max_model_len=20)
    request = add(engine, "r", PROMPT[:17])
    for _ in range(3):
        step(engine)
    assert request.status is RequestStatus.FINISHED and request.num_tokens == 20
    assert engine.kv_cache_manager.reset_prefix_cache()


def test_mode_none_runs_without_keys() -> None:
    engine = scheduler([FULL, MAMBA], mamba_cache_mode="none", enable_caching=False)
    assert serve(engine, "r", PROMPT)[2] == [72, 72, 59]
    assert serve(engine, "s", PROMPT)[0] == 0


def test_mode_all_has_a_state_at_every_boundary() -> None:
    engine = scheduler([FULL, MAMBA], mamba_cache_mode="all", release="0.25")
    assert serve(engine, "r", PROMPT)[2] == [72, 72, 59]
    assert serve(engine, "s", PROMPT[:100] + [1] * 9)[0] == 96
