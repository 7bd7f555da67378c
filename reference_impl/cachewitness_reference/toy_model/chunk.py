"""A chunk of a request in a step, and the pages that a step's chunks write."""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import chain
from typing import NamedTuple

from cachewitness_reference.toy_model import recurrent
from cachewitness_reference.toy_model.paged_pools import Pools

NULL = 0
"""The page that stands for one that is not there."""
Claim = tuple[int, Sequence[int]]
"""A group, and pages that it writes."""


class Chunk(NamedTuple):
    """Tokens at positions `start` ... of one request, over `tables`, its pages per group by column.

    The last `drafts` tokens are guesses: a recurrent group then writes the state after the last
    known token into its column and the state after the i-th guess into `scratch[group][i - 1]`.
    Logits are wanted of the last `outputs` positions.
    """

    tokens: Sequence[int]
    start: int
    tables: Sequence[Sequence[int]]
    drafts: int = 0
    scratch: Sequence[Sequence[int]] = ()
    outputs: int = 1

    @property
    def stop(self) -> int:
        """The position behind the last token."""
        return self.start + len(self.tokens)


class Writes:
    """What chunks write: `claims` are a group and its pages, in the worker's order, `lost` those
    that another group takes.
    """

    def __init__(self, pools: Pools, chunks: Sequence[Chunk]) -> None:
        self.pools = pools
        kinds = [recurrent.is_recurrent(kind) for kind in pools.kinds]
        self.recurrent = [g for g, is_recurrent in enumerate(kinds) if is_recurrent]
        self.attention = [g for g, is_recurrent in enumerate(kinds) if not is_recurrent]
        self._every_block = [g for g in self.recurrent if pools.groups[g].every_block]
        self._sizes = [group.block_size for group in pools.groups]
        self.claims, self.lost = self._claimed(chunks)

    def kept(self, g: int, page: int) -> bool:
        """Whether what a group writes to a page is there after the step."""
        return 0 <= page < self.pools.pages and page not in self.not_kept(g)

    def not_kept(self, g: int) -> Set[int]:
        """Return the pages of which nothing that a group writes is there after the step."""
        return self.pools.null | self.lost[g] if g in self.lost else self.pools.null

    def cuts(self, chunk: Chunk) -> tuple[int, ...]:
        """Return after how many tokens of a chunk recurrent states are wanted; the last is the
        whole length.
        """
        length = len(chunk.tokens)
        known = len(chunk.tokens) - chunk.drafts
        if not chunk.drafts and not self._every_block:
            return (length,)
        cuts = {length, *range(known, length)}
        for g in self._every_block:
            size = self.pools.groups[g].block_size
            cuts.update(range(size - chunk.start % size, known, size))
        return tuple(sorted(cuts))

    def target(self, g: int, chunk: Chunk, cut: int) -> int:
        """Return the page that a recurrent group writes the state after `cut` tokens of a chunk
        to; the null page for none.
        """
        size = self._sizes[g]
        stop = chunk.start + cut
        guess = cut - (len(chunk.tokens) - chunk.drafts)
        if guess > 0:
            return page_at(chunk.scratch[g], guess - 1) if g < len(chunk.scratch) else NULL
        if guess == 0 or (g in self._every_block and stop % size == 0):
            return page_at(chunk.tables[g], -(-stop // size) - 1)
        return NULL

    def source(self, g: int, chunk: Chunk) -> int:
        """Return the page with the state that a chunk of a recurrent group goes on from; the
        null page for none.
        """
        return (
            page_at(chunk.tables[g], (chunk.start - 1) // self._sizes[g]) if chunk.start else NULL
        )

    def _claimed(self, chunks: Sequence[Chunk]) -> tuple[list[Claim], dict[int, set[int]]]:
        claims = [claim for chunk in chunks for claim in self._written(chunk)]
        pages = [*chain.from_iterable([pages for _, pages in claims])]
        null = self.pools.null
        if pages and (
            min(pages) < 0 or max(pages) >= self.pools.pages or not null.isdisjoint(pages)
        ):
            writable = self.pools.writable
            claims = [(g, [page for page in pages if writable(page)]) for g, pages in claims]
        # As it mostly is, every page is written once.
        return claims, {} if len({*pages}) == len(pages) else _lost(claims)

    def _written(self, chunk: Chunk) -> list[Claim]:
        start = chunk.start
        stop = start + len(chunk.tokens)
        sizes = self._sizes
        tables = chunk.tables
        states = [
            (g, [self.target(g, chunk, cut) for cut in self.cuts(chunk)]) for g in self.recurrent
        ]
        return states + [
            (g, tables[g][start // sizes[g] : (stop - 1) // sizes[g] + 1]) for g in self.attention
        ]


def page_at(table: Sequence[int], column: int) -> int:
    """Return the page in a column of a block table; the null page where there is none."""
    return table[column] if 0 <= column < len(table) else NULL


def _lost(claims: list[Claim]) -> dict[int, set[int]]:
    """Return per group the pages that it writes and that another group writes after it in the
    same step.
    """
    last = {page: g for g, pages in claims for page in pages}
    lost: dict[int, set[int]] = {}
    for g, pages in claims:
        for page in pages:
            if last[page] != g:
                lost.setdefault(g, set()).add(page)
    return lost
