"""A radix tree under cachewitness: a sample to copy, of another shape than block tables.

`RadixCache` stands for your engine: a pool of places for one token each, and a tree of token rows
that says what they hold. To the harness a place is a page of one token, and each token of the tree
is a key, of all tokens up to it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cachewitness import (
    Accepts,
    Adapter,
    Asked,
    Claim,
    Count,
    Driver,
    EngineKind,
    Eviction,
    KeyId,
    Scheduled,
    Step,
    Submit,
    Tables,
    TraceHeader,
    UnpublishReason,
    UsageError,
    describe_full_attention,
)


@dataclass(eq=False)
class Node:
    """A row of tokens and their places; `children` go on from its end, by their first token."""

    row: list[Hashable]
    places: list[int]
    children: dict[Hashable, Node] = field(default_factory=dict)
    used: int = 0


class RadixCache:
    """The pool and the tree. Leaves without holders are evicted, the least recently used first."""

    def __init__(self, places: int) -> None:
        self.free = list(range(places))
        self.references = [0] * places
        self.length_at: dict[int, int] = {}  # by place: tokens of the prefix that ends there
        self.root, self.clock = Node([], []), 0

    def match(self, row: Sequence[Hashable]) -> tuple[Node, list[int]]:
        """Return the node at which the longest prefix in the tree ends, and its places."""
        self.clock += 1
        node, places = self.root, list[int]()
        while len(places) < len(row) and (child := node.children.get(row[len(places)])):
            pairs = [a == b for a, b in zip(child.row, row[len(places) :], strict=False)]
            common = [*pairs, False].index(False)
            if common < len(child.row):  # split it where the match ends
                head = Node(child.row[:common], child.places[:common], {child.row[common]: child})
                child.row, child.places = child.row[common:], child.places[common:]
                node.children[head.row[0]] = child = head
            node, child.used = child, self.clock
            places += child.places
        return node, places

    def insert(self, row: Sequence[Hashable], places: Sequence[int]) -> list[int]:
        """Put a row into the tree; return where the tree has it: what was there stays there."""
        node, known = self.match(row)
        rest, held = list(row[len(known) :]), list(places[len(known) :])
        if rest:
            node.children[rest[0]] = Node(rest, held, used=self.clock)
            self.length_at |= {place: len(known) + at for at, place in enumerate(held, 1)}
        return known + held

    def allocate(self, count: int) -> list[int] | None:
        """Return places, evicting what nobody holds; None, and nothing is evicted, if too few."""
        if self.references.count(0) < count:
            return None
        while len(self.free) < count:
            self.evict(*min(self._leaves(self.root), key=lambda pair: pair[1].used))
        taken, self.free = self.free[:count], self.free[count:]
        return taken

    def evict(self, parent: Node, leaf: Node) -> None:
        """Give the places of a leaf back, and forget it."""
        for place in leaf.places:
            del self.length_at[place]
        self.free += leaf.places
        del parent.children[leaf.row[0]]

    def _leaves(self, node: Node) -> Iterator[tuple[Node, Node]]:
        for child in node.children.values():
            if child.children:
                yield from self._leaves(child)
            elif not any(self.references[place] for place in child.places):
                yield node, child

    def hold(self, places: Sequence[int], by: int) -> None:
        """Let `by` more hold places (-1: one fewer); those without holder and row are free."""
        for place in places:
            self.references[place] += by
            if self.references[place] == 0 and place not in self.length_at:
                self.free.append(place)


class RadixAdapter(Adapter):
    """The trace says who computes how much; whoever does not fit waits, with what it has."""

    max_model_len = 4096

    def __init__(self, places: int) -> None:
        self.cache = RadixCache(places)
        self.rows: dict[str, list[Hashable]] = {}
        self.places: dict[str, list[int]] = {}  # of requests that run

    def add(self, submit: Submit, tokens: list[int], shared: int) -> None:
        row = self.rows[submit.r] = list[Hashable](tokens)
        for image in submit.media:
            row[image.at : image.at + image.length] = [image.hash] * image.length
        row[0] = (submit.salt, submit.adapter, row[0])

    def accept(self, r: str, tokens: Sequence[int]) -> None:
        self.rows[r] += tokens

    def end(self, r: str, *, finished: bool) -> None:
        self.preempt(r)
        del self.rows[r]

    def preempt(self, r: str) -> None:
        self.cache.hold(self.places.pop(r, []), -1)
        self.diff.settle([r])

    def running(self) -> list[str]:
        return list(self.places)

    def forget(self, reason: UnpublishReason) -> bool:
        if not self.places:
            self.cache = RadixCache(len(self.cache.references))
            self.diff.settle(reason=reason)
        return not self.places

    def schedule(self, asked: Asked | None, step: Step) -> Scheduled:
        scheduled = Scheduled()
        for r, count in asked or ():  # never None at manager level
            self._compute(r, count, scheduled)
        return scheduled

    def _compute(self, r: str, count: int, scheduled: Scheduled) -> None:
        """Let a request compute so many more tokens, if there are places."""
        row, places = self.rows[r], self.places.get(r)
        hit = self.cache.match(row[:-1])[1] if places is None else []
        start = len(places or hit)
        self.cache.hold(hit, 1)
        if (fresh := self.cache.allocate(min(count, len(row) - start))) is None:
            self.cache.hold(hit, -1)
            return
        self.cache.hold(fresh, 1)
        self.places[r] = [*(places or hit), *fresh]
        if places is None:
            self.diff.hit(r, start, [hit])
        self.diff.settle([r])
        scheduled.chunks[r] = (start, start + len(fresh))

    def complete(self, scheduled: Scheduled) -> None:
        for r, (_, stop) in scheduled.chunks.items():
            places = self.cache.insert(self.rows[r][:stop], self.places[r])
            self.cache.hold(places, 1)
            self.cache.hold(self.places[r], -1)
            self.places[r] = places
            self.diff.settle([r], served=r)

    def tables(self, r: str) -> Tables:
        return [self.places.get(r, [])]

    def keys(self) -> Mapping[KeyId, Claim]:
        return {(0, place, ""): Claim(length) for place, length in self.cache.length_at.items()}

    def counts(self) -> Mapping[int, Count]:
        free, held = len(self.cache.free), sum(count > 0 for count in self.cache.references)
        return {0: Count(free, held, cached=len(self.cache.references) - held - free)}

    def references(self, pool: int, page: int) -> int:
        return self.cache.references[page]


def open_engine(header: TraceHeader, options: Mapping[str, str]) -> Driver:
    """Build an engine for one trace."""
    if header.options.keys() - {"retention_interval"}:
        raise UsageError("this cache has no options")
    leaves = Eviction("lru-leaves", together=True)
    described = describe_full_attention(header, "radix", leaves, block_size=1)
    return Driver(described, RadixAdapter(described.pools[0].pages))


ENGINE = EngineKind(
    "radix",
    "a sample: a radix tree",
    ("manager",),
    open_engine,
    replays=False,
    accepts=Accepts(kinds=("full",), groups_max=1, options={"retention_interval": ()}),
)
