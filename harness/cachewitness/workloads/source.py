"""Where random choices come from: a seed, or another source such as a property-based tester."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Source(Protocol):
    """Where choices come from."""

    def integer(self, low: int, high: int) -> int:
        """Return an integer in [low, high]."""

    def choice(self, options: Sequence[T]) -> T:
        """Return one of the options."""

    def chance(self, percent: int) -> bool:
        """Return True in so many of a hundred cases."""


class Seeded:
    """Choices from a seed: a number, or a text that names one of many streams."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        """Return an integer in [low, high]."""
        return self._random.randint(low, high)

    def choice(self, options: Sequence[T]) -> T:
        """Return one of the options."""
        return self._random.choice(options)

    def chance(self, percent: int) -> bool:
        """Return True in so many of a hundred cases."""
        return self._random.randrange(100) < percent
