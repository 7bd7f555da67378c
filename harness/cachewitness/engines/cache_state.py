"""What a cache shows of itself: block tables, keys, reference counts, and what its pools count.

There are two ways to show it. A `CacheState` is compared whole after each call. A `DirtyCacheState`
says which pages may have changed, and is asked about those alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

ABSENT = -1
"""The page of a column that is not there: never allocated, or given back."""

Tables = list[list[int]]
"""Pages by group and column."""
KeyId = tuple[int, int, Hashable]
"""A group, a page of its pool, and whatever the cache calls the key."""


class Claim(NamedTuple):
    """What a key says: the page holds what ends the first `length` tokens of `r`; empty: of the
    request that was served.

    `extra_pages` are further pages that the same key occupies.
    """

    length: int
    r: str = ""
    extra_pages: tuple[int, ...] = ()


class KeysByEntry(dict[Hashable, Mapping[KeyId, Claim]]):
    """The keys of each entry of a cache, by all that they depend on; they are compared by entry and
    not one by one.

    Two entries may have a key in common, with the same claim.
    """


class Count(NamedTuple):
    """A pool's own books: pages free, held by somebody, kept for their key alone."""

    free: int
    held: int
    cached: int


PageState = tuple[int, int, Hashable | None, bool]
"""A page, how often it is held, the key that it is kept for (None: for none), whether it may have
several."""


class CacheState(Protocol):
    """A cache that is compared whole. Nothing it returns is changed, neither here nor by the
    cache afterwards.
    """

    def tables(self, r: str) -> Tables:
        """Return the pages that a request holds, by group and column, ABSENT where there is
        none; [] if it is not known.
        """

    def keys(self) -> Mapping[KeyId, Claim] | KeysByEntry:
        """Return every key that can be hit now; empty for a cache without keys."""

    def counts(self) -> Mapping[int, Count]:
        """Return the books of every pool that keeps some, by the pool's id."""

    def references(self, pool: int, page: int) -> int | None:
        """Return how often the cache says that a page is held; None if it does not count."""


@runtime_checkable
class DirtyCacheState(Protocol):
    """A cache of one pool that says which of its pages may have changed since it was last asked.

    What it returns is not changed afterwards.
    """

    scratching: bool
    """Whether requests hold pages beside their tables."""

    def tables(self, r: str) -> Tables:
        """Return the pages that a request holds, by group and column; the same object if nothing
        changed.
        """

    def scratch(self, r: str) -> Tables:
        """Return by group the pages that a request holds beside its tables, which come and go
        all together.
        """

    def untied(self, pages: list[int]) -> list[int]:
        """Return pages that are given back, and those that they stood for when they were taken."""

    def tied(self, pages: list[int]) -> list[int]:
        """Return pages that are taken, and those that they stand for."""

    def look(self, moved: Iterable[tuple[int, int]] | None) -> Sequence[PageState]:
        """Return in order the pages that may have changed as they are; None: all.

        `moved` are those that joined or left tables since, each with its pool.
        """

    def keys_of(self, page: int, known: Mapping[Hashable, Claim]) -> Mapping[Hashable, Claim]:
        """Return the keys of a page that can be hit; `known` are those that it had."""

    def group_of(self, key: Hashable) -> int:
        """Return the group that a key belongs to."""

    def num_free(self) -> int:
        """Return how many pages are in the free queue, those that are kept for a key among them."""
