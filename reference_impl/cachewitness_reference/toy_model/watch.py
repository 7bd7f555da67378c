"""What a step read and computed on its way, for whoever looks for the first layer that is wrong.

Nothing is copied: the tensors are those that the step made. Chunks are named by their index in the
step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from cachewitness_reference.toy_model.paged_plan import NOWHERE, Bucket


@dataclass
class Read:
    """What one layer took from its pages for one chunk.

    Attention: `key` and `value` [S, KV, D] at positions [S], the chunk's own included. Recurrent:
    `conv` and `memory`, the state that it went on from, and no positions.
    """

    parts: dict[str, Tensor]
    positions: Tensor | None = None


@dataclass
class Watch:
    """By layer the flat outputs [tokens, hidden] of a step; by layer and first token of a bucket
    what the bucket read.
    """

    outputs: list[Tensor] = field(default_factory=list)
    reads: dict[tuple[int, int], Read] = field(default_factory=dict)
    buckets: Sequence[Bucket] = ()
    places: Sequence[tuple[int, int]] = ()

    def output(self, layer: int, chunk: int) -> Tensor:
        """Return what a layer put out for a chunk [length, hidden]."""
        bucket, row = self._place(chunk)
        first = bucket.first + row * bucket.length
        return self.outputs[layer][first : first + bucket.length]

    def read(self, layer: int, chunk: int) -> Read:
        """Return what a layer read for a chunk; of keys those at a position."""
        bucket, row = self._place(chunk)
        found = self.reads[layer, bucket.first]
        parts = {name: part[row] for name, part in found.parts.items()}
        if found.positions is None:
            return Read(parts)
        there = found.positions[row] < NOWHERE
        return Read(
            {name: part[there] for name, part in parts.items()}, found.positions[row][there]
        )

    def _place(self, chunk: int) -> tuple[Bucket, int]:
        number, row = self.places[chunk]
        return self.buckets[number], row
