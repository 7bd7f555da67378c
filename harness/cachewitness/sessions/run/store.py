"""Stores failing traces, histories and reports.

A failing trace is written when it is met, and replaced when a smaller one is found. A file is
written whole or not at all. So nothing is lost of a run that is interrupted, and its folder holds
no half-written file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from shlex import quote
from tempfile import TemporaryFile

from cachewitness._util import files
from cachewitness._util.errors import UsageError
from cachewitness.core import stored as history
from cachewitness.core import trace_format as trace
from cachewitness.core.result import Result
from cachewitness.engines.registry import EngineSpec, parse
from cachewitness.report.compared import NAME as COLD
from cachewitness.report.summary import Failure, Stored
from cachewitness.sessions.run.judging import Way, explained, way_of

REPORT, JUNIT, PAGE, SARIF, BADGE, COMMENT = FILES = (
    "report.json",
    "junit.xml",
    "report.html",
    "report.sarif",
    "badge.json",
    "comment.md",
)
_FLAGS: dict[Way, str] = {"rules": "", "lockstep": " --differential", "cold": " --cold"}
FAILURES = "failures"
DEFAULT_FOLDER = Path(".cachewitness") / FAILURES
TRACE, WHOLE, HISTORY, OUTPUT = ENDS = (
    ".trace.jsonl",
    ".whole.jsonl",
    ".history.jsonl",
    ".output.txt",
)
"""How the names of the files of a failure end. `*.trace.jsonl` are the traces to replay alone."""
NAME_MAX = 160
"""So many letters of a failure's id are in the names of its files, which a file system limits."""


def ready(path: Path, option: str) -> None:
    """Make sure, before a long run, that a file can be written there.

    Raises UsageError if its folder is missing or it is a folder itself.
    """
    try:
        if path.is_dir():
            raise UsageError(f"{option}: {path} is a folder; name a file")
        if not path.parent.is_dir():
            raise UsageError(f"{option}: {path.parent} is no folder; make it first")
    except OSError as error:
        raise UsageError(f"{option}: {path} cannot be a file ({error.strerror})") from None


def ready_folder(path: Path, option: str) -> None:
    """Make a folder, and make sure that files can be written there.

    Raises UsageError if that cannot be done.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UsageError(f"{option}: {path} cannot be written to ({error.strerror})") from None


def clear(folder: Path) -> None:
    """Remove the report of an earlier run, so that nobody takes it for that of a run which did
    not come to write its own.
    """
    left = [folder / name for name in FILES]
    left += [path for end in ENDS for path in (folder / FAILURES).glob(f"*{end}")]
    for path in left:
        with suppress(OSError):
            path.unlink(missing_ok=True)


class Keeper:
    """Writes the traces of failures into a folder, as they are met. `stored` says where, by the
    failure's id.

    `everything` writes every failure, with the trace before it was shrunk and the history of the
    shrunk one; otherwise the first one of each anomaly that was not expected, which a report shows
    in full. `problems` are the files that could not be written, a line for each.

    Of those that were expected, and of the others, `most` are written (None: all), and the first of
    each anomaly besides; `left_out` are the ids of the rest.
    """

    def __init__(
        self,
        engine: EngineSpec,
        folder: Path,
        *,
        everything: bool = False,
        most: int | None = None,
    ) -> None:
        self.stored: dict[str, Stored] = {}
        self.problems: list[str] = []
        self.left_out: set[str] = set()
        self._most = most
        self._counted: Counter[bool] = Counter()
        self._engine = engine
        self.folder = folder
        self._everything = everything
        self._first: dict[str, str] = {}

    def take(self, failure: Failure, final: bool) -> None:
        """Write a failure that was just met, or replace what was written of it by its final
        form.
        """
        leads = self._leads(failure)
        if not self._everything and not leads:
            return
        before = self.stored.get(failure.id)
        if before is None and not self._room(failure, leads):
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.stored[failure.id] = after = _keep(
                failure, self._engine, self.folder, whole=final and self._everything
            )
        except Exception as error:
            self.problems.append(_missing(self.folder, error))
            return
        for path in {before.trace, before.output} - {after.trace, after.output} if before else ():
            if path:
                Path(path).unlink(missing_ok=True)

    def _room(self, failure: Failure, leads: bool) -> bool:
        """Whether one more is written; note it if not. The first of an anomaly is always written,
        since a report shows it in full.
        """
        expected = bool(failure.expected)
        if self._most is not None and self._counted[expected] >= self._most and not leads:
            self.left_out.add(failure.id)
            return False
        self._counted[expected] += 1
        return True

    def _leads(self, failure: Failure) -> bool:
        """Whether it is the first of its anomaly, and not expected."""
        return (
            not failure.expected
            and self._first.setdefault(failure.finding.anomaly, failure.id) == failure.id
        )


def keep_as(
    folder: Path, name: str, asked: trace.Trace, ran: Callable[[], tuple[Result, str]], replay: str
) -> tuple[Stored, str]:
    """Write a trace, run it, and write its history beside it; return where both are, and why one of
    them is not.

    The files are called as `name` is, which is unique. `ran` returns the result, and why it was
    stopped. `replay` is the command that shows it again,
    if it is another one than that which replays the trace.
    """
    stem = f"{_plain(name)}-{sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"
    path = folder / f"{stem}{TRACE}"
    happened = folder / f"{stem}{HISTORY}"
    stored = Stored(trace=str(path), replay=replay)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trace.save(asked, path)
        recorded = ran()[0].history
        history.save(recorded, happened)
    except Exception as error:
        return stored, _missing(folder, error)
    stored.history = str(happened)
    stored.starts = recorded.starts(len(asked.ops))
    return stored, ""


def _missing(folder: Path, error: Exception) -> str:
    """Return why a file of a failure is missing. The engine runs once more for it: what that
    comes to ends nothing.
    """
    if isinstance(error, OSError):
        return f"{folder}: cannot be written to ({error.strerror})"
    return (
        str(error)
        if isinstance(error, UsageError)
        else f"it cannot be run again: {type(error).__name__}: {error}"
    )


def replay_command(path: Path, engine: EngineSpec, way: Way = "rules") -> str:
    """Return the command that replays a stored trace, ready to be pasted into a shell."""
    return f"cachewitness replay {quote(str(path))} {engine.arguments}{_FLAGS[way]}"


def _keep(failure: Failure, engine: EngineSpec, folder: Path, *, whole: bool) -> Stored:
    if failure.engine:
        engine = replace(parse(failure.engine), kind=engine.kind, isolation=engine.isolation)
    # Of the whole trace, which stays: so the file keeps its name when a smaller one is found.
    digest = sha256(engine.text.encode() + trace.dump(failure.trace)).hexdigest()[:8]
    stem = f"{_plain(failure.id)}-{digest}"
    path = folder / f"{stem}{TRACE}"
    trace.save(failure.shrunk, path)
    way = way_of(failure.finding)
    again: Way = "cold" if failure.id.startswith(f"{COLD}:") else way
    stored = Stored(trace=str(path), replay=replay_command(path, engine, again))
    if failure.finding.output:
        printed = folder / f"{stem}{OUTPUT}"
        files.write(printed, [failure.finding.output.encode()])
        stored.output = str(printed)
    if whole:
        before = folder / f"{stem}{WHOLE}"
        happened = folder / f"{stem}{HISTORY}"
        trace.save(failure.trace, before)
        recorded = explained(failure.shrunk, engine, way).result.history
        history.save(recorded, happened)
        stored.whole_trace = str(before)
        stored.history = str(happened)
        stored.starts = recorded.starts(len(failure.shrunk.ops))
    return stored


def _plain(name: str) -> str:
    """Return a name as it may stand in that of a file."""
    return re.sub(r"[^A-Za-z0-9._=-]+", "_", name).strip("_")[:NAME_MAX]
