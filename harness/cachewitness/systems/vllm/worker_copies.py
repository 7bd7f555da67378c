"""Which blocks a worker of vLLM's copies: each block of two small caches, of the two forms in which
layers keep theirs, holds its own number, and afterwards that of the block whose content it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cachewitness.core.events import Move


class Copies:
    """The caches, of so many pages."""

    def __init__(self, pages: int) -> None:
        import torch

        self._pages = pages
        apart = torch.zeros((2, pages, 2), dtype=torch.int64)
        self.caches = (torch.zeros((pages, 2), dtype=torch.int64), apart[0])
        """A cache that is a tensor of its own, and one that is half of a tensor, as where keys and
        values lie apart."""

    @contextmanager
    def of(self, asked: Any) -> Iterator[list[Move]]:
        """Yield a list with, afterwards, the copies that were made, if any were `asked` for."""
        import torch

        made: list[Move] = []
        for cache in self.caches if asked else ():
            cache.copy_(torch.arange(self._pages)[:, None].expand_as(cache))
        yield made
        if asked:
            made += self._made()

    def _made(self) -> list[Move]:
        """Return which blocks hold another one's content: all of it, in both caches."""
        one, other = (cache.tolist() for cache in self.caches)
        held = [{*left, *right} for left, right in zip(one, other, strict=True)]
        return [
            Move(min(contents), page)
            for page, contents in enumerate(held)
            if len(contents) == 1 and contents != {page}
        ]
