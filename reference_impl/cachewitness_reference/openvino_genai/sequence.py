"""A request and its sequences: tokens, identity, and the digest of every prefix.

OpenVINO hashes the prefixes of a prompt with each cache's own block size. Here one chain over KV
blocks serves both caches: the checkpoint interval is a multiple of a KV block, so every length that
either cache names is a KV boundary or a tail behind one.

Two prefixes of the same tokens are different computations if their salt, their adapter or the media
at their placeholder tokens differ. OpenVINO hashes none of these; mixing them in is our choice,
since a cache must not answer one for the other. Media count for the tokens that they cover, so what
ends before an image is shared by prompts with different images.

Source: `sequence_group.hpp`, `sequence_group.cpp`.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from enum import Enum, auto

from cachewitness_reference.primitives import GENESIS, BlockHash, Position, chain


class Status(Enum):
    """Where a request is in its life. IGNORED: it was dropped because nothing fitted
    (OUT_OF_MEMORY).
    """

    RUNNING = auto()
    FINISHED = auto()
    CANCELLED = auto()
    IGNORED = auto()


@dataclass(frozen=True)
class MediaItem:
    """Placeholder tokens [at, at + length) carry the content called `content`."""

    at: int
    length: int
    content: str


@dataclass(frozen=True)
class Identity:
    """What tells equal tokens apart."""

    salt: str = ""
    adapter: str = ""
    media: tuple[MediaItem, ...] = ()

    def extra(self, start: int, stop: int) -> tuple[object, ...]:
        """Return what enters the digest of tokens [start, stop) beside the tokens."""
        marks: list[object] = (
            [("salt", self.salt, self.adapter)]
            if start == 0 and (self.salt or self.adapter)
            else []
        )
        for item in self.media:
            first = max(item.at, start)
            last = min(item.at + item.length, stop)
            if first < last:
                marks.append(("media", item.content, first - start, last - start))
        return tuple(marks)


class Sequence:
    """One row of tokens with a block table of its own. `kv_block_size` in tokens."""

    def __init__(
        self,
        sequence_id: str,
        tokens: Tokens[int],
        kv_block_size: int,
        identity: Identity | None = None,
    ) -> None:
        self.sequence_id = sequence_id
        self.kv_block_size = kv_block_size
        self.identity = identity or Identity()
        self.tokens: list[int] = list(tokens)
        self._hashes: list[BlockHash] = [GENESIS]
        self._tail: tuple[Position, BlockHash] = (Position(0), GENESIS)

    def append(self, token: int) -> None:
        """Add a generated token."""
        self.tokens.append(token)

    def fork(self, child_id: str) -> Sequence:
        """Return a sequence of the same tokens; the digests are shared, not computed again."""
        child = Sequence(child_id, self.tokens, self.kv_block_size, self.identity)
        child._hashes = list(self._hashes)
        return child

    def boundary_hash(self, blocks: int) -> BlockHash:
        """Return the digest of the first `blocks` KV blocks; that of none is the same for all."""
        size = self.kv_block_size
        hashes = self._hashes
        while len(hashes) <= blocks:
            start = (len(hashes) - 1) * size
            stop = len(hashes) * size
            assert stop <= len(self.tokens), "a digest is asked for beyond the known tokens"
            hashes.append(
                chain(hashes[-1], self.tokens[start:stop], self.identity.extra(start, stop))
            )
        return hashes[blocks]

    def hash_of(self, length: Position) -> BlockHash:
        """Return the digest of the first `length` tokens, wherever they end."""
        blocks, rest = divmod(length, self.kv_block_size)
        if rest == 0:
            return self.boundary_hash(blocks)
        if self._tail[0] != length:
            start = length - rest
            extra = (*self.identity.extra(start, length), ("tail", rest))
            self._tail = (
                length,
                chain(self.boundary_hash(blocks), self.tokens[start:length], extra),
            )
        return self._tail[1]

    def parent_of(self, length: Position) -> BlockHash | None:
        """Return the digest of the last KV boundary before `length`; None if `length` is one."""
        blocks, rest = divmod(length, self.kv_block_size)
        return self.boundary_hash(blocks) if rest else None


class SequenceGroup:
    """A request: one prompt, and the sequences that grew from it, all of one length.

    `num_processed`: tokens whose keys, values and states are in the cache. `max_content`: the most
    that ever were; a group that had its whole prompt processed once belongs to the generate phase,
    also after a preemption. `looked_up`: whether it was restored since it last lost everything.
    `waiting`: it was preempted in this step.
    """

    def __init__(
        self,
        request_id: str,
        prompt: Tokens[int],
        kv_block_size: int,
        *,
        identity: Identity | None = None,
        max_new_tokens: int = 2**31 - 1,
        num_sequences: int = 1,
    ) -> None:
        self.request_id = request_id
        self.prompt_length = len(prompt)
        self.max_new_tokens = max_new_tokens
        self.num_sequences = num_sequences
        self.sequences = [Sequence(request_id, prompt, kv_block_size, identity)]
        self.status = Status.RUNNING
        self.num_processed = self.max_content = Position(0)
        self.looked_up = self.waiting = False

    @property
    def length(self) -> int:
        """Tokens known so far, of each sequence."""
        return len(self.sequences[0].tokens)

    @property
    def can_generate(self) -> bool:
        """Whether its prompt has been processed, now or before a preemption."""
        return self.max_content >= self.prompt_length

    @property
    def num_available(self) -> int:
        """Tokens that are known and not processed."""
        return self.length - self.num_processed

    def processed(self, tokens: int) -> None:
        """Take note that a step processed so many tokens of each sequence."""
        self.num_processed = Position(self.num_processed + tokens)
        self.max_content = max(self.max_content, self.num_processed)
        assert self.num_processed <= self.length
