"""Blocks of a device whose bytes say whose they are: every word holds the block's mark, its layer
and its own place.

A mark is given once. Where words of a mark turn up, whole and in every layer, they were copied from
the block that got it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cachewitness._util.errors import UsageError
from cachewitness.systems.lmcache.modules import PAGE_BYTES

LAYERS = 2
"""Layers of each group; together a block of them is a page of LMCache's memory."""
WORD = 4
"""Bytes of a word."""
WORDS = PAGE_BYTES // WORD
"""Words of a block, in all its layers."""
EACH = WORDS // LAYERS
MOST = (1 << 31) // WORDS
"""Marks that fit into a word beside a place."""


class MarkedBlocks:
    """So many blocks of each group, the null block included. A layer's tensor is [block, word]."""

    def __init__(self, block_sizes: Sequence[int], blocks: int) -> None:
        if wrong := [size for size in block_sizes if EACH % size]:
            raise UsageError(
                f"--engine: blocks of {wrong[0]} tokens do not divide {EACH}, as those of LMCache's"
                " device have to"
            )
        torch = importlib.import_module("torch")
        self._numpy = numpy = importlib.import_module("numpy")
        self._places = numpy.arange(WORDS, dtype=numpy.int32).reshape(LAYERS, EACH)
        words = [torch.zeros((LAYERS, blocks, EACH), dtype=torch.int32) for _ in block_sizes]
        self._words = [group.numpy() for group in words]
        """By group: [layer, block, word]."""
        self.tensors = [[layer.view(torch.float32) for layer in group] for group in words]
        """By group: the layers' tensors."""
        self._count = 0

    def mark(self, group: int, blocks: Iterable[int]) -> dict[int, int]:
        """Give each of these blocks a new mark, the null block none; return whose each is.
        Raises UsageError for too many.
        """
        given: dict[int, int] = {}
        for block in sorted({*blocks} - {0}):
            self._count += 1
            if self._count >= MOST:
                raise UsageError(
                    f"--engine: a trace with more than {MOST} copies of blocks is more than"
                    " LMCache's device can tell"
                )
            self._words[group][:, block] = self._places + self._count * WORDS
            given[self._count] = block
        return given

    def held(self, group: int, block: int) -> int:
        """Return the mark of a block; 0 if it has none, or not one in all its words."""
        words = self._words[group][:, block]
        mark = int(words[0, 0]) // WORDS
        return mark if (words == self._places + mark * WORDS).all() else 0

    def copies(self) -> list[Any]:
        """Return every word as it is now."""
        return [group.copy() for group in self._words]

    def changed(self, before: Sequence[Any]) -> list[tuple[int, int]]:
        """Return which blocks of which groups have other words than before, and say on standard
        error which are torn.
        """
        found = list[tuple[int, int]]()
        for group, (now, then) in enumerate(zip(self._words, before, strict=True)):
            blocks = [int(block) for block in (now != then).any(axis=(0, 2)).nonzero()[0]]
            found += [(group, block) for block in blocks]
            for block in blocks:
                if not self.held(group, block):
                    print(
                        f"block {block} of group {group}: what arrived is no whole block",
                        file=sys.stderr,
                    )
        return found

    def within(self, content: Any, marks: Mapping[int, Any]) -> list[int]:
        """Return which of these marks are in an object's bytes (a tensor) with every word of
        theirs, in whatever order.
        """
        words = content.view(-1).view(importlib.import_module("torch").int32).numpy()
        seen, counts = self._numpy.unique(self._numpy.unique(words) // WORDS, return_counts=True)
        whole = {int(mark) for mark, count in zip(seen, counts, strict=True) if count == WORDS}
        return [mark for mark in marks if mark in whole]
