"""The prefix cache of the sample engine: pages of one pool hold the keys of a block, or the state
behind it.

A page is found again by a name: what it holds, the identity of the request, and the tokens up to
its end. Pages that nobody holds keep their names until they are needed; the one that was let go
first goes first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cachewitness.systems.sample.model import Key, State

Name = tuple[Literal["keys", "state"], str, tuple[int, ...]]


@dataclass(eq=False)
class Page:
    """A page: the keys of some tokens, or a state; `users` requests hold it. `seen`: behind how
    many tokens of whom it is.
    """

    keys: list[Key] = field(default_factory=list)
    state: State = ()
    seen: tuple[str, int] = ("", 0)
    users: int = 0
    name: Name | None = None


class Full(Exception):
    """No page is free, and none can be evicted."""


class Cache:
    """Pages by name. `enabled` False: nothing gets a name."""

    def __init__(self, pages: int, *, enabled: bool) -> None:
        self.enabled = enabled
        self.free = [Page() for _ in range(pages)]
        self.named: dict[Name, Page] = {}
        self.idle: dict[Page, None] = {}
        """Named pages that nobody holds, the one let go first in front."""

    def take(self) -> Page:
        """Return an empty page, held once. Raises Full."""
        page = self.free.pop() if self.free else self.evict()
        page.keys = []
        page.state = ()
        page.users = 1
        return page

    def evict(self) -> Page:
        """Take its name from the page that was let go first. Raises Full."""
        page = next(iter(self.idle), None)
        if page is None:
            raise Full
        del self.idle[page]
        self.forget(page)
        return page

    def forget(self, page: Page) -> None:
        """Take a page's name."""
        if page.name is not None:
            del self.named[page.name]
            page.name = None

    def publish(self, page: Page, name: Name) -> None:
        """Name a page, unless another has that name."""
        if self.enabled and page.name is None and name not in self.named:
            self.named[name] = page
            page.name = name

    def find(self, name: Name) -> Page | None:
        """Return the page of a name."""
        return self.named.get(name)

    def hold(self, page: Page) -> Page:
        """Hold a page once more."""
        self.idle.pop(page, None)
        page.users += 1
        return page

    def release(self, pages: list[Page]) -> None:
        """Let pages go; those with a name stay until they are needed, longer prefixes going
        first.
        """
        for page in reversed(pages):
            page.users -= 1
            if not page.users:
                if page.name is None:
                    self.free.append(page)
                else:
                    self.idle[page] = None
