"""Copies from and to the second tier that take time: who waits, who holds what until when, what
a failure leaves.
"""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness_reference.vllm.config import ConfigError
from cachewitness_reference.vllm.request import Request, RequestStatus
from cachewitness_reference.vllm.scheduler import SchedulerOutput
from cachewitness_reference.vllm_extended.assemble import get_kv_cache_manager, get_scheduler
from cachewitness_reference.vllm_extended.config import build
from cachewitness_reference.vllm_extended.loading_scheduler import (
    LoadingScheduler,
    TransferMetadata,
)
from cachewitness_reference.vllm_extended.slow_tier import Transfer
from cachewitness_reference.vllm_extended.tiered_manager import TieredManager
from suites.support.counting import Counting

FULL = {"kind": "full", "block_size": 4}
MAMBA = {"kind": "recurrent", "block_size": 4}
PROMPT = list(range(1000, 1100))
DELAY = 2


def scheduler(
    groups: list[dict[str, Any]], num_blocks: int = 60, **options: Any
) -> LoadingScheduler:
    config = build(groups, num_blocks, {"tier_pages": 40, "tier_delay": DELAY, **options})
    manager = get_kv_cache_manager(config)
    assert isinstance(manager, TieredManager)
    engine = get_scheduler(config, manager, Counting())
    assert isinstance(engine, LoadingScheduler)
    return engine


def step(engine: LoadingScheduler, *failing: int) -> SchedulerOutput:
    output = engine.schedule()
    engine.build_connector_meta(output, failing)
    engine.update_from_output(output)
    return output


def begun(output: SchedulerOutput) -> list[Transfer]:
    """Return the transfers that began with a step."""
    assert isinstance(output.kv_connector_metadata, TransferMetadata)
    return list(output.kv_connector_metadata.begun)


def ended(output: SchedulerOutput) -> list[Transfer]:
    """Return the transfers that were over when a step had run."""
    assert isinstance(output.kv_connector_metadata, TransferMetadata)
    return list(output.kv_connector_metadata.ended)


def ask(engine: LoadingScheduler, name: str, tokens: list[int]) -> Request:
    request = Request(name, tokens, engine.config.hash_block_size)
    engine.add_request(request)
    return request


def kept_aside(engine: LoadingScheduler, tokens: list[int], name: str = "cold") -> None:
    """Compute a prompt, let it be stored, and lose it on the device."""
    ask(engine, name, tokens)
    step(engine)
    engine.finish_requests([name])
    while engine.transfers:
        engine.update_from_output(engine.idle())
    assert engine.reset_prefix_cache()


def free(engine: LoadingScheduler) -> int:
    return engine.kv_cache_manager.block_pool.get_num_free_blocks()


def test_a_request_waits_for_its_loads_while_others_run() -> None:
    """Two steps after it came it goes on behind its hit of eight tokens; somebody else computed
    all the while.
    """
    engine = scheduler([FULL])
    kept_aside(engine, PROMPT[:10])
    warm = ask(engine, "warm", PROMPT[:10])
    other = ask(engine, "other", PROMPT[50:55])
    ran = [step(engine).num_scheduled_tokens for _ in range(3)]
    assert ran == [{"other": 5}, {"other": 1}, {"other": 1, "warm": 2}]
    assert (warm.num_tokens, other.num_tokens) == (11, 8)


def test_nothing_is_keyed_before_it_has_arrived() -> None:
    """A store is found when it has ended, a loaded block is hit on the device from its end on,
    and not a step before.
    """
    engine = scheduler([FULL])
    kept_aside(engine, PROMPT[:10])
    ask(engine, "warm", PROMPT[:10])
    assert [
        len(begun(step(engine))),
        len(engine.kv_cache_manager.block_pool.cached_block_hash_to_block._first),
    ] == [2, 0]
    step(engine)
    assert len(engine.kv_cache_manager.block_pool.cached_block_hash_to_block._first) == 2

    engine = scheduler([FULL])
    ask(engine, "cold", PROMPT[:10])
    tier = engine.kv_cache_manager.tier  # type: ignore[attr-defined]
    found = []
    for _ in range(DELAY + 1):
        step(engine)
        found.append(len(tier._cached))
    assert found == [0, 0, 2]


def test_after_a_failed_load_what_arrived_is_hit_and_the_rest_computed() -> None:
    """Of three blocks the second fails: the first is hit on the device, and the tier is not
    asked for the second again.
    """
    engine = scheduler([FULL])
    kept_aside(engine, PROMPT[:14])
    warm = ask(engine, "warm", PROMPT[:14])
    step(engine)
    step(engine, 1)
    assert warm.status is RequestStatus.PREEMPTED
    assert step(engine).num_scheduled_tokens == {"warm": 10}


def test_all_groups_agree_on_what_is_left_after_a_failure() -> None:
    """The state after twelve tokens fails, so the blocks of attention that did arrive are of no
    use without one before it.
    """
    engine = scheduler([FULL, MAMBA], retention_interval=0)
    kept_aside(engine, PROMPT[:14])
    warm = ask(engine, "warm", PROMPT[:14])
    loads = begun(step(engine))
    state = next(place for place, load in enumerate(loads) if load.key.endswith(b"\x01"))
    step(engine, state)
    assert step(engine).num_scheduled_tokens == {"warm": 12} and warm.num_computed_tokens == 12


def test_a_failed_store_is_never_found_and_its_place_is_free() -> None:
    engine = scheduler([FULL], tier_pages=1)
    ask(engine, "cold", PROMPT[:5])
    assert [transfer.failed for transfer in ended(step(engine, 0))] == [True]
    engine.finish_requests(["cold"])
    assert engine.reset_prefix_cache()
    ask(engine, "again", PROMPT[:5])
    assert step(engine).num_scheduled_tokens == {"again": 5} and len(engine.transfers) == 1


def test_pages_of_an_aborted_request_are_free_when_its_loads_are_over() -> None:
    """And they have no key then, since nobody waited for them."""
    engine = scheduler([FULL])
    kept_aside(engine, PROMPT[:10])
    everything = free(engine)
    ask(engine, "warm", PROMPT[:10])
    step(engine)
    engine.finish_requests(["warm"], RequestStatus.ABORTED)
    assert free(engine) == everything - 2 and not engine.reset_prefix_cache()
    step(engine)
    assert free(engine) == everything and engine.reset_prefix_cache()
    assert len(engine.kv_cache_manager.block_pool.cached_block_hash_to_block._first) == 0


def test_a_block_is_held_until_it_has_been_stored() -> None:
    engine = scheduler([FULL])
    everything = free(engine)
    ask(engine, "cold", PROMPT[:10])
    step(engine)
    engine.finish_requests(["cold"])
    assert free(engine) == everything - 2
    step(engine)
    step(engine)
    assert free(engine) == everything


def test_a_place_does_not_give_way_while_it_is_loaded() -> None:
    """The tier has two places, both under load: what somebody else computes finds none."""
    engine = scheduler([FULL], tier_pages=2)
    kept_aside(engine, PROMPT[:10])
    ask(engine, "warm", PROMPT[:10])
    ask(engine, "other", PROMPT[50:55])
    assert [transfer.stores for transfer in begun(step(engine))] == [False, False]


def test_a_reset_of_the_tier_lets_its_loads_fail() -> None:
    """What comes after it is computed, and no place is lost."""
    engine = scheduler([FULL], tier_pages=2)
    kept_aside(engine, PROMPT[:10])
    ask(engine, "warm", PROMPT[:10])
    step(engine)
    engine.reset_connector_cache()
    assert step(engine).num_scheduled_tokens == {}
    output = step(engine)
    assert output.num_scheduled_tokens == {"warm": 10} and len(begun(output)) == 2


def test_who_runs_waits_for_loads_and_then_takes_blocks_from_who_was_loaded() -> None:
    """Six blocks, three of them under load until step 6, when somebody who runs needs a fourth
    of its own.
    """
    engine = scheduler([FULL], num_blocks=7, tier_delay=6)
    kept_aside(engine, PROMPT[:13])
    runs = ask(engine, "runs", PROMPT[50:58])
    warm = ask(engine, "warm", PROMPT[:13])
    ran = [step(engine).num_scheduled_tokens for _ in range(7)]
    assert ran == [{"runs": 8}, *[{"runs": 1}] * 4, {}, {"runs": 1}]
    assert (runs.num_preemptions, warm.num_preemptions) == (0, 1)


def test_who_was_loaded_last_gives_way_if_nobody_runs() -> None:
    """Ten blocks: two, four and three are loaded, the first lacks four more, and one is free."""
    engine = scheduler([FULL], num_blocks=11)
    known = {"a": PROMPT[:8], "b": PROMPT[20:36], "c": PROMPT[40:52]}
    for name, tokens in known.items():
        kept_aside(engine, [*tokens, 1], f"cold-{name}")
    for name, tokens in known.items():
        ask(engine, name, tokens + PROMPT[60 : 76 if name == "a" else 64])
    assert [step(engine).num_scheduled_tokens for _ in range(3)] == [{}, {}, {"a": 16}]
    assert [engine.requests[name].status.name for name in "ac"] == [
        "RUNNING",
        "PREEMPTED",
    ] and engine.loaded == {"b"}


def test_a_delay_without_a_tier_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'tier_delay' \(2\) needs 'tier_pages'"):
        build([FULL], 9, {"tier_delay": 2})
    with pytest.raises(ConfigError, match="'tier_delay'"):
        build([FULL], 9, {"tier_pages": 4, "tier_delay": -1})
