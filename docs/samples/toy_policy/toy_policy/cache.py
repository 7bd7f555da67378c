"""The policy: a full block is keyed by all that precedes it; of the pages that nobody holds, those
without a key go first.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field

Key = tuple[Hashable, ...]
"""Whose prefix it is, then each token of it, or the image that is there."""


@dataclass
class Request:
    content: list[Hashable]
    table: list[int] = field(default_factory=list)
    computed: int = 0


class PagedCache:
    def __init__(self, pages: int, block_size: int) -> None:
        self.block_size, self.references = block_size, [0] * pages
        self.idle = dict.fromkeys(range(pages))  # nobody holds them; given back first, in front
        self.pages: dict[Key, int] = {}
        self.keys: dict[int, Key] = {}

    def key(self, request: Request, blocks: int) -> Key:
        return tuple(request.content[: 1 + blocks * self.block_size])

    def lookup(self, request: Request) -> list[int]:
        """Return the pages of the longest prefix that is cached and leaves a token to compute."""
        blocks = range(1, (len(request.content) - 2) // self.block_size + 1)
        found = [self.pages.get(self.key(request, count), -1) for count in blocks]
        return found[: found.index(-1)] if -1 in found else found

    def admit(self, request: Request) -> bool:
        """Let a request hold what is cached of it; False if no page is left to compute on."""
        hit = self.lookup(request)
        if len(self.idle) == sum(page in self.idle for page in hit):
            return False
        for page in hit:
            self._hold(request, page)
        request.computed = len(hit) * self.block_size
        return True

    def allocate(self, request: Request, tokens: int) -> int:
        """Take pages for more tokens, evicting what is in them; return how many tokens fit."""
        stop = min(request.computed + tokens, len(request.content) - 1)
        while len(request.table) * self.block_size < stop and self.idle:
            page = min(self.idle, key=lambda page: page in self.keys)
            self.pages.pop(self.keys.pop(page, ()), None)
            self._hold(request, page)
        return min(stop, len(request.table) * self.block_size) - request.computed

    def commit(self, request: Request, computed: int) -> None:
        """Key the blocks that a step has filled; of two with the same content the first one."""
        for column in range(request.computed // self.block_size, computed // self.block_size):
            key, page = self.key(request, column + 1), request.table[column]
            if self.pages.setdefault(key, page) == page:
                self.keys[page] = key
        request.computed = computed

    def release(self, request: Request) -> None:
        """Give pages back, the last one first, so that prefixes are evicted from their ends."""
        for page in reversed(request.table):
            self.references[page] -= 1
            if not self.references[page]:
                self.idle[page] = None
        request.table, request.computed = [], 0

    def _hold(self, request: Request, page: int) -> None:
        self.references[page] += 1
        self.idle.pop(page, None)
        request.table.append(page)
