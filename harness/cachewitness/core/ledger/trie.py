"""The trie of all prefixes: two prefixes are the same content if and only if they are the same
node.

Identity that is not tokens belongs to positions, so it is part of the path: salt, adapter and
weights choose the root, a multimodal item marks the positions that it covers. A request that shares
the tokens of another but not its salt therefore never shares a node with it, and one whose image
comes late shares every node before the image.

Prefixes that nobody names any more can be forgotten (`collect`), so a long history takes no more
room than what is live in it.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Hashable, Iterable

_SYMBOL_BITS = 44


class Trie:
    """Nodes are integers; node depth is the number of tokens of the prefix."""

    def __init__(self) -> None:
        self._children: dict[int, int] = {}
        self._roots: dict[int, int] = {}
        self._symbols: dict[Hashable, int] = {}
        self._marks = 0
        self._free: list[int] = []
        self.parent: list[int] = []
        self.depth = array("i")
        self.symbol = array("q")
        self._numbers = array("i")

    def root(self, identity: Hashable) -> int:
        """Return the empty prefix under an identity (salt, adapter, weights, kernels)."""
        mark = self.marked(("root", identity))
        node = self._roots.get(mark)
        if node is None:
            node = self._roots[mark] = self._new(-1, 0, mark)
        return node

    def marked(self, mark: Hashable) -> int:
        """Return a symbol that stands for more than a token id; equal marks are equal symbols."""
        symbol = self._symbols.get(mark)
        if symbol is None:
            symbol = self._symbols[mark] = (1 << _SYMBOL_BITS - 1) + self._marks
            self._marks += 1
        return symbol

    def marks(self) -> Iterable[tuple[Hashable, int]]:
        """Return every mark with its symbol; for explanations, not for speed."""
        return self._symbols.items()

    def extend(self, node: int, symbols: list[int]) -> list[int]:
        """Return the nodes passed when `node` is extended by one symbol after another."""
        children = self._children
        depth = self.depth[node]
        out: list[int] = []
        for symbol in symbols:
            depth += 1
            key = (node << _SYMBOL_BITS) | symbol
            child = children.get(key)
            if child is None:
                if not self._free and len(symbols) > 1:
                    return out + self._branch(node, symbols[len(out) :])
                child = children[key] = self._new(node, depth, symbol)
            out.append(child)
            node = child
        return out

    def _branch(self, node: int, symbols: list[int]) -> list[int]:
        """Return new nodes, the first of them a child of `node` that it did not have, each other
        a child of the one before.
        """
        first = len(self.parent)
        depth = self.depth[node] + 1
        nodes = list(range(first, first + len(symbols)))
        parents = [node, *nodes[:-1]]
        self.parent += parents
        self.depth += self._counted(depth, len(symbols))
        self.symbol.fromlist(symbols)
        keys = [
            (parent << _SYMBOL_BITS) | symbol
            for parent, symbol in zip(parents, symbols, strict=True)
        ]
        self._children.update(zip(keys, nodes, strict=True))
        return nodes

    def _counted(self, first: int, count: int) -> array[int]:
        """Return so many numbers from `first` on, out of those that were counted once."""
        if first + count > len(self._numbers):
            self._numbers = array("i", range(2 * (first + count)))
        return self._numbers[first : first + count]

    def __len__(self) -> int:
        """Return how many prefixes are known."""
        return len(self.parent) - len(self._free)

    def collect(self, live: Iterable[int]) -> Collection[int]:
        """Forget every prefix that is neither live nor begins a live one, and return those that
        were forgotten.

        Their numbers come to stand for others.
        """
        parent = self.parent
        kept = bytearray(len(self.parent))
        for node in live:
            while node >= 0 and not kept[node]:
                kept[node] = 1
                node = parent[node]
        self._children = {key: child for key, child in self._children.items() if kept[child]}
        self._roots = {mark: node for mark, node in self._roots.items() if kept[node]}
        spelt = {symbol for symbol, there in zip(self.symbol, kept, strict=True) if there}
        self._symbols = {mark: symbol for mark, symbol in self._symbols.items() if symbol in spelt}
        free = {node for node, there in enumerate(kept) if not there}
        gone = free.difference(self._free)
        self._free = list(free)
        return gone

    def _new(self, parent: int, depth: int, symbol: int) -> int:
        if self._free:
            node = self._free.pop()
            self.parent[node] = parent
            self.depth[node] = depth
            self.symbol[node] = symbol
            return node
        self.parent.append(parent)
        self.depth.append(depth)
        self.symbol.append(symbol)
        return len(self.parent) - 1

    def ancestor(self, node: int, depth: int) -> int:
        """Return the prefix of `node` that is `depth` tokens long (node itself if it is not
        longer).
        """
        while self.depth[node] > depth:
            node = self.parent[node]
        return node

    def same_tokens(self, node: int, other: int) -> bool:
        """Whether two prefixes differ in identity at most; for explanations, not for speed."""
        if self.depth[node] != self.depth[other]:
            return False
        plain = {
            symbol: mark[0] for mark, symbol in self._symbols.items() if isinstance(mark, tuple)
        }
        while self.depth[node] > 0:
            mine = self.symbol[node]
            its = self.symbol[other]
            if plain.get(mine, mine) != plain.get(its, its):
                return False
            node, other = self.parent[node], self.parent[other]
        return True
