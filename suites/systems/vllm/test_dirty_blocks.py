"""Listening to vLLM's pool tells the same as looking at every block, whatever its methods are
called.

`CACHEWITNESS_VLLM_SOURCE` names a folder that holds `vllm`.
"""

from __future__ import annotations

from typing import Any

import pytest

from cachewitness.core.events import Event
from cachewitness.engines import dirty_blocks
from cachewitness.engines.registry import parse
from cachewitness.systems.vllm.reference.policy import default_configurations
from cachewitness.workloads.configurations import Configuration
from cachewitness.workloads.generate import random_trace
from suites.support.real_vllm import REAL, SOURCE

pytestmark = REAL


def run(configuration: Configuration, seed: int) -> tuple[list[Event], Any]:
    trace = random_trace(configuration.shape("manager"), seed, withdraw=True)
    engine: Any = parse(f"vllm:source={SOURCE},withdraw=yes").open(trace.header)
    return [
        event for op in trace.ops for event in engine.apply(op)
    ], engine.adapter.manager.state.dirty_blocks


@pytest.mark.parametrize(
    "configuration", default_configurations()[::2], ids=lambda configuration: configuration.name
)
def test_listening_tells_the_same_as_looking_at_every_block(
    configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    if configuration.options.get("pages_per_snapshot"):
        pytest.skip("in vLLM a snapshot is always one block")
    heard = [run(configuration, seed)[0] for seed in range(3)]
    monkeypatch.setattr(dirty_blocks, "LOOK_EVERY", 1)
    assert [run(configuration, seed)[0] for seed in range(3)] == heard


SEVERAL = next(
    c
    for c in default_configurations()
    if c.options.get("hash_block_size") and len(c.layout.groups) > 1
)
"""Hits end inside a block here, so that blocks have several keys."""


@pytest.mark.parametrize(
    "configuration", [default_configurations()[1], SEVERAL], ids=["one-key", "several-keys"]
)
@pytest.mark.parametrize("name", dirty_blocks.CHANGING)
def test_method_of_another_name_costs_no_event(
    name: str, configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(configuration, 5)[0]
    monkeypatch.setattr(
        dirty_blocks, "CHANGING", [known for known in dirty_blocks.CHANGING if known != name]
    )
    assert run(configuration, 5)[0] == expected


@pytest.mark.parametrize(
    "configuration", [default_configurations()[1], SEVERAL], ids=["one-key", "several-keys"]
)
def test_most_calls_need_no_look_at_every_block(
    configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where blocks have several keys: the pool's index counts each."""
    asked: list[bool] = []
    agrees = dirty_blocks.DirtyBlocks._agrees

    def noted(self: dirty_blocks.DirtyBlocks, found: list[int]) -> bool:
        asked.append(agrees(self, found))
        return asked[-1]

    monkeypatch.setattr(dirty_blocks.DirtyBlocks, "_agrees", noted)
    touched = run(configuration, 5)[1]
    assert touched._listening
    assert len(asked) > 100 and asked.count(False) < len(asked) // 20
