"""Caches of the library by the prefix that they hold, as a server built on transformers keeps them.

Whoever puts a cache in and whoever takes one out gets a deep copy: the library writes recurrent
states, convolution states and windows in place. A longer text's cache serves a shorter prefix where
the library can crop it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from cachewitness.core.engine_failure import native

CROPPED = "cropped_to"
"""The attribute that a cache gets: how many tokens it held when it was cropped, which ends what was
recorded of its past."""
Prefix = tuple[str, tuple[int, ...]]
"""An identity, and the tokens."""


class PrefixStore:
    """Keeps caches in so many blocks of tokens; the one that was used least recently makes room."""

    def __init__(self, blocks: int, block: int, *, crop: str) -> None:
        """Say with `crop` whether caches are cropped: `on`, `off`, or `again`: though that ended
        the past that was recorded.
        """
        self._blocks = blocks
        self._block = block
        self._crop = crop
        self._kept: dict[Prefix, Any] = {}
        self._gone: set[Prefix] = set()
        """What made room for others, or had none."""

    def keep(self, identity: str, tokens: Sequence[int], cache: Any) -> None:
        """Keep a copy of a cache that holds so many tokens, if there is room for it alone."""
        place = identity, tuple(tokens)
        if not tokens:
            return
        if self._size(place) > self._blocks:
            self._gone.add(place)
            return
        self._kept[place] = self._kept.pop(place) if place in self._kept else self.copied(cache)
        used = sum(map(self._size, self._kept))
        while used > self._blocks:
            oldest = next(iter(self._kept))
            used -= self._size(oldest)
            del self._kept[oldest]
            self._gone.add(oldest)

    def had_no_room(self, identity: str, tokens: Sequence[int]) -> bool:
        """Whether a cache of the beginning of these tokens, or of all, was evicted or too large."""
        text = tuple(tokens)
        return any(
            whose == identity and text[: len(prefix)] == prefix for whose, prefix in self._gone
        )

    def find(self, identity: str, tokens: Sequence[int]) -> tuple[int, Any]:
        """Return a copy of the cache that holds most of a prompt's tokens but the last, and how
        many; 0 and None without.
        """
        text = tuple(tokens[:-1])
        reach = {place: _shared(text, place[1]) for place in self._kept if place[0] == identity}
        for place in sorted(reach, key=lambda place: (-reach[place], len(place[1]))):
            cache = self._cut(place, len(place[1]) - reach[place]) if reach[place] else None
            if cache is not None:
                self._kept[place] = self._kept.pop(place)
                return reach[place], cache
        return 0, None

    def _cut(self, place: Prefix, tokens: int) -> Any:
        """Return a copy of a kept cache without its last tokens; None if the library cannot have
        it.
        """
        if not tokens:
            return self.copied(self._kept[place])
        left = len(place[1]) - tokens
        lost = 0 if self._crop == "again" else getattr(self._kept[place], CROPPED, 0)
        if self._crop == "off" or left < lost or not self._kept[place].is_croppable:
            return None
        cache = self.copied(self._kept[place])
        setattr(cache, CROPPED, left)
        try:
            with native():
                self.crop(cache, tokens)
        except (
            RuntimeError
        ):  # a window that is full, or a convolution, of which no past was recorded
            return None
        return cache

    def copied(self, cache: Any) -> Any:
        """Return a cache of the same content that shares nothing."""
        return copy.deepcopy(cache)

    def crop(self, cache: Any, tokens: int) -> None:
        """Remove the last tokens from a cache."""
        cache.crop(-tokens)

    def _size(self, place: Prefix) -> int:
        return -(-len(place[1]) // self._block)


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two texts begin with alike."""
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
