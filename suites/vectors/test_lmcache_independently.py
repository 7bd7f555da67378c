"""LMCache's expected answers, computed a second time: N from the bytes, served lengths by trying
them all.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from cachewitness.core.trace_format import GroupSpec
from suites.support.published_vectors import for_every, vectors

MODELS = [v for v in vectors("lmcache", "sizing", "valid") if not v.input.groups]
STARTS = [v for v in vectors("lmcache", "sizing", "valid") if v.input.groups]


@for_every(MODELS)
def test_the_block_is_the_least_multiple_that_holds_a_state(vector: Any) -> None:
    """Found by going up; the chunk is so many blocks, the budget between the bounds of the
    release.
    """
    config = vector.input.config
    values = vector.expected.values
    block = config["kernel_block"]
    while block * config["attention_bytes_per_token"] < config["state_bytes"]:
        block += config["kernel_block"]
    old = config.get("release") == "0.5.3"
    assert values == {
        "block_size": block,
        "chunk_size": block * config.get("chunk_multiple", 1),
        "budget": block if old else 2 * block - 1,
        "budget_least": block,
        "budget_most": 2 * block - 1 if old else None,
    }


@pytest.mark.parametrize(("name", "block"), [("qwen3.5-0.8b", 544), ("qwen3.6-27b", 784)])
def test_published_figures_are_met(name: str, block: int) -> None:
    """N as vLLM prints it for these models."""
    (vector,) = [v for v in MODELS if v.id == f"sizing/model/{name}"]
    assert vector.expected.values["block_size"] == block


def window_of(group: GroupSpec, chunk: int, hit: int) -> int:
    """Return how many chunks before a hit a group needs: those that its window touches; of a
    state the last.
    """
    if group.kind == "full":
        return hit
    tokens = group.block_size if group.kind == "recurrent" else group.window
    return min(math.ceil(tokens / chunk), hit)


@for_every(STARTS)
def test_groups_with_one_window_are_one_object(vector: Any) -> None:
    groups = vector.input.groups
    config = vector.input.config
    values = vector.expected.values
    if not config.get("separate_object_groups", True):
        assert values["object_groups"] == [list(range(len(groups)))] and values["windows"] == [-1]
        return
    windows = [
        -1 if g.kind == "full" else window_of(g, config["chunk_size"], 1 << 20) for g in groups
    ]
    assert [
        w for w, own in zip(values["windows"], values["object_groups"], strict=True) for _ in own
    ] == windows
    spans = [g.window or g.block_size if g.kind != "full" else config["chunk_size"] for g in groups]
    kept = [
        min(span, config["chunk_size"]) // g.block_size
        for span, g in zip(spans, groups, strict=True)
    ]
    assert values["kept_blocks"] == kept


@for_every(vectors("lmcache", "lookup"))
def test_the_longest_length_that_every_group_can_serve_is_served(vector: Any) -> None:
    """Every length is tried; with states the last token is left out, else it is computed again."""
    asked = vector.input
    config = vector.input.config
    chunk = config["chunk_size"]
    recurrent = any(group.kind == "recurrent" for group in asked.groups)
    merged = not config.get("separate_object_groups", True)
    reserve = 1 if recurrent and config.get("release") != "0.5.4" else 0

    def needed(group: GroupSpec, hit: int) -> list[int]:
        return list(range(0 if merged else hit - window_of(group, chunk, hit), hit))

    def servable(hit: int) -> bool:
        return all(
            {(index + 1) * chunk for index in needed(group, hit)} <= set(cached)
            for group, cached in zip(asked.groups, asked.cached, strict=True)
        )

    hit = max(n for n in range((asked.tokens - reserve) // chunk + 1) if servable(n))
    assert vector.expected.resume == min(hit * chunk, asked.tokens - 1)
    assert vector.expected.columns == (
        [needed(group, hit) for group in asked.groups] if hit else []
    )


@for_every(vectors("lmcache", "retention"))
def test_a_hit_needs_the_chunks_of_each_window(vector: Any) -> None:
    asked = vector.input
    needed = window_of(asked.groups[asked.group], asked.config["chunk_size"], asked.stop)
    assert vector.expected.kept == list(range(asked.stop - needed, asked.stop))
