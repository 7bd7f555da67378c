"""Domain types and the hash chain: all that policies share. Each policy owns its pool."""

from reference_impl.primitives.hash_chain import GENESIS, chain
from reference_impl.primitives.types import BlockHash, BlockId, GroupId, Position

__all__ = ["GENESIS", "BlockHash", "BlockId", "GroupId", "Position", "chain"]
