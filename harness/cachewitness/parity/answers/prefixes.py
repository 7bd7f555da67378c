"""Names the prefixes that keys stand for, so that the keys of two engines can be compared without
their pages.

A key is the first `length` tokens of a request, with whatever else its content depends on. Two
requests that agree so far name one prefix; it is called after the one of them that was asked about
first.

A page that loses a key and gains it again within one call shows neither event, which depends on the
page and not on the decision. So what an operation changed is the keys that are more or fewer than
before it.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable

from cachewitness.core.events import Accept, Event, Publish, Submitted, Unpublish

Key = tuple[int, str, int]
"""The group of a key, and its prefix: a request and how many tokens of it."""


class Prefixes:
    """The prefixes of the requests of one trace."""

    def __init__(self) -> None:
        self._submitted: dict[str, Submitted] = {}
        self._tokens: dict[str, array[int]] = {}
        self._names: dict[Hashable, str] = {}

    def learn(self, events: Iterable[Event]) -> None:
        """Take note of what was submitted and generated in an operation."""
        for event in events:
            if isinstance(event, Submitted):
                self._submitted[event.r] = event
                self._tokens[event.r] = array("q", event.tokens)
            elif isinstance(event, Accept) and event.r in self._tokens:
                self._tokens[event.r].extend(event.tokens)

    def name(self, r: str, length: int) -> str:
        """Return the request that the first `length` tokens of a request are called after;
        itself if it is not known.
        """
        asked = self._submitted.get(r)
        if asked is None:
            return r
        media = tuple((item.at, item.length, item.hash) for item in asked.media if item.at < length)
        return self._names.setdefault(
            (asked.salt, asked.adapter, asked.kernels, media, self._tokens[r][:length].tobytes()), r
        )


class Keys:
    """The keys of one engine, by page."""

    def __init__(self, prefixes: Prefixes) -> None:
        self._prefixes = prefixes
        self._of: defaultdict[tuple[int, int], dict[int, str]] = defaultdict(dict)

    def changes(self, events: Iterable[Event]) -> tuple[list[Key], list[Key]]:
        """Return the keys that there are more of after an operation, and those that there are
        fewer of, in order.
        """
        changed: Counter[Key] = Counter()
        for event in events:
            if isinstance(event, Publish):
                name = self._prefixes.name(event.r, event.length)
                self._of[event.group, event.page][event.length] = name
                changed[event.group, name, event.length] += 1
            elif isinstance(event, Unpublish):
                of = self._of[event.group, event.page]
                for length in [event.length] if event.length else [*of]:
                    changed[event.group, of.pop(length, ""), length] -= 1
        return sorted((+changed).elements()), sorted((-changed).elements())
