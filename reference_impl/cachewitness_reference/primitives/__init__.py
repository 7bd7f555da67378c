"""Domain types and the hash chain: all that policies share. Each policy owns its pool."""

from cachewitness_reference.primitives.hash_chain import GENESIS, chain
from cachewitness_reference.primitives.types import BlockHash, BlockId, GroupId, Position

__all__ = ["GENESIS", "BlockHash", "BlockId", "GroupId", "Position", "chain"]
