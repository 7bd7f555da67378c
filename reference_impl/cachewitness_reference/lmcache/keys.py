"""Names of stored objects: what a chunk holds, of which part of which model, for whom.

A chunk is named by a digest of everything up to its end, rolled over full chunks: h(i) = H(h(i -
1), tokens of chunk i). The tail of a prompt that fills no chunk has no name and is never stored. Of
an image the prompt has placeholders only; they are replaced by ids made from the image's hash, a
different one at every position, before anything is hashed.

LMCache's key has no field for the chunk size, the data type, the engine's attention backend or its
kernel block size: engines that differ in one of those must not share a server. Nor has it one for
an adapter. Here an adapter enters the first digest, and backend and kernel block size the model's
name, as a layout of context parallelism does in LMCache (our choices).

Sources (0.5.6): `v1/multiprocess/token_hasher.py`; `v1/distributed/api.py`;
`integration/vllm/utils.py` (ids of images).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from cachewitness_reference.lmcache.spec import SALT_FORBIDDEN, SALT_LENGTH_MAX
from cachewitness_reference.primitives import BlockHash

_TOKEN_BYTES = 8
_MEDIA_IDS = 1 << 62
"""Ids of images begin here, above every token's."""


class KeyRefused(ValueError):
    """A name or a salt that a key cannot carry; the message is one line."""


class MediaItem(Protocol):
    """Placeholder tokens [offset, offset + length) that stand for the content called
    `identifier`.
    """

    @property
    def offset(self) -> int:
        """Where it begins."""

    @property
    def length(self) -> int:
        """How many tokens it takes."""

    @property
    def identifier(self) -> str:
        """The hash of its content."""


@dataclass(frozen=True)
class ObjectKey:
    """The name of one object: a chunk of one object group, as one rank holds it."""

    chunk_hash: BlockHash
    model_name: str
    kv_rank: int
    object_group_id: int = 0
    cache_salt: str = ""


def check_model_name(name: str) -> None:
    """Refuse a model name that could not be told apart inside a key."""
    if "@" in name:
        raise KeyRefused(f"model_name must not contain '@' (got {name!r})")


def name_with_kernels(model_name: str, kernels: str) -> str:
    """Return under which name a model's objects are kept for engines with these kernels; refuse a
    text that a key cannot carry.

    `kernels` name the attention backend and the kernel block size; nothing is said of an engine
    that is alone with its server.
    """
    check_model_name(kernels)
    return f"{model_name}##kernels-{kernels}" if kernels else model_name


def check_salt(salt: str) -> None:
    """Refuse a salt that could not be told apart inside a key, or is too long."""
    bad = SALT_FORBIDDEN & set(salt)
    if bad:
        raise KeyRefused(f"cache_salt must not contain {bad!r} (got {salt!r})")
    if len(salt) > SALT_LENGTH_MAX:
        raise KeyRefused(f"cache_salt exceeds max length {SALT_LENGTH_MAX} (got {len(salt)})")


def kv_rank(world_size: int, global_rank: int, local_world_size: int, local_rank: int) -> int:
    """Return the number of a worker's share: the four counts, a byte each."""
    return world_size << 24 | global_rank << 16 | local_world_size << 8 | local_rank


def lookup_ranks(world_size: int, *, mla_only: bool = False) -> list[int]:
    """Return the shares of which a chunk consists: every worker's, or one if latent attention is
    the same on all.
    """
    count = 1 if mla_only else world_size
    return [kv_rank(world_size, rank, world_size, rank) for rank in range(count)]


def adjusted_ids(tokens: Sequence[int], media: Sequence[MediaItem]) -> list[int]:
    """Return the tokens with those of images replaced by ids of their content and the place in
    it.
    """
    ids = list(tokens)
    for item in media:
        for index in range(min(item.length, len(ids) - item.offset)):
            digest = sha256(f"{item.identifier}\x00{index}".encode()).digest()
            ids[item.offset + index] = _MEDIA_IDS | int.from_bytes(digest[:8], "big") % _MEDIA_IDS
    return ids


class TokenHasher:
    """The digests of a prompt's full chunks."""

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    @staticmethod
    def seed(adapter: str = "") -> BlockHash:
        """Return what stands before the first chunk."""
        return BlockHash(sha256(b"none" + adapter.encode()).digest())

    def extend(self, hashes: list[BlockHash], tokens: Sequence[int], adapter: str = "") -> None:
        """Add the digests of full chunks that `hashes` lacks. Costs what is new, whatever came
        before.
        """
        size = self.chunk_size
        while (end := (len(hashes) + 1) * size) <= len(tokens):
            digest = sha256(hashes[-1] if hashes else self.seed(adapter))
            digest.update(
                b"".join(token.to_bytes(_TOKEN_BYTES, "big") for token in tokens[end - size : end])
            )
            hashes.append(BlockHash(digest.digest()))
