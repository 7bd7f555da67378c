"""A cache that shows its keys by entry: what several entries have in common ends with the last
of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from cachewitness.core.events import Publish, Unpublish
from cachewitness.engines.block_table_diff import BlockTableDiff
from cachewitness.engines.cache_state import CacheState, Claim, Count, KeysByEntry, Tables


class Tree(CacheState):
    """Entries by name, each with the lengths at which it can be left; all of them lie in page 3."""

    def __init__(self) -> None:
        self.entries: dict[str, range] = {}

    def tables(self, r: str) -> Tables:
        return [[]]

    def keys(self) -> KeysByEntry:
        entries = ((name, tuple(lengths)) for name, lengths in self.entries.items())
        return KeysByEntry(
            (entry, {(0, 3, length): Claim(length) for length in entry[1]}) for entry in entries
        )

    def counts(self) -> Mapping[int, Count]:
        return {}

    def references(self, pool: int, page: int) -> int | None:
        return None


def test_a_key_of_two_entries_begins_with_the_first_and_ends_with_the_last() -> None:
    tree = Tree()
    diff = BlockTableDiff(tree, [0], {})

    def settled(**entries: range) -> list[tuple[type, int]]:
        tree.entries = entries
        diff.events = []
        diff.settle(served="r")
        return [
            (type(event), event.length)
            for event in diff.events
            if isinstance(event, Publish | Unpublish)
        ]

    assert settled(a=range(1, 3)) == [(Publish, 1), (Publish, 2)]
    assert settled(a=range(1, 3), b=range(2, 4)) == [(Publish, 3)]
    assert settled(b=range(2, 4)) == [(Unpublish, 1)]
    assert settled(b=range(2, 4), c=range(2, 4)) == []
    assert settled(d=range(3, 4)) == [(Unpublish, 2)]
    assert settled() == [(Unpublish, 3)]
