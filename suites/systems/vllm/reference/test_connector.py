"""The scheduler's connector: what it is asked and told, and the blocks that are taken for what
it loads.
"""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness_reference.vllm.config import build
from cachewitness_reference.vllm.kv_cache_manager import KVCacheBlocks, KVCacheManager
from cachewitness_reference.vllm.request import Request
from cachewitness_reference.vllm.scheduler import Scheduler, SchedulerOutput
from cachewitness_reference.vllm.scheduler_interface import KVConnectorMetadata
from suites.support.counting import Counting

FULL = {"kind": "full", "block_size": 4}
WINDOW = {"kind": "sliding", "block_size": 4, "window": 8}
MAMBA = {"kind": "recurrent", "block_size": 4}
PROMPT = list(range(1000, 1100))


class Elsewhere:
    """A connector that has the first `length` tokens of everything, and writes down what it is
    told.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.calls: list[Any] = []

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> int:
        self.calls.append(("asked", num_computed_tokens))
        return max(self.length - num_computed_tokens, 0)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        self.calls.append(
            ("admitted", num_external_tokens, [len(ids) for ids in blocks.get_block_ids()])
        )

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def update_connector_output(self, scheduler_output: SchedulerOutput) -> None:
        self.calls.append("ran")

    def request_finished(self, request: Request) -> None:
        self.calls.append("finished")

    def reset_cache(self) -> bool:
        self.calls.append("reset")
        return True


def scheduler(
    groups: list[dict[str, Any]], length: int, num_blocks: int = 60
) -> tuple[Scheduler, Elsewhere]:
    """Return a scheduler before a connector that has so many tokens."""
    config = build(groups, num_blocks, {"max_num_batched_tokens": 8})
    connector = Elsewhere(length)
    return Scheduler(config, KVCacheManager(config), Counting(), connector), connector


def admitted(engine: Scheduler, tokens: int, name: str = "a") -> SchedulerOutput:
    """Submit a request and schedule one step."""
    engine.add_request(Request(name, PROMPT[:tokens], engine.config.hash_block_size))
    return engine.schedule()


def columns(engine: Scheduler, name: str = "a") -> list[list[bool]]:
    """Return by group which columns of a table are there."""
    return [
        [block_id > 0 for block_id in ids]
        for ids in engine.kv_cache_manager.get_blocks(name).get_block_ids()
    ]


def test_a_request_goes_on_behind_what_is_loaded() -> None:
    """12 of 14 tokens are elsewhere: two are computed, and the connector hears of it in order."""
    engine, connector = scheduler([FULL], 12)
    output = admitted(engine, 14)
    engine.build_connector_meta(output)
    assert (
        output.num_scheduled_tokens == {"a": 2} and engine.requests["a"].num_computed_tokens == 14
    )
    engine.update_from_output(output)
    engine.finish_requests(["a"])
    assert connector.calls == [("asked", 0), ("admitted", 12, [4]), "ran", "finished"]


def test_a_connector_is_asked_beyond_the_devices_own_hit() -> None:
    engine, connector = scheduler([FULL], 0)
    engine.update_from_output(admitted(engine, 9))
    connector.length = 16
    connector.calls = []
    output = admitted(engine, 18, "b")
    assert connector.calls[:2] == [("asked", 8), ("admitted", 8, [5])]
    assert output.num_scheduled_tokens["b"] == 2


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (FULL, [True, True, True, True, True]),
        (WINDOW, [False, False, True, True, True]),  # the query at 16 reads 9 to 15
        (
            MAMBA,
            [False, False, False, True, True],
        ),  # the state after 16 tokens, and the one that is computed on
    ],
    ids=["full", "sliding", "recurrent"],
)
def test_blocks_to_load_into_are_those_that_the_next_query_reads(
    group: dict[str, Any], expected: list[bool]
) -> None:
    engine, _ = scheduler([FULL, group], 16)
    admitted(engine, 18)
    assert columns(engine) == [[True] * 5, expected]


def test_what_is_loaded_is_keyed_and_hit_on_the_device_from_then_on() -> None:
    engine, connector = scheduler([FULL], 12)
    engine.update_from_output(admitted(engine, 14))
    engine.finish_requests(["a"])
    connector.length = 0
    connector.calls = []
    admitted(engine, 14, "b")
    assert connector.calls[0] == ("asked", 12)


@pytest.mark.parametrize(("num_blocks", "fits"), [(9, True), (8, False)])
def test_blocks_to_load_into_are_taken_after_those_that_were_hit(
    num_blocks: int, fits: bool
) -> None:
    """Eight blocks hold the request, two of them hit and free until it holds them: they are not
    evicted for the others.
    """
    engine, connector = scheduler([FULL, WINDOW], 0, num_blocks)
    engine.update_from_output(admitted(engine, 9))
    cached = engine.kv_cache_manager.get_blocks("a").get_block_ids()[0][:2]
    engine.finish_requests(["a"])
    connector.length = 16
    assert (admitted(engine, 17, "b").num_scheduled_tokens == {"b": 1}) == fits
    tables = engine.kv_cache_manager.get_blocks("b").get_block_ids()
    held = [block_id for table in tables for block_id in table if block_id]
    assert not fits or (tables[0][:2] == cached and len(held) == len(set(held)) == 8)


def test_a_withdrawn_request_asks_again() -> None:
    engine, connector = scheduler([FULL], 12)
    output = admitted(engine, 14)
    assert engine.withdraw(output, ["a"]) == ["a"]
    engine.build_connector_meta(output)
    engine.update_from_output(output)
    assert engine.kv_cache_manager.reset_prefix_cache(), "nobody holds a block"
    engine.schedule()
    assert connector.calls == [
        ("asked", 0),
        ("admitted", 12, [4]),
        "ran",
        ("asked", 0),
        ("admitted", 12, [4]),
    ]


def test_a_reset_of_its_cache_and_new_weights_reach_the_connector() -> None:
    engine, connector = scheduler([FULL], 0)
    engine.reset_connector_cache()
    engine.reset_prefix_cache()
    engine.update_weights()
    assert connector.calls == ["reset", "reset"]
