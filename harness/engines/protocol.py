"""What an engine is to the harness: three methods.

There are no optional methods: a capability is an operation that the engine accepts or an event that it emits. Checkers see
the ledger and the event, never an engine.
"""

from __future__ import annotations

from typing import Protocol

from harness.history import Event, Header
from harness.trace import Op


class Engine(Protocol):
    """A cache under test, built for one trace."""

    def describe(self) -> Header:
        """Return the pools, the groups and the rules that the engine declares."""

    def apply(self, op: Op) -> list[Event]:
        """Carry out one operation and return what happened, in order; no `read`, `write`, `copy` or `zero` among it.

        Raises whatever the engine raises: that is a verdict (`died`), not an error of the harness.
        """

    def close(self) -> None:
        """Let go of everything."""
