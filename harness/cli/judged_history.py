"""What `check` makes of a judged history: its exit code, the reasons of it, and the document of `--json`."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from harness._util.errors import UsageError
from harness.cli.replay import reasons
from harness.history import validate
from harness.run import execute
from harness.verdict import result as verdicts

if TYPE_CHECKING:
    from harness.cli.documents import Judged
    from harness.history.events import Event, Header
    from harness.verdict.expected import Entry, Expectations
    from harness.verdict.result import Result

COLLECTED_AFTER = 50_000
"""So many objects come before Python looks for cycles among them: judging a history makes many objects, and hardly a cycle."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Have Python look for cycles seldom meanwhile."""
    before = gc.get_threshold()
    gc.set_threshold(COLLECTED_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def judged(file: Path) -> tuple[Header, Result, str]:
    """Judge a stored history; return its header, the result, and where it cannot be read or followed any further, in one line.

    Raises UsageError if there is no header that makes sense.
    """
    header, events = validate.events(file)
    try:
        with seldom_collected():
            return header, execute.judge(header, events), ""
    except execute.Stopped as stopped:
        return header, stopped.result, str(stopped)


def events_of(file: Path) -> Iterator[tuple[int, Event]]:
    """Yield the events of a stored history with their lines, as far as it can be read and followed."""
    with suppress(UsageError):
        yield from validate.read(file)[1]


def cut_off(bad: str) -> str:
    """Return what is said beside a finding of a history that cannot be read or followed to its end."""
    return f"and not judged behind it: {bad}"


def document(file: Path, header: Header, result: Result, code: int, told: list[str], entry: Entry | None) -> Judged:
    """Return what is printed of a judged history with --json."""
    from harness.cli import documents

    return documents.Judged(
        file=str(file),
        engine=header.engine,
        engine_version=header.engine_version,
        exit_code=code,
        reasons=told,
        findings=result.findings,
        checkers=result.tallies,
        activity=result.activity,
        expected=entry.reason if entry else "",
    )


def verdict(result: Result, entry: Entry | None) -> tuple[int, list[str]]:
    """Return the exit code of a history and its reasons; `entry` is what excuses the findings, if all of them are excused."""
    if entry is None:
        return verdicts.exit_code(result), reasons(result)
    crashed = any(tally.crashed for tally in result.tallies)
    told = [f"nothing else found; 1 expected finding, listed as {entry.anomaly} ({entry.reason})"]
    return verdicts.EXIT_UNKNOWN if crashed else verdicts.EXIT_PASS, told


def with_list(code: int, told: list[str], known: Expectations) -> tuple[int, list[str]]:
    """Return the exit code and its reasons; where nothing was found, a list that is out of date is one."""
    if known.broken and code in (verdicts.EXIT_PASS, verdicts.EXIT_UNKNOWN, verdicts.EXIT_NOTHING_CHECKED):
        return verdicts.EXIT_USAGE, ["the list of expected failures is out of date", *known.broken]
    return code, told
