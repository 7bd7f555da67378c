"""Hypothesis as a source of choices, for the generators of `workloads`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Drawn:
    """Choices by `draw` of a composite strategy or of `st.data()`; what it shrinks to is the first
    option, and that nothing happens by chance.
    """

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        """Return an integer in [low, high]."""
        drawn: int = self._draw(st.integers(low, high))
        return drawn

    def choice(self, options: Sequence[T]) -> T:
        """Return one of the options."""
        drawn: T = self._draw(st.sampled_from(options))
        return drawn

    def chance(self, percent: int) -> bool:
        """Return True in so many of a hundred cases."""
        drawn: int = self._draw(st.integers(0, 99))
        return drawn >= 100 - percent
