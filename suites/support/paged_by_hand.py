"""Block tables made by hand for tests of the paged execution, and the dense model to compare
with.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from cachewitness_reference.toy_model import dense
from cachewitness_reference.toy_model.config import ToyConfig
from cachewitness_reference.toy_model.kernels import PLAIN, FlatKernels, Kernels
from cachewitness_reference.toy_model.paged import Chunk, PagedGroup, Pools, step
from cachewitness_reference.toy_model.weights import random_weights

LAYERS = ("linear_attention", "sliding_attention", "mamba2", "full_attention")
WITHOUT_MAMBA = ("linear_attention", "sliding_attention", "linear_attention", "full_attention")
"""The same, for kernels that lack Mamba2."""
SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "sliding_window": 8,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "mamba_num_heads": 2,
    "mamba_head_dim": 8,
    "mamba_state_dim": 4,
    "chunk_size": 8,
}
FULL, WINDOW, DELTA, MAMBA = range(4)
"""Groups: layer 3, 1, 0 and 2 of the model; blocks of 4, 4, 8 and 8 tokens."""
BLOCKS = (4, 4, 8, 8)


class Hand:
    """A model, its pools and requests whose tables are dealt by hand, scattered over the pages."""

    def __init__(
        self,
        dtype: torch.dtype = torch.float64,
        *,
        seed: int = 1,
        every_block: bool = False,
        layers: tuple[str, ...] = LAYERS,
        sizes: Mapping[str, int] = MappingProxyType({}),
        kernels: Kernels | FlatKernels = PLAIN,
        **options: Any,
    ) -> None:
        self.config = ToyConfig(layer_types=layers, **SIZES | dict(sizes))  # type: ignore[arg-type]
        self.kernels = kernels
        self.weights = random_weights(self.config, seed, dtype)
        self.groups = [
            PagedGroup((layer,), block, every_block=every_block and block == 8)
            for layer, block in zip((3, 1, 0, 2), BLOCKS, strict=True)
        ]
        self.pools = Pools(self.groups, 400, self.config, dtype=dtype, **options)
        self._free = list(range(1, 400))
        random.Random(seed).shuffle(self._free)
        self.logits: dict[str, list[torch.Tensor]] = {}

    def deal(self, tokens: int) -> list[list[int]]:
        """Return fresh tables for a request of so many tokens."""
        return [[self._free.pop() for _ in range(-(-tokens // block))] for block in BLOCKS]

    def give(self, pages: Iterable[int]) -> None:
        """Add pages to be dealt."""
        self._free += pages

    def tokens(self, count: int, seed: int = 0) -> list[int]:
        """Return random tokens."""
        numbers = random.Random(seed)
        return [numbers.randrange(self.config.vocab_size) for _ in range(count)]

    def cold(self, tokens: list[int]) -> torch.Tensor:
        """Return the dense model's logits [T, vocab]."""
        return dense.forward(torch.tensor([tokens]), self.weights, self.config)[0]

    def run(
        self, *rows: tuple[list[int], int, int, list[list[int]]], pad_rows: int = 1
    ) -> list[torch.Tensor]:
        """Run tokens [start, stop) of each (tokens, start, stop, tables) in one step; return all
        their logits.
        """
        chunks = [Chunk(tokens[a:b], a, tables, outputs=b - a) for tokens, a, b, tables in rows]
        logits = step(self.pools, chunks, self.weights, pad_rows=pad_rows, kernels=self.kernels)
        return list(logits.split([len(c.tokens) for c in chunks]))


def far(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest difference; NaN if there is one."""
    return float((a - b).abs().max())
