"""The trie of all prefixes: two prefixes are the same content if and only if they are the same node.

Identity that is not tokens belongs to positions, so it is part of the path: salt, adapter and weights choose the root, a
multimodal item marks the positions that it covers. A request that shares the tokens of another but not its salt therefore
never shares a node with it, and one whose image comes late shares every node before the image.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

_SYMBOL_BITS = 44


class Trie:
    """Nodes are integers; node depth is the number of tokens of the prefix."""

    def __init__(self) -> None:
        self._children: dict[int, int] = {}
        self._roots: dict[int, int] = {}
        self._symbols: dict[Hashable, int] = {}
        self.parent: list[int] = []
        self.depth: list[int] = []
        self.symbol: list[int] = []

    def root(self, identity: Hashable) -> int:
        """Return the empty prefix under an identity (salt, adapter, weights)."""
        mark = self.marked(("root", identity))
        node = self._roots.get(mark)
        if node is None:
            node = self._roots[mark] = len(self.parent)
            self.parent.append(-1)
            self.depth.append(0)
            self.symbol.append(mark)
        return node

    def marked(self, mark: Hashable) -> int:
        """Return a symbol that stands for more than a token id; equal marks are equal symbols."""
        return self._symbols.setdefault(mark, (1 << _SYMBOL_BITS - 1) + len(self._symbols))

    def marks(self) -> Iterable[tuple[Hashable, int]]:
        """Return every mark with its symbol; for explanations, not for speed."""
        return self._symbols.items()

    def extend(self, node: int, symbols: Iterable[int]) -> list[int]:
        """Return the nodes passed when `node` is extended by one symbol after another."""
        children, parent, depth, spelt = self._children, self.parent, self.depth, self.symbol
        out = []
        for symbol in symbols:
            key = (node << _SYMBOL_BITS) | symbol
            child = children.get(key)
            if child is None:
                child = children[key] = len(parent)
                parent.append(node)
                depth.append(depth[node] + 1)
                spelt.append(symbol)
            out.append(child)
            node = child
        return out

    def ancestor(self, node: int, depth: int) -> int:
        """Return the prefix of `node` that is `depth` tokens long (node itself if it is not longer)."""
        while self.depth[node] > depth:
            node = self.parent[node]
        return node

    def same_tokens(self, node: int, other: int) -> bool:
        """Whether two prefixes differ in identity at most; for explanations, not for speed."""
        if self.depth[node] != self.depth[other]:
            return False
        plain = {symbol: mark[0] for mark, symbol in self._symbols.items() if isinstance(mark, tuple)}
        while self.depth[node] > 0:
            mine, its = self.symbol[node], self.symbol[other]
            if plain.get(mine, mine) != plain.get(its, its):
                return False
            node, other = self.parent[node], self.parent[other]
        return True
