"""From the symbols of a trace to the tokens of a model.

A trace names tokens by text and position; a model has few. What tells two prefixes apart in the
mathematics must tell them apart in the model's tokens as well: an adapter changes every token, a
multimodal item those that it covers. A salt does not: it keeps tenants apart whose computations are
the same.
"""

from __future__ import annotations

from zlib import crc32

from cachewitness.core.events import Submitted
from cachewitness.core.trace_format import Media


class Spelling:
    """Spells requests in a vocabulary of so many tokens."""

    def __init__(self, vocabulary: int) -> None:
        self._size = vocabulary
        self._identity: dict[str, tuple[str, list[Media]]] = {}
        self._spelt: dict[str, tuple[list[int], list[int]]] = {}

    def submitted(self, event: Submitted) -> None:
        """Learn what a request is beside its tokens."""
        self._identity[event.r] = (event.adapter, event.media)

    def spell(self, r: str, symbols: list[int]) -> list[int]:
        """Return the model's tokens for a request's symbols from position 0 on."""
        before, spelt = self._spelt.get(r, ([], []))
        if before[: len(symbols)] == symbols:
            return spelt[: len(symbols)]
        known = len(before) if before == symbols[: len(before)] else 0
        adapter, media = self._identity[r]
        marks = {at: item.hash for item in media for at in range(item.at, item.at + item.length)}
        new = enumerate(symbols[known:], start=known)
        spelt = spelt[:known] + [
            _token(symbol, adapter, marks.get(at, "")) % self._size for at, symbol in new
        ]
        self._spelt[r] = (symbols[:], spelt)
        return spelt


def _token(symbol: int, adapter: str, item: str) -> int:
    return crc32(f"{symbol}\0{adapter}\0{item}".encode())
