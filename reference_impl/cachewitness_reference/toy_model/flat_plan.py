"""What a step over flat tokens touches: block tables, places and pages of all requests as one array
of integers.

Requests of any length stand behind one another, so a step runs the same operations whatever their
lengths are, and the same shapes for equal `Shape`s: that is what a captured graph depends on. A
request is cut into segments where a recurrent state is wanted: after its last known token, after
each draft, and at block boundaries for groups that keep every block.

Null pages and pages that another group writes in the same step are not written: their place is
`NOT_KEPT`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from cachewitness_reference.toy_model.chunk import NULL, Chunk, Claim, Writes
from cachewitness_reference.toy_model.kernels import Span
from cachewitness_reference.toy_model.paged_plan import Bucket
from cachewitness_reference.toy_model.paged_pools import Pools

NOT_KEPT = -1
"""The place or page of what is not written, and the page of a state before the first token."""
COLUMNS_LEAST = 8


class Shape(NamedTuple):
    """How many tokens, requests, segments and logits a step has, its longest chunk, and the
    columns of each group's table.
    """

    tokens: int
    requests: int
    segments: int
    wanted: int
    longest: int
    columns: tuple[int, ...]


@dataclass
class FlatPlan:
    """A step: `numbers` lie on the host as `batch` reads them; `claims` are the pages written, in
    the worker's order.

    `first` are the first tokens of chunks and the end of the last, `cuts` after how many tokens of
    each a state is wanted, padding's last.
    """

    shape: Shape
    numbers: Tensor
    claims: list[Claim]
    first: list[int]
    cuts: list[tuple[int, ...]]

    def buckets(self, count: int) -> list[Bucket]:
        """Return so many chunks as buckets of one row each, for a watch."""
        spans = zip(pairwise(self.first), self.cuts, strict=True)
        return [Bucket(begin, 1, end - begin, cuts) for (begin, end), cuts in islice(spans, count)]


@dataclass
class Batch:
    """A plan on the device, all int32 and of one dimension.

    Of N flat tokens `tokens`, rotary `angles` and those `wanted` as logits; of R requests `first`
    [R + 1] and `starts`; of S segments `segments` [R + 1], `owners` and `stops`. Of an attention
    group its table [R * columns] and the places of keys [N], of a recurrent group the pages that
    are read [R] and those that segments are saved in [S].
    """

    shape: Shape
    groups: list[tuple[Tensor, Tensor]]
    tokens: Tensor
    angles: Tensor
    wanted: Tensor
    first: Tensor
    starts: Tensor
    segments: Tensor
    owners: Tensor
    stops: Tensor


def batch(shape: Shape, numbers: Tensor) -> Batch:
    """Name the parts of a plan's numbers, wherever they lie."""
    n = shape.tokens
    r = shape.requests
    s = shape.segments
    sizes = [n, n, shape.wanted, r + 1, r, r + 1, s, s]
    for columns in shape.columns:
        sizes += [r * columns, n] if columns else [r, s]
    parts = numbers.split(sizes)
    return Batch(shape, list(zip(parts[8::2], parts[9::2], strict=True)), *parts[:8])


def plan(
    pools: Pools, chunks: Sequence[Chunk], pad_rows: int, positions: Callable[[Span], Sequence[int]]
) -> FlatPlan:
    """Lay a step out. Requests are filled up to a multiple of `pad_rows`; the added ones read
    poison and write nothing.
    """
    planner = _Planner(pools, chunks)
    padding = Chunk([0], 0, [[]] * len(pools.groups))
    laid = [*chunks, *[padding] * (-len(chunks) % pad_rows)]
    stops = list(accumulate(len(chunk.tokens) for chunk in laid))
    cuts = [planner.writes.cuts(chunk) for chunk in laid]
    first = [0, *stops]
    segments = [0, *accumulate(len(own) for own in cuts)]
    parts: list[Sequence[int]] = [
        [token for chunk in laid for token in chunk.tokens],
        [position for chunk in laid for position in positions(chunk)],
        [
            at
            for chunk, stop in zip(laid, stops, strict=True)
            for at in range(stop - chunk.outputs, stop)
        ],
        first,
        [chunk.start for chunk in laid],
        segments,
        [r for r, own in enumerate(cuts) for _ in own],
        [begin + cut for begin, own in zip(first, cuts, strict=False) for cut in own],
    ]
    columns = tuple(planner.columns(g) for g in range(len(pools.groups)))
    for g, width in enumerate(columns):
        parts += planner.attention(g, laid, width) if width else planner.states(g, laid, cuts)
    longest = max(len(chunk.tokens) for chunk in laid)
    shape = Shape(stops[-1], len(laid), segments[-1], len(parts[2]), longest, columns)
    # One buffer for all parts, so that a step costs one transfer to the device.
    numbers = array("i")
    for part in parts:
        numbers += array("i", part)
    sent = torch.frombuffer(numbers, dtype=torch.int32)
    return FlatPlan(shape, sent, planner.claims(), first, cuts)


class _Planner:
    def __init__(self, pools: Pools, chunks: Sequence[Chunk]) -> None:
        self.pools = pools
        self.chunks = chunks
        self.writes = Writes(pools, chunks)
        self.last = max([chunk.stop for chunk in chunks])

    def claims(self) -> list[Claim]:
        """Return what is claimed; a page that stays its group's is left out, unless groups take
        pages from others.
        """
        claims = self.writes.claims
        owner = self.pools.owner
        if self.writes.lost:
            return claims
        return [(g, pages) for g, pages in claims if len(pages) != 1 or owner[pages[0]] != g]

    def columns(self, g: int) -> int:
        """Return how many columns the table of a group gets: a power of 2, so that growing
        requests seldom change the shape.
        """
        if g in self.writes.recurrent:
            return 0
        needed = -(-self.last // self.pools.groups[g].block_size)
        return max(COLUMNS_LEAST, 1 << (needed - 1).bit_length())

    def attention(self, g: int, laid: Sequence[Chunk], columns: int) -> list[Sequence[int]]:
        """Return the table of a group, and the place of each token's key, counted in tokens from
        page 0.

        Columns in front of the window are left null.
        """
        size = self.pools.groups[g].block_size
        count = self.pools.pages
        not_kept = self.writes.not_kept(g)
        table = array("i", [NULL]) * (columns * len(laid))
        places = list[int]()
        window = (
            self.pools.config.sliding_window if self.pools.kinds[g] == "sliding_attention" else 0
        )
        for at, chunk in enumerate(laid):
            start = chunk.start
            stop = start + len(chunk.tokens)
            row = chunk.tables[g]
            end = (stop - 1) // size + 1
            oldest = (start - window + 1) // size if 0 < window <= start else 0
            seen = row[oldest:end]
            first = at * columns + oldest
            table[first : first + len(seen)] = seen if isinstance(seen, array) else array("i", seen)
            for column in range(start // size, end):
                begin = column * size
                page = row[column] if column < len(row) else NULL
                low = start if start > begin else begin
                high = stop if stop < begin + size else begin + size
                shift = page * size - begin
                kept = 0 <= page < count and page not in not_kept
                places += range(low + shift, high + shift) if kept else [NOT_KEPT] * (high - low)
        return [table, places]

    def states(
        self, g: int, laid: Sequence[Chunk], cuts: Sequence[tuple[int, ...]]
    ) -> list[Sequence[int]]:
        """Return the page of each request's state, and for each segment the page that its state
        goes to.
        """
        source = self.writes.source
        target = self.writes.target
        count = self.pools.pages
        not_kept = self.writes.not_kept(g)
        reads = [max(source(g, chunk), NULL) if chunk.start else NOT_KEPT for chunk in laid]
        saves = [
            target(g, chunk, cut) for chunk, own in zip(laid, cuts, strict=True) for cut in own
        ]
        return [
            reads,
            [page if 0 <= page < count and page not in not_kept else NOT_KEPT for page in saves],
        ]
