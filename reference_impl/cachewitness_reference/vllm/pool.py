"""How many blocks an amount of memory holds, and how many requests fit: vLLM's arithmetic on plain
numbers.

Every group takes its blocks from one pool, so a request costs the sum over the groups. One block of
the pool is the null block, which nobody gets.

Sources (vLLM 0.33.0): `v1/core/kv_cache_planning.py`, `get_kv_cache_config_from_groups`;
`v1/kv_cache_interface.py`, `max_memory_usage_bytes` of each kind; `v1/core/kv_cache_utils.py`,
`get_max_concurrency_for_kv_cache_config`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from cachewitness_reference.vllm.sizing import (
    SequenceLengths,
    checked,
    kept_states,
    kept_window,
    window_hits,
)

RUNNING_STATES = 2
"""Blocks of a running request in a recurrent group: the state that it advances from, and the one
that it writes."""


@dataclass(frozen=True)
class Group:
    """A group of layers that share a block table. `window` is in tokens, 0 for none."""

    kind: Literal["full", "sliding", "recurrent"]
    block_size: int
    layers: int
    window: int = 0

    def running_blocks(self, tokens: int, in_flight: int) -> int:
        """Return the most blocks that a request of so many tokens holds at once.

        `in_flight` are the most tokens that are scheduled and not settled: a window keeps its
        blocks for so long.
        """
        if self.kind == "recurrent":
            return RUNNING_STATES
        if self.kind == "full":
            return math.ceil(tokens / self.block_size)
        return math.ceil(min(self.window - 1 + in_flight, tokens) / self.block_size) + 1

    def cached(
        self, lengths: SequenceLengths, alignment: int, interval: int | None
    ) -> tuple[int, list[int]]:
        """Return how many blocks a finished request leaves cached, and at which positions, in
        tokens, a hit can end.

        `alignment` is the multiple on which hits end. Raises ConfigError for an interval that is no
        multiple of it.
        """
        if self.kind == "recurrent":
            columns = kept_states(lengths, self.block_size, alignment, interval)[1]
            return len(columns), [(column + 1) * self.block_size for column in columns]
        if self.kind == "full":
            blocks = lengths.full_blocks(self.block_size)
            return blocks, [*range(alignment, blocks * self.block_size + 1, alignment)]
        kept = kept_window(lengths, self.block_size, self.window, alignment, interval)
        return sum(kept), window_hits(kept, self.block_size, self.window, alignment)


@dataclass(frozen=True)
class Kept:
    """What one finished request leaves cached: blocks over all groups, and where a hit of all
    groups can end, in tokens.
    """

    blocks: int
    hits: tuple[int, ...]


def block_bytes(groups: Sequence[Group], page_bytes: int) -> int:
    """Return what a block of the pool weighs: a page for each layer of the largest group.
    Smaller groups are padded.
    """
    return checked("block_bytes", max(group.layers for group in groups) * page_bytes)


def concurrency(blocks: int, request_blocks: int) -> Fraction:
    """Return what vLLM logs as maximum concurrency: the pool's blocks, the null block too, over
    those of a request.
    """
    return Fraction(blocks, request_blocks)


def kept(groups: Sequence[Group], lengths: SequenceLengths, interval: int | None) -> Kept:
    """Return what a request leaves cached under an interval; None is dense. Raises ConfigError
    as `Group.cached` does.
    """
    alignment = math.lcm(*(group.block_size for group in groups))
    each = [group.cached(lengths, alignment, interval) for group in dict.fromkeys(groups)]
    hits = set.intersection(*(set(positions) for _, positions in each))
    blocks = dict(zip(dict.fromkeys(groups), (count for count, _ in each), strict=True))
    return Kept(sum(blocks[group] for group in groups), tuple(sorted(hits)))
