"""The valid portion of a match: how far a prefix can be reused in both pools.

The tree says how far a prefix is stored at all, and with it the global blocks. A request that goes
on at h needs besides, in the sliding pool, the last W - 1 tokens before h (`tail`). Blocks of the
window may be gone while the entry is there, so a match of G tokens is shortened to the largest h <=
G for which tokens [max(0, h - tail), h) are all resident. All of [h, prompt) is then computed; that
is exact, since the state of every layer at h is determined by what is reused.

Going down from G, only the ends of entries have to be looked at: a smaller h in the same entry asks
for the same block and reaches further to the left. One pass over the path finds out where the holes
are, a second one the answer; so the cost is that of the match.

Source of the rule: spec rules `hybrid-match`, `valid-portion`; choices `window_tail`,
`hit_granularity`, `beyond-the-hit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cachewitness_reference.furiosa.radix_tree import Entry
from cachewitness_reference.primitives import Position


@dataclass(frozen=True)
class Hit:
    """What can be reused: `length` tokens, along `path`; `matched` of them are stored in the global
    pool at least.

    The path ends with the entry in which `length` lies, perhaps half way.
    """

    length: Position
    matched: Position
    path: tuple[Entry, ...]


NO_HIT = Hit(Position(0), Position(0), ())


def usable(
    path: Sequence[Entry], matched: int, *, block_size: int, tail: int, whole_blocks: bool
) -> Hit:
    """Return the valid portion of a match of `matched` tokens along `path`; `whole_blocks`
    rounds it down to a block's end.
    """
    holes = _last_holes(path, block_size)
    for index in range(len(path) - 1, -1, -1):
        entry = path[index]
        length = min(entry.stop, matched)
        if whole_blocks:
            length = Position(length // block_size * block_size)
        if length <= entry.start or entry.sliding_block is None:
            continue
        first = max(0, length - tail) // block_size
        if holes[entry.start // block_size] < first:
            return Hit(Position(length), Position(matched), tuple(path[: index + 1]))
    return Hit(Position(0), Position(matched), ())


def _last_holes(path: Sequence[Entry], block_size: int) -> list[int]:
    """Return, for each column, the last column before it that has no sliding block; -1 if there
    is none.
    """
    furthest: list[Entry] = []
    for entry in path:
        column = entry.start // block_size
        if column == len(furthest):
            furthest.append(entry)
        else:
            furthest[column] = entry
    holes = []
    last = -1
    for column, entry in enumerate(furthest):
        holes.append(last)
        if entry.sliding_block is None:
            last = column
    return holes
