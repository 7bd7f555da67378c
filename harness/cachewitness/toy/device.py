"""Block tables in the device's space of pages, kept from step to step: what a step adds to them
is placed, no more.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from cachewitness_reference.toy_model.chunk import NULL


class _Row(NamedTuple):
    """A row of a block table as it was told, and the same in the device's space."""

    row: list[int]
    placed: array[int]


class PlacedTables:
    """The block tables of requests; `spaces` has for each group the place of every page of its
    pool, and may grow.

    A row is placed anew unless it begins with all that was told of it before, so what is returned
    depends on the row alone.
    """

    def __init__(self, spaces: Sequence[Sequence[int]]) -> None:
        self._spaces = spaces
        self._rows: dict[str, list[_Row]] = {}

    def of(self, r: str, tables: Sequence[list[int]]) -> list[array[int]]:
        """Return a request's tables by group, with the null page for entries below 0."""
        known = self._rows.get(r) or [_Row([], array("i"))] * len(tables)
        self._rows[r] = rows = [
            old if row == old.row else _placed(row, old, space)
            for row, old, space in zip(tables, known, self._spaces, strict=True)
        ]
        return [row.placed for row in rows]

    def forget(self, r: str) -> None:
        """Forget a request that is over."""
        self._rows.pop(r, None)


def _placed(row: list[int], known: _Row, space: Sequence[int]) -> _Row:
    count = len(known.row)
    count = count if row[:count] == known.row else 0
    new = array("i", [space[page] if page >= 0 else NULL for page in row[count:]])
    return _Row(row[:], known.placed[:count] + new)
