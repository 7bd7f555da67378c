"""The hash chain: one digest names a prefix.

Every link covers the digest before it, the tokens of its own block and whatever else tells two
computations apart (adapter, media, salt). So equal digests mean equal prefixes from the first token
on, and a table from digests to blocks needs neither the tokens nor a walk from the root. Blocks of
a coarser group need no chain of their own: the link that ends where such a block ends already
covers it.

Source of the rule: vLLM, `v1/core/kv_cache_utils.py`, `hash_block_tokens` (0.33.0). The encoding
below is our own; digests are compared with each other and never with an engine's.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import sha256

from cachewitness_reference.primitives.types import BlockHash

GENESIS = BlockHash(sha256(b"cachewitness").digest())
"""The parent of every first block."""


def chain(parent: BlockHash, tokens: Sequence[int], extra: tuple[object, ...] | None) -> BlockHash:
    """Return the digest of the prefix that `tokens` (64-bit ints, always the same count) append
    to `parent`.
    """
    digest = sha256(parent)
    digest.update(array("q", tokens).tobytes())
    if extra is not None:
        digest.update(repr(extra).encode())
    return BlockHash(digest.digest())
