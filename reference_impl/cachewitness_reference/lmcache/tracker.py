"""What the connector keeps in mind of a request, and what follows from it: which chunks to store,
and which to load.

Stored are whole chunks, from where the last store ended, as far as tokens are known, computed and
in every group's table. By default nothing that was generated is stored: a prompt's last chunk is
one if the prompt fills it. Loaded are whole chunks too, from the one in which the engine's own hit
ends; what it has of that one is skipped.

Source: `integration/vllm/lmcache_mp_metadata.py` (0.5.6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from cachewitness_reference.lmcache.groups import EngineGroupInfo
from cachewitness_reference.primitives import BlockId


class RequestState(Enum):
    """Where a request is with its load."""

    PREFETCHING = auto()
    WAITING_FOR_LOAD = auto()
    READY = auto()


@dataclass
class RequestTracker:
    """One request. `token_ids` grow as it generates; of images they have ids of the content. All
    counts in tokens.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    state: RequestState = RequestState.PREFETCHING
    num_vllm_hit_tokens: int = 0
    num_lmcache_hit_tokens: int = 0
    num_scheduled_tokens: int = 0
    num_stored_tokens: int = 0
    block_ids: list[Sequence[BlockId]] = field(default_factory=list)

    def needs_retrieve(self) -> bool:
        """Whether LMCache has more than the engine."""
        return self.num_lmcache_hit_tokens > self.num_vllm_hit_tokens

    def storable_chunks(
        self, chunk_size: int, infos: Sequence[EngineGroupInfo], *, save_decode_cache: bool = False
    ) -> range:
        """Return the chunks that can be stored now and have not been; take note that they are.

        The two hits cover the same prefix, so the longer one counts and not their sum.
        """
        computed = self.num_scheduled_tokens + max(
            self.num_vllm_hit_tokens, self.num_lmcache_hit_tokens
        )
        in_tables = min(
            len(ids) * info.tokens_per_block
            for ids, info in zip(self.block_ids, infos, strict=True)
        )
        available = min(len(self.token_ids), in_tables, computed)
        if not save_decode_cache:
            available = min(available, self.num_prompt_tokens)
        chunks = range(
            self.num_stored_tokens // chunk_size,
            max(available, self.num_stored_tokens) // chunk_size,
        )
        self.num_stored_tokens = chunks.stop * chunk_size
        return chunks

    def retrievable_chunks(self, chunk_size: int) -> tuple[range, int]:
        """Return the chunks to load, and how many tokens at their start the engine has already."""
        start = self.num_vllm_hit_tokens // chunk_size
        chunks = range(start, self.num_lmcache_hit_tokens // chunk_size)
        return chunks, self.num_vllm_hit_tokens - start * chunk_size

    def blocks_from(
        self, chunks: range, chunk_size: int, infos: Sequence[EngineGroupInfo]
    ) -> list[Sequence[BlockId]]:
        """Return the block ids of these chunks by kernel group; fewer where a table ends before."""
        return [
            ids[
                chunks.start * chunk_size // info.tokens_per_block : chunks.stop
                * chunk_size
                // info.tokens_per_block
            ]
            for ids, info in zip(self.block_ids, infos, strict=True)
        ]
