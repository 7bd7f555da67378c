"""What one step of a paged execution touches, worked out on the host and sent to the device in one
piece.

The tokens of all chunks lie flat behind one another, so that projections and feed-forward layers
know no requests. What mixes tokens runs by *bucket*: chunks of equal length, without padding
between them. Block tables become indices here, once a step for all layers of a group; a column that
a table lacks, and a null column, is read as the null page (poison) and never written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cachewitness_reference.toy_model.chunk import NULL, Chunk, Claim, Writes
from cachewitness_reference.toy_model.kernels import PLAIN, Kernels
from cachewitness_reference.toy_model.paged_pools import Pools, sent

Handle = int
"""Where a tensor of a parcel is found on the device."""

NOWHERE = 1 << 40
"""The position of a key that nobody sees."""


class Parcel:
    """Integer arrays that travel to the device together."""

    def __init__(self) -> None:
        self._arrays: list[Tensor] = []

    def put(self, array: Tensor) -> Handle:
        """Add an array; return where it will be found."""
        self._arrays.append(array)
        return len(self._arrays) - 1

    def send(self, device: torch.device) -> list[Tensor]:
        """Copy everything to the device and return the tensors by handle."""
        whole = sent(torch.cat([array.flatten() for array in self._arrays]), device)
        parts = whole.split([array.numel() for array in self._arrays])
        return [part.view(array.shape) for part, array in zip(parts, self._arrays, strict=True)]


@dataclass(frozen=True)
class Keys:
    """What a bucket's queries read of an attention group: positions and token-sized places, both
    [rows, S].
    """

    positions: Handle
    places: Handle


@dataclass(frozen=True)
class States:
    """What a bucket continues from in a recurrent group, and what it leaves behind.

    `pages` [rows]; `cold` [rows] says which rows have no state yet, True or False if all or none.
    `saves` are, for each cut, the rows whose state is kept and the pages that it goes to.
    """

    pages: Handle
    cold: Handle | bool
    saves: list[tuple[Handle, Handle]]


@dataclass
class Bucket:
    """Chunks of equal length: `rows` x `length` of the flat tokens, from `first` on.

    `cuts` are the token counts after which recurrent states are wanted; the last is the whole
    length.
    """

    first: int
    rows: int
    length: int
    cuts: tuple[int, ...]
    keys: dict[int, Keys] = field(default_factory=dict)
    states: dict[int, States] = field(default_factory=dict)


@dataclass
class Plan:
    """A step: flat `tokens`, `positions` and rotary `angles`, the flat rows `wanted` as logits, in
    the order of the chunks.

    `places` are the bucket and the row in it of each chunk. `writes[g]` are the flat tokens that
    attention group g keeps, and their places; `claims` the pages written, in the worker's order.
    """

    parcel: Parcel
    tokens: Handle
    positions: Handle
    angles: Handle
    wanted: Handle
    places: list[tuple[int, int]]
    buckets: list[Bucket]
    writes: dict[int, tuple[Handle, Handle]]
    claims: list[Claim]


def plan(
    pools: Pools, chunks: Sequence[Chunk], pad_rows: int = 1, kernels: Kernels = PLAIN
) -> Plan:
    """Lay a step out. Buckets are filled up to a multiple of `pad_rows` rows; the added ones
    read poison and write nothing.
    """
    return _Planner(pools, chunks, kernels).plan(pad_rows)


class _Planner:
    def __init__(self, pools: Pools, chunks: Sequence[Chunk], kernels: Kernels) -> None:
        self.pools = pools
        self.chunks = chunks
        self.parcel = Parcel()
        self.kernels = kernels
        self.writes = Writes(pools, chunks)
        self.recurrent = self.writes.recurrent
        self.attention = self.writes.attention
        self.places: dict[int, list[Tensor]] = {g: [] for g in self.attention}

    def plan(self, pad_rows: int) -> Plan:
        shapes: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for index, chunk in enumerate(self.chunks):
            shapes.setdefault((len(chunk.tokens), self.writes.cuts(chunk)), []).append(index)
        buckets: list[Bucket] = []
        laid: list[Chunk] = []
        place_of: dict[int, tuple[int, int]] = {}
        first = 0
        for (length, cuts), members in sorted(shapes.items()):
            padding = Chunk([0] * length, 0, [[]] * len(self.pools.groups))
            inside = [self.chunks[index] for index in members] + [padding] * (
                -len(members) % pad_rows
            )
            buckets.append(self._bucket(inside, first, length, cuts))
            place_of |= {index: (len(buckets) - 1, row) for row, index in enumerate(members)}
            laid += inside
            first += len(inside) * length
        places = [place_of[index] for index in range(len(self.chunks))]
        ends = [
            buckets[number].first + (row + 1) * buckets[number].length for number, row in places
        ]
        wanted = [
            torch.arange(end - chunk.outputs, end)
            for end, chunk in zip(ends, self.chunks, strict=True)
        ]
        put = self.parcel.put
        return Plan(
            parcel=self.parcel,
            tokens=put(torch.tensor([token for chunk in laid for token in chunk.tokens])),
            positions=put(torch.cat([torch.arange(chunk.start, chunk.stop) for chunk in laid])),
            angles=put(
                torch.tensor(
                    [position for chunk in laid for position in self.kernels.positions(chunk)]
                )
            ),
            wanted=put(torch.cat(wanted)),
            places=places,
            buckets=buckets,
            writes={g: self._writes(g) for g in self.attention},
            claims=self.writes.claims,
        )

    def _bucket(
        self, chunks: list[Chunk], first: int, length: int, cuts: tuple[int, ...]
    ) -> Bucket:
        bucket = Bucket(first, len(chunks), length, cuts)
        starts = torch.tensor([chunk.start for chunk in chunks])
        for g in self.recurrent:
            bucket.states[g] = self._states(g, chunks, starts, cuts)
        for g in self.attention:
            bucket.keys[g] = self._keys(g, chunks, starts, length)
        return bucket

    # --- recurrent groups -------------------------------------------------------------------------

    def _states(self, g: int, chunks: list[Chunk], starts: Tensor, cuts: tuple[int, ...]) -> States:
        pages = [self.writes.source(g, chunk) for chunk in chunks]
        inside = torch.tensor([page if 0 <= page < self.pools.pages else NULL for page in pages])
        cold = [chunk.start == 0 for chunk in chunks]
        saves = [self._save([self._kept(g, chunk, cut) for chunk in chunks]) for cut in cuts]
        uniform = len(set(cold)) == 1
        return States(
            self.parcel.put(inside),
            cold[0] if uniform else self.parcel.put((starts == 0).long()),
            saves,
        )

    def _save(self, pages: list[int]) -> tuple[Handle, Handle]:
        rows = [row for row, page in enumerate(pages) if page != NULL]
        kept = [pages[row] for row in rows]
        return self.parcel.put(torch.tensor(rows, dtype=torch.long)), self.parcel.put(
            torch.tensor(kept, dtype=torch.long)
        )

    def _kept(self, g: int, chunk: Chunk, cut: int) -> int:
        """Return the page that a group keeps the state after `cut` tokens of a chunk in; 0 if it
        keeps none.
        """
        page = self.writes.target(g, chunk, cut)
        return page if self.writes.kept(g, page) else NULL

    # --- attention groups -------------------------------------------------------------------------

    def _keys(self, g: int, chunks: list[Chunk], starts: Tensor, length: int) -> Keys:
        pools = self.pools
        size = self.pools.groups[g].block_size
        window = pools.config.sliding_window if pools.kinds[g] == "sliding_attention" else 0
        firsts = (starts - window + 1).clamp(min=0) if window else torch.zeros_like(starts)
        stops = starts + length
        table = self._table(g, chunks, -(-int(stops.max()) // size))
        new = starts[:, None] + torch.arange(length)
        self.places[g].append(_places(table, new, size).flatten())
        keys = firsts[:, None] + torch.arange(int((stops - firsts).max()))
        there = keys < stops[:, None]
        places = _places(table, torch.where(there, keys, 0), size)
        return Keys(self.parcel.put(torch.where(there, keys, NOWHERE)), self.parcel.put(places))

    def _table(self, g: int, chunks: list[Chunk], columns: int) -> Tensor:
        """Return the tables [rows, columns], the null page where there is no column or no such
        page.
        """
        rows = [chunk.tables[g][:columns] for chunk in chunks]
        table = torch.tensor([[*row, *[NULL] * (columns - len(row))] for row in rows])
        return torch.where((table < 0) | (table >= self.pools.pages), NULL, table)

    def _writes(self, g: int) -> tuple[Handle, Handle]:
        places = torch.cat(self.places[g])
        pages = places // self.pools.groups[g].block_size
        dropped = torch.tensor([NULL, *self.pools.null, *self.writes.lost.get(g, ())])
        sources = (~torch.isin(pages, dropped)).nonzero().flatten()
        return self.parcel.put(sources), self.parcel.put(places[sources])


def _places(table: Tensor, positions: Tensor, size: int) -> Tensor:
    """Return where tokens at `positions` [rows, n] lie, counted in tokens from page 0."""
    return table.gather(1, positions // size) * size + positions % size
