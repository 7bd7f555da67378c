"""A film as the page carries it: what many frames have alike stands in it once, and frames refer
to it by number.
"""

from __future__ import annotations

from typing import Any

import msgspec

from cachewitness.report.html.cells import Row
from cachewitness.report.html.frames import Film, Frame


def packed(film: Film) -> dict[str, Any]:
    """Return the film with its `cells`, `rows` and `pages` in lists of their own; a frame's lanes
    and pools have their numbers.

    A lane is its request, what it does, and the numbers of its rows; a row is its group and the
    numbers of its cells.
    """
    cells = _Numbered()
    rows = _Numbered()
    pages = _Numbered()

    def row(one: Row) -> int:
        return rows.number([one.group, [cells.number(cell) for cell in one.cells]])

    def frame(one: Frame) -> dict[str, Any]:
        lanes = [[lane.r, lane.doing, [row(own) for own in lane.rows]] for lane in one.lanes]
        pools = [[pages.number(page) for page in pool] for pool in one.pools]
        return {"title": one.title, "failing": one.failing, "lanes": lanes, "pools": pools}

    frames = [frame(one) for one in film.frames]
    names = {
        "left_out": film.left_out,
        "groups": film.groups,
        "pools": film.pools,
        "pool_ids": film.pool_ids,
        "pool_of": film.pool_of,
    }
    return names | {
        "frames": frames,
        "cells": cells.known,
        "rows": rows.known,
        "pages": pages.known,
    }


class _Numbered:
    """Values, each once; its number is its place in `known`."""

    def __init__(self) -> None:
        self.known: list[object] = []
        self._numbers: dict[bytes, int] = {}

    def number(self, value: object) -> int:
        """Return the number of a value, a new one if it is not known."""
        number = self._numbers.setdefault(msgspec.json.encode(value), len(self.known))
        if number == len(self.known):
            self.known.append(value)
        return number
