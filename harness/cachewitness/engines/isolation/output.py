"""What a child printed, bounded: its beginning and its end."""

from __future__ import annotations

KEPT = 32 * 1024
"""Bytes kept of the beginning, and as many of the end."""


class Output:
    """Takes in what one stream of a child says. A flood is counted and thrown away."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def add(self, data: bytes) -> None:
        """Take in some bytes."""
        self._total += len(data)
        room = KEPT - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * KEPT:
            del self._tail[:-KEPT]

    def text(self) -> str:
        """Return what is kept, with a line in place of what is not."""
        tail = self._tail[-KEPT:]
        left_out = self._total - len(self._head) - len(tail)
        gap = f"\n[… {left_out:,} bytes left out …]\n".encode() if left_out else b""
        return bytes(self._head + gap + tail).decode("utf-8", "replace")
