"""Compaction: `mapping[i]` is the new row of slot i, −1 if it was evicted. `lengths` in tokens, of the batch before.

Right mappings take the survivors one to one onto rows [0, new batch). The rows that are left over are nobody's.
"""

from __future__ import annotations

from harness.vectors.case import Case
from harness.vectors.form import CompactionInput

MAX_BATCH = 8


def cases() -> list[Case]:
    """Return every question."""
    return [*_ascending(), *_permuted(), *_refused()]


def _case(name: str, comment: str, flags: str, mapping: list[int], new: int, lengths: list[int] | None = None) -> Case:
    own = [10 * (row + 1) for row in range(len(mapping))] if lengths is None else lengths
    return Case(f"compaction/{name}", comment, flags.split(), CompactionInput(MAX_BATCH, own, mapping, new))


def _ascending() -> list[Case]:
    return [
        _case("keep/one", "a batch of one that stays", "empty-batch", [0], 1),
        _case("keep/full", "a full batch that stays", "empty-batch", list(range(8)), 8),
        _case("all-gone", "everybody is gone", "empty-batch", [-1, -1, -1], 0),
        _case("one-gone", "a batch of one, which is gone", "empty-batch", [-1], 0),
        _case("empty", "an empty batch", "empty-batch", [], 0),
        _case("first-gone", "the first slot is evicted", "overwritten", [-1, 0, 1, 2], 3),
        _case("last-gone", "the last slot is evicted: nothing moves", "stale-length", [0, 1, 2, -1], 3),
        _case("middle-gone", "a slot in the middle is evicted", "overwritten", [0, -1, 1, 2], 3),
        _case("every-other", "every other slot is evicted", "overwritten", [-1, 0, -1, 1, -1, 2, -1, 3], 4),
        _case("last-alone", "only the last slot stays", "overwritten", [-1, -1, -1, -1, -1, -1, -1, 0], 1),
        _case("empty-row", "a slot of no tokens moves with its states", "torn stale-length", [-1, 0, 1], 2, [5, 0, 7]),
        _case("full-batch-first-gone", "a full batch without its first", "overwritten", [-1, 0, 1, 2, 3, 4, 5, 6], 7),
    ]


def _permuted() -> list[Case]:
    return [
        _case("swap", "two slots change places, nobody is gone", "overwritten torn", [1, 0], 2),
        _case("rotate-up", "three slots move on by one", "overwritten torn", [1, 2, 0], 3),
        _case("rotate-down", "three slots move back by one", "overwritten torn", [2, 0, 1], 3),
        _case("reverse", "the order is turned round", "overwritten torn", [3, 2, 1, 0], 4),
        _case("reverse-full", "a full batch is turned round", "overwritten torn", [7, 6, 5, 4, 3, 2, 1, 0], 8),
        _case("swap-around-a-gap", "the outer slots change places over an evicted one", "overwritten", [1, -1, 0], 2),
        _case("last-to-front", "the last slot fills the hole, as a swap-remove does", "overwritten", [-1, 1, 2, 0], 3),
        _case("descending-survivors", "survivors are numbered downwards", "overwritten", [-1, 2, 1, -1, 0], 3),
        _case("two-cycles", "two pairs change places", "overwritten torn", [1, 0, 3, 2], 4),
        _case("upwards", "a survivor moves to a higher row", "overwritten", [1, -1, 0, -1], 2),
        _case("swap-with-empty", "a slot of no tokens changes places with a full one", "torn stale-length", [1, 0], 2, [0, 9]),
        _case("same-lengths", "equal lengths tell nobody apart", "torn", [1, 0, 2], 3, [4, 4, 4]),
    ]


def _refused() -> list[Case]:
    def refused(name: str, comment: str, mapping: list[int], new: int, words: str) -> Case:
        own = [10 * (row + 1) for row in range(len(mapping))]
        asked = CompactionInput(MAX_BATCH, own, mapping, new)
        return Case(
            f"compaction/refused/{name}", comment, ["unchecked-mapping"], asked, refused="batchMapping newBatch", words=words
        )

    return [
        refused("two-on-one-row", "two slots on one row", [0, 0, 1], 2, "sends slots 0 and 1 to one row, 0"),
        refused("beyond-new-batch", "a row from newBatch on", [0, 2, -1], 2, "batchMapping[1] is 2"),
        refused("beyond-old-batch", "a row that the old batch does not have", [0, 5], 2, "batchMapping[1] is 5"),
        refused("nobody-on-a-row", "a row that nobody gets", [0, -1, -1], 2, "sends nobody to row 1"),
        refused("below-evicted", "−2 is neither a row nor an eviction", [0, -2], 1, "batchMapping[1] is -2"),
        refused("more-than-before", "a larger batch than before", [0, 1], 3, "newBatch 3"),
        refused("less-than-nothing", "a batch of −1", [-1], -1, "newBatch -1"),
        refused("one-too-few", "a survivor more than rows", [0, 1, 2], 2, "batchMapping[2] is 2"),
    ]
