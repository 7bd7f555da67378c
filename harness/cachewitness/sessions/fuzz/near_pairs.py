"""Which marks a submitted request reaches beside those that came before it: pairs that differ in
one place or part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from cachewitness.core.events import Submitted
from cachewitness.core.trace_format import Media

COMPARED = 12
"""A request is compared with so many that came before it."""
GALLERY = 40


class NearPairs:
    """Remembers who came of late. `sizes` are block sizes in tokens."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes
        self._late: deque[Submitted] = deque(maxlen=COMPARED)
        self._adapters: set[str] = set()
        self._contents: dict[int, set[str]] = {}
        self._seen: set[str] = set()
        """The contents of the images of all who came."""

    def marks(self, event: Submitted) -> Iterator[str]:
        """Yield the marks that a request reaches, and remember it."""
        if event.salt and event.salt in self._adapters:
            yield "salt like an adapter"
        if event.adapter:
            self._adapters.add(event.adapter)
        if len(event.media) > 2:
            yield "several images"
        if any(item.hash in self._seen for item in event.media):
            yield "image sent again"
        self._seen.update(item.hash for item in event.media)
        for item in event.media:
            contents = self._contents.setdefault(item.length, set())
            contents.add(item.hash)
            if len(contents) == GALLERY:
                yield "gallery"
        for other in self._late:
            yield from self._beside_other(other, event)
        self._late.append(event)

    def _beside_other(self, other: Submitted, event: Submitted) -> Iterator[str]:
        ours = (event.salt, event.adapter)
        theirs = (other.salt, other.adapter)
        if ours != theirs:
            yield from _names(ours, theirs)
        elif event.media != other.media:
            yield from _images(event.media, other.media)
        elif len(event.tokens) == len(other.tokens) and event.tokens != other.tokens:
            places = [
                at
                for at, (one, two) in enumerate(zip(event.tokens, other.tokens, strict=True))
                if one != two
            ]
            yield from self._tokens(places)

    def _tokens(self, places: list[int]) -> Iterator[str]:
        if len(places) == 1:
            yield "one token changed"
            if any((places[0] + off) % size == 0 for size in self._sizes for off in (-1, 0, 1)):
                yield "one token changed at a boundary"
        elif len(places) == 2 and places[1] == places[0] + 1:
            yield "two tokens changed"


def _names(ours: tuple[str, str], theirs: tuple[str, str]) -> Iterator[str]:
    if all(ours) and ours == theirs[::-1]:
        yield "salt and adapter exchanged"
    if {"".join(ours), "".join(ours[::-1])} & {"".join(theirs), "".join(theirs[::-1])}:
        yield "names that join alike"
    (salt, adapter) = ours
    (other, beside) = theirs
    if adapter == beside and salt and other and salt[:-1] == other[:-1] and len(salt) == len(other):
        yield "names in one bit"


def _images(ours: list[Media], theirs: list[Media]) -> Iterator[str]:
    if len(ours) != len(theirs):
        return
    differ = [(one, two) for one, two in zip(ours, theirs, strict=True) if one != two]
    if len(differ) == 1:
        ((one, two),) = differ
        if (one.hash, one.length) == (two.hash, two.length) and abs(one.at - two.at) == 1:
            yield "image moved"
        if (one.at, one.length) == (two.at, two.length):
            yield "image exchanged"
