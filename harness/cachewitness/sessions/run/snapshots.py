"""Keeps what a run has found so far, for whoever finds its report after the run was killed."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")

EVERY_S = 1.0
"""Seconds between two snapshots, at least."""
SHARE = 20
"""Writing takes at most one part in so many of the time of a run."""


class Snapshots(Generic[T]):
    """Has `write` write what there is so far, now and then; the first time at once."""

    def __init__(self, write: Callable[[T], None]) -> None:
        self._write = write
        self._next = monotonic()

    def offer(self, so_far: Callable[[], T]) -> None:
        """Write what `so_far` returns, unless that was done a moment ago."""
        began = monotonic()
        if began < self._next:
            return
        self._write(so_far())
        ended = monotonic()
        self._next = ended + max(EVERY_S, SHARE * (ended - began))
