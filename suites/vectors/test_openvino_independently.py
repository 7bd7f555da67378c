"""OpenVINO GenAI's expected answers, computed a second time from the document's arithmetic and
from the safety law.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from suites.support.published_vectors import for_every, vectors

UNLIMITED = 2**64 - 1


@for_every(vectors("openvino_genai", "sizing", "valid"))
def test_pools_are_sized_as_the_document_says(vector: Any) -> None:
    """Explicit blocks: ceil(KV / multiplier). A budget: the most KV blocks that fit with their
    states, found one by one.
    """
    config = vector.input.config
    values = vector.expected.values
    kv_bytes = config["kv_block_bytes"]
    la_bytes = config.get("la_block_bytes", 0)
    kv = config.get("num_kv_blocks", 0)
    la = config.get("num_linear_attention_blocks", 0)
    prefix = config.get("enable_prefix_caching", False)
    budget = config.get("cache_size", 0) * 2**30
    multiplier = None
    if prefix and la_bytes:
        adaptive = min(max(8, math.ceil(la_bytes / kv_bytes)), 256)
        multiplier = config.get(
            "cache_interval_multiplier", 8 if config.get("release") == "2026.2" else adaptive
        )
    if la_bytes and not prefix and not la and (kv or budget):
        la = (
            1
            if config.get("max_num_batched_tokens", 256) == UNLIMITED
            else config.get("max_num_seqs", 256)
        )
    if kv == 0 and budget:
        most = budget // kv_bytes
        if multiplier:
            kv = next(
                k
                for k in range(most, -1, -1)
                if k * kv_bytes + -(-k // multiplier) * la_bytes <= budget
            )
            la = -(-kv // multiplier)
        else:
            kv = (budget - la * la_bytes) // kv_bytes
    elif kv and multiplier and not la:
        la = -(-kv // multiplier)
    size = config.get("kv_block_size", 32)
    assert values == {
        "kv_blocks": kv,
        "la_blocks": la,
        "kv_bytes": kv * kv_bytes,
        "la_bytes": la * la_bytes,
        "multiplier": multiplier,
        "interval": multiplier and multiplier * size,
        "dynamic": kv == 0 or (la_bytes > 0 and la == 0),
    }


MEASURED = {
    **{
        f"sizing/adaptive/{kv}": states
        for kv, states in ((102, 1), (103, 2), (204, 2), (205, 3), (1024, 11))
    },
    **{f"sizing/explicit/1024-by-{m}": math.ceil(1024 / m) for m in (1, 3, 7, 64, 100)},
}


@pytest.mark.parametrize("name", MEASURED)
def test_measured_figures_are_met(name: str) -> None:
    """Taken on release 2026.4.1 of the real engine."""
    (vector,) = [v for v in vectors("openvino_genai", "sizing") if v.id == name]
    assert vector.expected.values["la_blocks"] == MEASURED[name]


@for_every(vectors("openvino_genai", "lookup"))
def test_a_prompt_resumes_at_the_largest_position_that_both_caches_hold(vector: Any) -> None:
    """A position is held by KV if every block before it is there, and its tail; a token is left
    to compute.
    """
    asked = vector.input
    size = asked.groups[0].block_size
    kv = set(asked.cached[0])
    states = [set(lengths) for lengths in asked.cached[1:]]

    def held(position: int) -> bool:
        whole = set(range(size, position + 1, size)) <= kv
        return (
            whole
            and (position % size == 0 or position in kv)
            and all(position in own for own in states)
        )

    if states:
        expected = max((p for p in range(1, asked.tokens) if held(p)), default=0)
    else:
        expected = min(
            max((p for p in range(1, asked.tokens + 1) if held(p)), default=0), asked.tokens - 1
        )
    assert vector.expected.resume == expected


@for_every(vectors("openvino_genai", "split"))
def test_a_chunk_takes_what_both_pools_have_room_for(vector: Any) -> None:
    """Room is the rest of the last block and the free ones, of each pool in its own measure."""
    asked = vector.input
    config = vector.input.config
    rooms = [
        (-(-asked.start // group.block_size) + config[free]) * group.block_size - asked.start
        for group, free in zip(asked.groups, ("kv_free", "la_free"), strict=True)
    ]
    assert vector.expected.tokens == min(asked.asked, asked.prompt - asked.start, *rooms)
