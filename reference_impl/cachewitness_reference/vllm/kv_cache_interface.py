"""What a cache group stores: the kinds of layers, and how many tokens one of their blocks covers.

Source: vLLM, `v1/kv_cache_interface.py` (0.33.0).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

MambaCacheMode = Literal["none", "align", "all"]


@dataclass(frozen=True)
class FullAttentionSpec:
    """Every query reads every earlier token. `block_size` in tokens."""

    block_size: int


@dataclass(frozen=True)
class SlidingWindowSpec:
    """A query reads the last `sliding_window` tokens, itself included."""

    block_size: int
    sliding_window: int

    def max_admission_blocks_per_request(
        self, max_in_flight_tokens: int, max_model_len: int
    ) -> int:
        """Return the most blocks that one request holds at once: its window, the tokens in
        flight, one for the offset.
        """
        num_tokens = min(self.sliding_window - 1 + max_in_flight_tokens, max_model_len)
        return math.ceil(num_tokens / self.block_size) + 1


@dataclass(frozen=True)
class MambaSpec:
    """A recurrent state, one per `block_size` tokens at most; it takes one block."""

    block_size: int
    mamba_cache_mode: MambaCacheMode = "align"


KVCacheSpec = FullAttentionSpec | SlidingWindowSpec | MambaSpec


@dataclass(frozen=True)
class KVCacheGroupSpec:
    """One cache group. `is_eagle_group` marks those whose layers a drafter reads; none marked
    means all of them.
    """

    kv_cache_spec: KVCacheSpec
    is_eagle_group: bool = False
