"""A request as the cache knows it: what its tokens are, and which blocks it holds.

What tells two computations apart is more than the token ids. Salt and adapter name a tree of their
own (`identity`); a media item puts its hash beside each of its placeholder tokens, so that a prefix
before the picture is shared and one behind it only with the same picture. A token together with
such a hash is a *symbol*, and the tree matches symbols.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from cachewitness_reference.furiosa.radix_tree import Entry, Symbol
from cachewitness_reference.primitives import BlockId


class Status(Enum):
    """Where a request is in its life."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(frozen=True)
class MediaItem:
    """Placeholder tokens [at, at + length) carry the content called `content_hash`."""

    at: int
    length: int
    content_hash: str


@dataclass(frozen=True)
class BlockCopy:
    """The part of a block that a hit ends in, to be copied before the request's first step runs.
    Same pool on both sides.
    """

    source: BlockId
    target: BlockId


class Request:
    """A request. `num_computed` tokens have been computed or were found; `num_stored` of them are
    in the tree.

    `global_blocks` has a block for each column; `sliding_blocks` has None where the window has left
    or never was.
    """

    def __init__(
        self,
        request_id: str,
        prompt: Sequence[int],
        *,
        salt: str = "",
        adapter: str = "",
        media: Iterable[MediaItem] = (),
    ) -> None:
        self.request_id = request_id
        self.identity = (salt, adapter)
        self.symbols: list[Symbol] = list(prompt)
        for item in reversed(tuple(media)):
            for position in range(item.at, min(item.at + item.length, len(prompt))):
                self.symbols[position] = (prompt[position], item.content_hash)
        self.num_prompt_tokens = len(prompt)
        self.status = Status.WAITING
        self.start_again()

    def start_again(self) -> None:
        """Forget what was computed: the request holds no block."""
        self.num_computed = self.num_stored = 0
        self.global_blocks: list[BlockId] = []
        self.sliding_blocks: list[BlockId | None] = []
        self.first_sliding_column = 0
        self.global_copy: BlockCopy | None = None
        self.sliding_copy: BlockCopy | None = None
        self.last: Entry | None = None
        """The entry that ends where the request's stored tokens end; it and all above it are
        active."""

    @property
    def num_tokens(self) -> int:
        """How many tokens are known: the prompt and what was generated."""
        return len(self.symbols)

    def append(self, tokens: Iterable[int]) -> None:
        """Take generated tokens in."""
        self.symbols += tokens
