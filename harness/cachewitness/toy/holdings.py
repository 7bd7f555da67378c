"""Which pages have content that somebody may still read, from what the engine says of them.

A page that nobody holds and no key names is free, and what a free page holds is poison. This is the
rule by which the ledger forgets a page, kept a second time from the same events, so that the
tensors forget it at the same moment.
"""

from __future__ import annotations

from collections import defaultdict

from cachewitness.core.events import Acquire, Event, Header, Publish, Release, Unpublish

Page = tuple[int, int]
"""A pool and a page of it."""
Key = tuple[int, int, int, tuple[int, ...]]
"""A group, the first page of a key, its length, its further pages."""


class Holdings:
    """Follows takes, drops, publications and their ends; `freed` gathers the pages that became
    free.
    """

    def __init__(self, header: Header) -> None:
        self._pool_of = {group.id: group.pool for group in header.groups}
        self._null = {(pool.id, page) for pool in header.pools for page in pool.null}
        self._holders: dict[Page, dict[str, int]] = defaultdict(dict)
        self._keys: dict[Page, list[Key]] = defaultdict(list)
        self.freed: list[Page] = []

    def follow(self, event: Event) -> None:
        """Take in one event."""
        if isinstance(event, Acquire):
            holder = event.holder
            for page in event.pages:
                holders = self._holders[event.pool, page]
                holders[holder] = holders.get(holder, 0) + 1
        elif isinstance(event, Release):
            for page in event.pages:
                self._drop((event.pool, page), event.holder)
        elif isinstance(event, Publish):
            key = (event.group, event.page, event.length, tuple(event.extra_pages))
            for place in self._places(key):
                self._keys[place].append(key)
        elif isinstance(event, Unpublish):
            place = (self._pool_of[event.group], event.page)
            for key in list(self._keys[place]):
                if key[:2] == (event.group, event.page) and event.length in (0, key[2]):
                    self._forget(key)

    def _places(self, key: Key) -> list[Page]:
        group, page, _, extra_pages = key
        places = [(self._pool_of[group], s) for s in (page, *extra_pages)]
        return [place for place in places if place not in self._null]

    def _drop(self, place: Page, holder: str) -> None:
        holders = self._holders[place]
        if holder in holders:
            holders[holder] -= 1
            if not holders[holder]:
                del holders[holder]
            if not holders and not self._keys[place]:
                self.freed.append(place)

    def _forget(self, key: Key) -> None:
        for place in self._places(key):
            self._keys[place].remove(key)
            if not self._keys[place] and not self._holders[place]:
                self.freed.append(place)
