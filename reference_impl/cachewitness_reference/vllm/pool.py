"""What one finished request leaves cached, and where a hit of all groups can end: vLLM's arithmetic
on plain numbers.

Every group takes its blocks from one pool, so a request costs the sum over the groups. How many
blocks there are, and how many a running request holds, is `planning`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cachewitness_reference.vllm.sizing import (
    SequenceLengths,
    kept_states,
    kept_window,
    window_hits,
)


@dataclass(frozen=True)
class Group:
    """A group of layers that share a block table. `window` is in tokens, 0 for none."""

    kind: Literal["full", "sliding", "recurrent"]
    block_size: int
    layers: int
    window: int = 0

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


def kept(groups: Sequence[Group], lengths: SequenceLengths, interval: int | None) -> Kept:
    """Return what a request leaves cached under an interval; None is dense. Raises ConfigError
    as `Group.cached` does.
    """
    alignment = math.lcm(*(group.block_size for group in groups))
    each = [group.cached(lengths, alignment, interval) for group in dict.fromkeys(groups)]
    hits = set.intersection(*(set(positions) for _, positions in each))
    blocks = dict(zip(dict.fromkeys(groups), (count for count, _ in each), strict=True))
    return Kept(sum(blocks[group] for group in groups), tuple(sorted(hits)))
