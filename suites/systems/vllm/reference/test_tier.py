"""The plain second tier: what is stored, where a hit may end, what outlives what."""

from __future__ import annotations

from typing import Any

from cachewitness_reference.primitives import BlockId
from cachewitness_reference.vllm.key_index import BlockHashWithGroupId, KVCacheBlock
from cachewitness_reference.vllm.request import Request
from cachewitness_reference.vllm.scheduler import Scheduler, SchedulerOutput
from cachewitness_reference.vllm_extended.assemble import get_kv_cache_manager, get_scheduler
from cachewitness_reference.vllm_extended.config import build
from cachewitness_reference.vllm_extended.tier import PlainTier
from cachewitness_reference.vllm_extended.tiered_manager import TieredManager
from suites.support.counting import Counting

FULL = {"kind": "full", "block_size": 4}
MAMBA = {"kind": "recurrent", "block_size": 4}
PROMPT = list(range(1000, 1100))


def scheduler(
    groups: list[dict[str, Any]], tier_pages: int, num_blocks: int = 60, **options: Any
) -> Scheduler:
    config = build(
        groups, num_blocks, {"tier_pages": tier_pages, "max_num_batched_tokens": 8, **options}
    )
    manager = get_kv_cache_manager(config)
    assert isinstance(manager, TieredManager)
    return get_scheduler(config, manager, Counting())


def scheduled(engine: Scheduler) -> SchedulerOutput:
    """Return the next step, with what it loads and stores."""
    output = engine.schedule()
    engine.build_connector_meta(output)
    return output


def loads(output: SchedulerOutput) -> list[int | None]:
    """Return the lengths of the prefixes whose last pages a step loads."""
    return [place.block_hash_num_tokens for place, _ in output.kv_connector_metadata.loads]


def serve(engine: Scheduler, name: str, tokens: list[int]) -> tuple[int, list[SchedulerOutput]]:
    """Run one request up to its first token; return its hit and the steps."""
    request = Request(name, tokens, engine.config.hash_block_size)
    engine.add_request(request)
    steps: list[SchedulerOutput] = []
    hit = -1
    while not request.num_output_tokens:
        steps.append(scheduled(engine))
        if hit < 0 and name in steps[-1].num_scheduled_tokens:
            hit = request.num_computed_tokens - steps[-1].num_scheduled_tokens[name]
        engine.update_from_output(steps[-1])
    engine.finish_requests([name])
    return hit, steps


def block(number: int) -> KVCacheBlock:
    """Return a block of the device under a key of its own."""
    one = KVCacheBlock(BlockId(number))
    one.block_hash = BlockHashWithGroupId(bytes([number]))
    one.block_hash_num_tokens = 4
    return one


def test_what_was_used_longest_ago_gives_way() -> None:
    """Of two places, the one that was asked for again stays."""
    tier = PlainTier(2)
    (a, b, c) = (block(number) for number in (1, 2, 3))
    assert a.block_hash and b.block_hash and c.block_hash
    first = tier.store("r", a)
    second = tier.store("r", b)
    assert first is not None and tier.store("r", a) is None, "it is there already"
    assert tier.store("r", c) is second
    assert [tier.get(one.block_hash) for one in (a, b, c)] == [first, None, second]  # type: ignore[arg-type]


def test_a_place_that_is_being_loaded_does_not_give_way() -> None:
    tier = PlainTier(1)
    (a, b) = (block(number) for number in (1, 2))
    place = tier.store("r", a)
    assert place is not None
    tier.fetch(place, block(9))
    assert tier.store("r", b) is None
    tier.release(source for source, _ in tier.take_loads())
    assert tier.store("r", b) is place


def test_a_reset_of_the_device_leaves_the_tier() -> None:
    """Two blocks are stored with the step that fills them, fetched into fresh ones, and hit
    there from then on.
    """
    engine = scheduler([FULL], 10)
    hit, (first, _) = serve(engine, "cold", PROMPT[:10])
    assert hit == 0 and len(first.kv_connector_metadata.stores) == 2 and loads(first) == []
    assert engine.reset_prefix_cache()
    hit, (fetched,) = serve(engine, "warm", PROMPT[:10])
    assert hit == 8 and loads(fetched) == [4, 8]
    assert not fetched.kv_connector_metadata.stores, "both are there already"
    hit, (again,) = serve(engine, "warmer", PROMPT[:10])
    assert hit == 8 and loads(again) == []
    engine.reset_prefix_cache()
    engine.reset_connector_cache()
    assert serve(engine, "cold again", PROMPT[:10])[0] == 0


def test_a_hit_may_end_where_neither_device_nor_tier_could_end_it_alone() -> None:
    """The device has lost its states and kept its blocks: they come from the device, the state
    from the tier.
    """
    engine = scheduler([FULL, MAMBA], 20, retention_interval=None)
    serve(engine, "cold", PROMPT[:10])
    pool = engine.kv_cache_manager.block_pool
    for held in list(pool.free_block_queue.values()):
        if held.block_hash is not None and held.block_hash.endswith(b"\x01"):
            pool._drop_keys(held)
    hit, (step,) = serve(engine, "warm", PROMPT[:10])
    assert hit == 8
    assert loads(step) == [8], "the state alone; the blocks are on the device"


def test_new_weights_end_the_tier() -> None:
    engine = scheduler([FULL], 10)
    serve(engine, "cold", PROMPT[:10])
    engine.update_weights()
    assert serve(engine, "again", PROMPT[:10])[0] == 0


def test_what_is_fetched_needs_blocks_like_anything_else() -> None:
    """Five blocks hold a prompt of eighteen; while another holds two of them it is not admitted,
    whatever the tier has.
    """
    engine = scheduler([FULL], 10, num_blocks=6)
    serve(engine, "cold", PROMPT[:18])
    engine.reset_prefix_cache()
    engine.add_request(Request("other", PROMPT[50:56], 4))
    engine.update_from_output(scheduled(engine))
    engine.add_request(Request("warm", PROMPT[:18], 4))
    output = scheduled(engine)
    assert output.num_scheduled_tokens == {"other": 1} and loads(output) == []


def test_a_withdrawn_request_fetches_nothing() -> None:
    """Its blocks are free, their keys are gone, and the places may give way."""
    engine = scheduler([FULL], 10)
    serve(engine, "cold", PROMPT[:10])
    engine.reset_prefix_cache()
    engine.add_request(Request("warm", PROMPT[:10], 4))
    output = engine.schedule()
    assert output.num_scheduled_tokens == {"warm": 2}, "eight of ten tokens were found"
    engine.withdraw(output, ["warm"])
    engine.build_connector_meta(output)
    assert not output.kv_connector_metadata.loads and not output.kv_connector_metadata.stores
    engine.update_from_output(output)
    assert engine.kv_cache_manager.reset_prefix_cache()


def test_a_place_of_the_tier_is_no_block_of_the_device_of_the_same_number() -> None:
    """Of two that fetch in one step, the one that hits place n is not withdrawn with the one
    that fetches into block n.
    """
    engine = scheduler([FULL], 10, num_blocks=5)
    texts = [PROMPT[start : start + 6] for start in (0, 20, 40, 60)]
    for number, tokens in enumerate(texts):
        serve(engine, str(number), tokens)
    engine.reset_prefix_cache()
    for number in (0, 1):
        engine.add_request(Request(f"{number} again", texts[number], 4))
    output = engine.schedule()
    assert output.num_scheduled_tokens == {"0 again": 2, "1 again": 2}
    manager = engine.kv_cache_manager
    assert isinstance(manager, TieredManager)
    into = manager.get_block_ids("0 again")[0][0]  # type: ignore[arg-type]
    place = manager.tier.get(manager.block_pool.blocks[3].block_hash)  # type: ignore[arg-type]
    assert into == 1 == place.block_id and manager.get_block_ids("1 again")[0][0] == 3  # type: ignore[union-attr]
    engine.withdraw(output, ["0 again"])
    assert list(output.num_scheduled_tokens) == ["1 again"]
