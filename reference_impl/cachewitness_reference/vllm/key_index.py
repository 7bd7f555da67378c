"""From keys to blocks. A key is the digest of a prefix and the group that caches it.

Two requests that compute the same prefix at the same time end up with two blocks under one key.
vLLM never merges them, since block tables only ever grow at the end; a look-up returns the one that
was keyed first.

Source: vLLM, `v1/core/block_pool.py`, `BlockHashToBlockMap`; `v1/core/kv_cache_utils.py`,
`BlockHashWithGroupId` (0.33.0).
"""

from __future__ import annotations

from typing import NewType

from cachewitness_reference.primitives import BlockHash, BlockId, GroupId

BlockHashWithGroupId = NewType("BlockHashWithGroupId", bytes)
"""A digest followed by the group id as four bytes, big end first."""

GROUP_SUFFIXES = [group.to_bytes(4, "big") for group in range(64)]
"""The end of a key, by group."""


def make_block_hash_with_group_id(block_hash: BlockHash, group_id: GroupId) -> BlockHashWithGroupId:
    """Return the key of a prefix in a group."""
    return BlockHashWithGroupId(block_hash + GROUP_SUFFIXES[group_id])


def get_block_hash(key: BlockHashWithGroupId) -> BlockHash:
    """Return the digest in a key."""
    return BlockHash(key[:-4])


def get_group_id(key: BlockHashWithGroupId) -> GroupId:
    """Return the group in a key."""
    return GroupId(int.from_bytes(key[-4:], "big"))


class KVCacheBlock:
    """One physical page as the policy knows it.

    `block_hash` is its first key, None while nobody can hit it, and `block_hash_num_tokens` the
    length of the prefix that this key names.
    """

    __slots__ = ("block_hash", "block_hash_num_tokens", "block_id", "is_null", "ref_cnt")

    def __init__(self, block_id: BlockId) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.block_hash: BlockHashWithGroupId | None = None
        self.block_hash_num_tokens: int | None = None
        self.is_null = False

    def __repr__(self) -> str:
        return (
            f"KVCacheBlock({self.block_id}, ref_cnt={self.ref_cnt},"
            f" tokens={self.block_hash_num_tokens})"
        )


class BlockHashToBlockMap:
    """The blocks under each key, oldest first."""

    def __init__(self) -> None:
        self._first: dict[bytes, KVCacheBlock] = {}
        self._later: dict[BlockHashWithGroupId, dict[BlockId, KVCacheBlock]] = {}
        self.get_one_block = self._first.get

    def contain(self, key: BlockHashWithGroupId, block_id: BlockId) -> bool:
        """Whether this block is under the key."""
        first = self._first.get(key)
        return first is not None and (
            first.block_id == block_id or block_id in self._later.get(key, ())
        )

    def insert(self, key: BlockHashWithGroupId, block: KVCacheBlock) -> None:
        """Put a block under a key, behind those already there."""
        first = self._first.setdefault(key, block)
        if first is not block:
            self._later.setdefault(key, {})[block.block_id] = block

    def pop(self, key: BlockHashWithGroupId, block_id: BlockId) -> bool:
        """Take a block away from a key; return whether it was there."""
        first = self._first.get(key)
        if first is None:
            return False
        later = self._later.get(key)
        if first.block_id == block_id:
            if later:
                self._first[key] = later.pop(next(iter(later)))
            else:
                del self._first[key]
        elif later is None or later.pop(block_id, None) is None:
            return False
        if later is not None and not later:
            del self._later[key]
        return True

    def clear(self) -> list[KVCacheBlock]:
        """Forget every key and return the blocks that had one."""
        blocks = list(self._first.values())
        for later in self._later.values():
            blocks.extend(later.values())
        self._first.clear()
        self._later.clear()
        return blocks
