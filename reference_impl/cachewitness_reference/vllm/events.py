"""The cache events that vLLM publishes, with the fields that this policy fills in.

Source: vLLM, `distributed/kv_events.py` (0.33.0). Digests are our own bytes; vLLM publishes 64-bit
integers by default.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cachewitness_reference.primitives import BlockHash, GroupId
from cachewitness_reference.vllm.request import ExtraKeys


@dataclass(frozen=True)
class BlockStored:
    """Blocks got keys; `token_ids` are those of the range that was looked at, `block_hashes` of
    the blocks kept in it.
    """

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    group_idx: GroupId
    lora_name: str | None = None
    extra_keys: list[ExtraKeys] = field(default_factory=list)


@dataclass(frozen=True)
class BlockRemoved:
    """Keys of one group ended by eviction or replacement."""

    block_hashes: list[BlockHash]
    group_idx: GroupId


@dataclass(frozen=True)
class AllBlocksCleared:
    """Every key ended."""


KVCacheEvent = BlockStored | BlockRemoved | AllBlocksCleared


def untagged(extra_keys: ExtraKeys) -> ExtraKeys:
    """Return extra keys of a block's hash as events have them: the adapter's name, (item,
    offset) pairs, the salt.
    """
    if extra_keys is None:
        return None
    return tuple(
        key[1:] if key[0] == "mm" else key[1] for key in extra_keys if isinstance(key, tuple)
    )
