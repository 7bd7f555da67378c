"""Expected failures: a file in the user's own repository, one entry a line.

    PATTERN ANOMALY[,CAUSE] [until=YYYY-MM-DD] [strict] # REASON

    random:*@full-mamba[retention_interval=0]  over-dense-retention  until=2027-01-31  # https://example.org/issue/1

PATTERN is matched against the id of what failed, `suite:trace@configuration`; `*` and `?` stand for
anything, brackets for themselves. ANOMALY is the only one that the entry excuses, and with CAUSE
only that cause of it. After the day `until`, in UTC, the entry excuses nothing. A `strict` entry
fails the run if what it is about ran and did not fail so. REASON lets a later reader judge whether
the entry still holds. Blank lines, and lines that begin with `#`, are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from pathlib import Path

import msgspec

from cachewitness._util import data, reading
from cachewitness._util.errors import UsageError
from cachewitness._util.names import fits, nearest
from cachewitness.core.checkers.anomalies import BY_NAME, DISAGREEMENTS
from cachewitness.core.checkers.finding import Finding

SIZE_MAX = 4 << 20
"""Bytes; every entry is matched against every trace."""
FORM = "PATTERN ANOMALY[,CAUSE] [until=YYYY-MM-DD] [strict] # REASON"
_DISAGREEMENTS = {anomaly.name for anomaly in DISAGREEMENTS}


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list; `cause` empty: any, `until` missing: for ever."""

    pattern: str
    anomaly: str
    reason: str
    cause: str = ""
    until: date | None = None
    strict: bool = False
    shipped: str = ""
    """The list of a release that the entry is in, by the name of its file; empty: the user's."""

    @property
    def text(self) -> str:
        """The entry as it is written, without its reason."""
        return f"{self.pattern} {self.anomaly}" + (f",{self.cause}" if self.cause else "")

    def fits(self, name: str) -> bool:
        """Whether the entry is about what has this id."""
        return fits(name, self.pattern)

    def excuses(self, finding: Finding) -> bool:
        """Whether the finding is the one that the entry names."""
        return finding.anomaly == self.anomaly and self.cause in ("", finding.cause)


class Expectations:
    """A list of entries, and what a run made of each: whether anything ran under it, and whether
    that failed as listed.

    Beside it stands what the release is known for: `find_known` returns that list for the version
    that the engine reports. What a run made of its entries is not noted, since no run reaches them
    all.
    """

    def __init__(
        self,
        entries: Iterable[Entry] = (),
        *,
        strict: bool = False,
        today: date | None = None,
        find_known: Callable[[str], KnownOf | None] | None = None,
    ) -> None:
        self._strict = strict
        self._find_known = find_known
        self.known: KnownOf | None = None
        day = today or datetime.now(UTC).date()
        listed = list(entries)
        self._expired = [entry for entry in listed if entry.until and entry.until < day]
        self._entries = [entry for entry in listed if entry not in self._expired]
        self._met: dict[Entry, bool] = {}

    def settle(self, version: str) -> None:
        """Take the list of the release that the engine reports, unless one was taken before."""
        if self._find_known is not None and version:
            self.known = self._find_known(version)
            self._find_known = None

    def weigh(self, name: str, findings: Sequence[Finding]) -> tuple[Finding, Entry | None] | None:
        """Note what ran under an id; return the finding to report, with the entry that excuses it.
        None if there is none.

        Only a trace whose every finding is excused is expected to fail: an entry never hides a
        second anomaly. What says that the harness disagrees with itself is reported before anything
        else.
        """
        fitting = [entry for entry in self._entries if entry.fits(name)]
        for entry in fitting:
            self._met[entry] = self._met.get(entry, False) or any(map(entry.excuses, findings))
        if self.known is not None and findings:
            fitting += [entry for entry in self.known.entries if entry.fits(name)]
        excused = [
            next((entry for entry in fitting if entry.excuses(finding)), None)
            for finding in findings
        ]
        weighed = list(zip(findings, excused, strict=True))
        return min(weighed, key=_weight) if weighed else None

    @property
    def passed(self) -> list[Entry]:
        """The entries under which something ran and nothing failed as listed."""
        return [entry for entry, failed in self._met.items() if not failed]

    @property
    def unmatched(self) -> list[Entry]:
        """The entries that nothing ran under."""
        return [entry for entry in self._entries if entry not in self._met]

    @property
    def expired(self) -> list[Entry]:
        """The entries whose day is over."""
        return self._expired

    @property
    def broken(self) -> list[str]:
        """Why the list fails the run; nothing unless it, or an entry, is strict."""
        lines = [
            f"expected {entry.text}, and nothing failed so"
            for entry in self.passed
            if self._strict or entry.strict
        ]
        return lines + [
            f"expected {entry.text}, and nothing fits it"
            for entry in self.unmatched
            if self._strict
        ]


class KnownOf(msgspec.Struct, frozen=True):
    """What a release is known to do against a rule: the release in words, the files of the lists,
    and their entries; no file: the release has no list.
    """

    release: str
    files: tuple[str, ...] = ()
    entries: tuple[Entry, ...] = ()


def shipped(release: str, names: Iterable[str]) -> KnownOf:
    """Return the lists of a release that come with this package, by the names of their files.

    Raises UsageError if one is not installed, or cannot be read.
    """
    files = list(names)
    folder = data.fixtures() / "expected" if files else Path()
    entries = [
        msgspec.structs.replace(entry, shipped=name)
        for name in files
        for entry in load(folder / name)
    ]
    return KnownOf(release, tuple(files), tuple(entries))


def load(path: Path) -> list[Entry]:
    """Return the entries of a file.

    Raises UsageError naming the file and the line if one is not of the form above, or stands there
    twice.
    """
    try:
        text = reading.whole(path, SIZE_MAX).decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"--expected: {path} is not a text in UTF-8") from None
    except UsageError as error:
        raise UsageError(f"--expected: {error}") from None
    entries: dict[str, Entry] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        what, _, reason = (part.strip() for part in line.partition("#"))
        if not what:
            continue
        try:
            entry = _entry(what.split(), reason)
            if entry.text in entries:
                raise UsageError(f"{entry.text!r} is listed twice")
        except UsageError as error:
            raise UsageError(f"{path}:{number}: {error}") from None
        entries[entry.text] = entry
    return list(entries.values())


def _weight(weighed: tuple[Finding, Entry | None]) -> tuple[bool, bool]:
    finding, entry = weighed
    return entry is not None, finding.anomaly not in _DISAGREEMENTS


def _entry(words: list[str], reason: str) -> Entry:
    pattern, named, *marks = [*words, ""] if len(words) == 1 else words
    anomaly, _, cause = named.partition(",")
    if ":" not in pattern and "*" not in pattern:
        raise UsageError(f"{pattern!r} is no id; ids read suite:trace@configuration")
    if not anomaly:
        raise UsageError(f"{pattern!r} names no anomaly; write {FORM}")
    if anomaly not in BY_NAME:
        raise UsageError(f"{anomaly!r} is no anomaly{nearest(anomaly, BY_NAME, 'ls anomalies')}")
    if not reason:
        raise UsageError(f"{pattern!r} has no reason; write {FORM}")
    until, strict = None, False
    for mark in marks:
        key, equals, value = mark.partition("=")
        if mark == "strict":
            strict = True
        elif key == "until" and equals:
            until = _day(value)
        else:
            raise UsageError(f"{mark!r} is neither `until=YYYY-MM-DD` nor `strict`; write {FORM}")
    return Entry(
        pattern=pattern, anomaly=anomaly, cause=cause, until=until, strict=strict, reason=reason
    )


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"until={text}: {text!r} is no day; write it as 2027-01-31") from None
