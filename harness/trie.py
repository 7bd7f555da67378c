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
        self._symbols: dict[Hashable, int] = {}
        self.parent: list[int] = []
        self.depth: list[int] = []
        self.symbol: list[int] = []

    def root(self, identity: Hashable) -> int:
        """Return the empty prefix under an identity (salt, adapter, weights)."""
        return self._child(-1, self.marked(("root", identity)), 0)

    def marked(self, mark: Hashable) -> int:
        """Return a symbol that stands for more than a token id; equal marks are equal symbols."""
        return self._symbols.setdefault(mark, (1 << _SYMBOL_BITS - 1) + len(self._symbols))

    def extend(self, node: int, symbols: Iterable[int]) -> list[int]:
        """Return the nodes passed when `node` is extended by one symbol after another."""
        children, out = self._children, []
        for symbol in symbols:
            child = children.get((node << _SYMBOL_BITS) | symbol)
            if child is None:
                child = self._child(node, symbol, self.depth[node] + 1)
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

    def _child(self, node: int, symbol: int, depth: int) -> int:
        key = (node << _SYMBOL_BITS) | symbol
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = len(self.parent)
            self.parent.append(node)
            self.depth.append(depth)
            self.symbol.append(symbol)
        return child
