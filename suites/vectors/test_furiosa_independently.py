"""Furiosa-LLM's expected answers, computed a second time: splits from weights, matches and
cleanup from what a window reads.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from suites.support.published_vectors import for_every, vectors


def numbers(vector: Any) -> tuple[dict[str, Any], int, int, int]:
    """Return the configuration, the length that memory is split for, and the bytes of a global
    and a sliding block.
    """
    config = vector.input.config
    unset = (
        config["window"] if config.get("default_ratio") == "per_token" else config["max_model_len"]
    )
    length = min(int(config.get("environment", unset)), config["max_model_len"])
    size = config["block_size"]
    return (
        config,
        length,
        size * config["global_layers"] * config["global_bytes_per_token"],
        size * config["sliding_layers"] * config["sliding_bytes_per_token"],
    )


@for_every(vectors("furiosa", "sizing", "acceptable"))
def test_memory_is_split_by_the_weight_of_a_sequence(vector: Any) -> None:
    """The share of the global pool is that of its blocks in a sequence, in exact fractions; less
    than a block is left over.
    """
    config, length, global_bytes, sliding_bytes = numbers(vector)
    values = vector.expected.values
    size = config["block_size"]
    blocks = math.ceil(Fraction(length, size))
    touched = max(
        len({(first + i) // size for i in range(config["window"] - 1 + 1)}) for first in range(size)
    )
    window_blocks = min(blocks, math.ceil(Fraction(config["window"] - 1, size)) + 1)
    assert window_blocks >= min(blocks, touched), "a window that begins inside a block has room"
    share = Fraction(blocks * global_bytes, blocks * global_bytes + window_blocks * sliding_bytes)
    assert values["seq_length"] == length
    assert (values["global_blocks_per_seq"], values["sliding_blocks_per_seq"]) == (
        blocks,
        window_blocks,
    )
    assert values["global_blocks"] == math.floor(config["kv_bytes"] * share / global_bytes)
    used = values["global_blocks"] * global_bytes + values["sliding_blocks"] * sliding_bytes
    assert used == values["used_bytes"] and 0 <= config["kv_bytes"] - used < sliding_bytes
    assert values["sequences"] == min(
        values["global_blocks"] // blocks, values["sliding_blocks"] // window_blocks
    )


@for_every(vectors("furiosa", "lookup"))
def test_a_match_is_reused_as_far_as_its_window_is_there(vector: Any) -> None:
    """By brute force over lengths: all tokens before it globally, the window's in the sliding
    pool.
    """
    asked = vector.input
    size = asked.groups[0].block_size
    window = asked.groups[1].window
    stored = asked.cached[0][-1] if asked.cached[0] else 0
    sliding = set()
    for end in asked.cached[1]:
        sliding |= set(range((end - 1) // size * size, end))
    behind = max(window - (asked.config.get("window_tail", "W-1") == "W-1"), 1)
    unit = size if asked.config.get("hit_granularity") == "block" else 1
    lengths = range(0, min(stored, asked.tokens - 1) + 1, unit)
    resume = max(h for h in lengths if set(range(max(0, h - behind), h)) <= sliding)
    assert vector.expected.resume == resume
    columns = [
        list(range(-(-resume // size))),
        list(range(max(0, resume - behind) // size, -(-resume // size))),
    ]
    assert vector.expected.columns == (columns if resume else [])


@for_every(vectors("furiosa", "retention"))
def test_cleanup_keeps_the_blocks_that_the_next_query_reads(vector: Any) -> None:
    """And the one that it writes into; nothing else, however the tokens were cut into chunks."""
    asked = vector.input
    size = asked.groups[1].block_size
    window = asked.groups[1].window
    tokens = asked.tokens
    behind = max(window - (asked.config.get("window_tail", "W-1") == "W-1"), 1)
    assert vector.expected.kept == sorted(
        {token // size for token in range(max(0, tokens - behind), tokens)}
    )
