"""How far a run is: traces that were begun, of how many, and the seconds that the rest will
take.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic


class RunProgress:
    """What was begun of each suite, in the order in which they run.

    `planned` has the traces of each suite, None where nobody can tell. `timed` names those that end
    by the clock and so have none, each after `share` seconds.
    """

    def __init__(self, planned: Mapping[str, int | None], timed: set[str], share: float) -> None:
        self.suite, self.begun = "", 0
        self._planned = planned
        self._timed = timed
        self._share = share
        self._names = list(planned)
        self._started = 0.0
        self._counted = 0
        self._counting = 0.0
        """Traces of suites that are over and have no clock, and the seconds that they took."""

    def enter(self, suite: str) -> None:
        """Begin a suite."""
        self._leave()
        self.suite = suite
        self.begun = 0
        self._started = monotonic()

    def _leave(self) -> None:
        if self.suite and self.suite not in self._timed:
            self._counted, self._counting = (
                self._counted + self.begun,
                self._counting + monotonic() - self._started,
            )

    @property
    def number(self) -> int:
        """Which suite it is, from 1."""
        return self._names.index(self.suite) + 1

    @property
    def suites(self) -> int:
        """How many suites will run."""
        return len(self._names)

    @property
    def of(self) -> int | None:
        """Return how many traces this suite has at most; None if that is not known."""
        return self._planned[self.suite]

    @property
    def left(self) -> float | None:
        """Return the seconds that the rest will take at the pace so far; None if that is not
        known.
        """
        rest = self._names[self.number - 1 :]
        here = monotonic() - self._started
        clock = self._share * sum(name in self._timed for name in rest)
        counted = self._counted
        counting = self._counting
        if self.suite in self._timed:
            clock -= min(here, self._share)
        else:
            counted, counting = counted + self.begun, counting + here
        traces = -self.begun if self.suite not in self._timed else 0
        for name in rest:
            if name not in self._timed:
                planned = self._planned[name]
                if planned is None:
                    return None
                traces += planned
        if traces <= 0:
            return clock
        return clock + traces * counting / counted if counted else None
