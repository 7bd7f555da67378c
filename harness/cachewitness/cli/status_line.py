"""The line on standard error that says how far a command is."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

import click

from cachewitness._util.lines import printable

if TYPE_CHECKING:
    from cachewitness.report.summary import Failure, SuiteReport


class StatusLine:
    """On a terminal one line that is kept up, no longer than the terminal is wide; elsewhere a
    line now and then, or none.
    """

    EVERY = 10.0
    """Seconds between two lines where there is no terminal."""

    def __init__(
        self,
        *,
        shown: bool = True,
        anywhere: bool = False,
        at_once: bool = False,
        every: float | None = None,
    ) -> None:
        """Begin to say nothing. `anywhere`: also where there is no terminal, and a line there
        `every` so many seconds; `at_once`: on a terminal not only after half a second.
        """
        self._terminal = sys.stderr.isatty()
        self.shown = shown and (self._terminal or anywhere)
        self._every = 0.2 if self._terminal else self.EVERY if every is None else every
        self._next = monotonic() + ((0.0 if at_once else 0.5) if self._terminal else self._every)

    def tell(self, text: Callable[[], str]) -> None:
        """Say how far it is, if it was not said a moment ago."""
        now = monotonic()
        if not self.shown or now < self._next:
            return
        self._next = now + self._every
        line = printable(text())
        if self._terminal:
            line = f"\r\x1b[K{_cut(line, shutil.get_terminal_size().columns - 1)}"
        click.echo(line, nl=not self._terminal, err=True)

    def note(self, text: str) -> None:
        """Say at once what takes a while."""
        self._next = 0.0
        self.tell(lambda: text)

    def clear(self) -> None:
        """Wipe the line of a terminal."""
        if self.shown and self._terminal:
            click.echo("\r\x1b[K", nl=False, err=True)


class FirstFailure:
    """One line on standard error as soon as a trace fails, since its witness comes at the end."""

    def __init__(self, status: StatusLine, *, shown: bool = True) -> None:
        self._status = status
        self._owed = shown

    def tell(self, failure: Failure) -> None:
        """Print the first failure that was not expected; of later ones nothing."""
        if not self._owed or failure.expected:
            return
        self._owed = False
        self._status.clear()
        text = f"first failure: {failure.finding.anomaly} in {failure.id}"
        click.echo(printable(text), err=True)


class SuiteLines:
    """Where there is no terminal, a line on standard error for each suite that has ended: from the
    first in CI, elsewhere once a run has taken a while.
    """

    def __init__(self, *, shown: bool = True) -> None:
        self._shown = shown and not sys.stderr.isatty()
        self._from = monotonic() + (0.0 if os.environ.get("CI") else StatusLine.EVERY)

    def tell(self, suite: SuiteReport, number: int, suites: int) -> None:
        """Print how a suite ended, which is the `number`th of so many."""
        if not self._shown or monotonic() < self._from:
            return
        known = sum(bool(failure.expected) for failure in suite.failures)
        failures = len(suite.failures) - known
        listed = f", {known} expected" if known else ""
        if suite.bad_events:
            listed += f", {len(suite.bad_events)} stopped by events that cannot be followed"
        click.echo(
            f"suite {number}/{suites} {suite.name}: {suite.traces:,} traces, {failures} failures"
            f"{listed}, {suite.seconds:.1f} s",
            err=True,
        )


def _cut(text: str, most: int) -> str:
    """Return as many words of a text as there is room for, of one long word its letters."""
    if len(text) <= most:
        return text
    words, _, _ = text[: most - 1].rpartition(" ")
    return f"{words} …" if words else text[:most]


def left(seconds: float | None) -> str:
    """Return how long it will take, to be put behind what was done; nothing if nobody knows."""
    return "" if seconds is None else f", about {duration(seconds)} left"


def duration(seconds: float) -> str:
    """Return a time in the largest unit of which there are at least two."""
    for unit, size in ("h", 3600), ("min", 60):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
