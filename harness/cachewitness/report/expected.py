"""Expected failures: a file in the user's own repository, one entry a line.

    PATTERN ANOMALY[,CAUSE][,…] [says="TEXT"] [until=YYYY-MM-DD] [strict] # REASON

    random:*@full-mamba[retention_interval=0]  over-dense-retention  until=2027-01-31  # https://example.org/issue/1

PATTERN is matched against the id of what failed, `suite:trace@configuration`; `*` and `?` stand for
anything, brackets for themselves. ANOMALY is the only one that the entry excuses, and with CAUSE
only that cause of it; several causes may follow it, and further anomalies with theirs. `cache`
stands for causes that are two things together (`replays&company`) as well. Names that are neither
are refused. With TEXT, in double quotes, an entry excuses only what the rule says in such a line:
it is matched against the finding's one line as PATTERN is against the id. `denied-rule,RULE`
excuses no finding: it says that the engine may declare RULE not applicable where it applies. After
the day `until`, in UTC, the entry excuses nothing. A `strict` entry fails the run if what it is
about ran and did not fail so. REASON lets a later reader judge whether the entry still holds. Blank
lines, and lines that begin with `#`, are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from pathlib import Path

import msgspec

from cachewitness._util import data, reading
from cachewitness._util.errors import UsageError
from cachewitness._util.names import fits, nearest
from cachewitness.core.checkers.anomalies import BY_NAME, DISAGREEMENTS
from cachewitness.core.checkers.finding import Finding, Tally
from cachewitness.core.declared import DENIABLE
from cachewitness.report import causes
from cachewitness.workloads.avoided import covers

SIZE_MAX = 4 << 20
"""Bytes; every entry is matched against every trace."""
DENIED = "denied-rule"
"""In the place of an anomaly: an engine declares a rule not applicable, and the rule applies."""
FORM = 'PATTERN ANOMALY[,CAUSE][,…] [says="TEXT"] [until=YYYY-MM-DD] [strict] # REASON'
_SAYS = re.compile(r'\s+says="([^"]+)"(?=\s|$)')
_DISAGREEMENTS = {anomaly.name for anomaly in DISAGREEMENTS}


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list; `cause` or `says` empty: any, `until` missing: for ever."""

    pattern: str
    anomaly: str
    reason: str
    cause: str = ""
    says: str = ""
    until: date | None = None
    strict: bool = False
    shipped: str = ""
    """The list of a release that the entry is in, by the name of its file; empty: the user's."""

    @property
    def text(self) -> str:
        """The entry as it is written, without its reason."""
        cause = f",{self.cause}" if self.cause else ""
        says = f' says="{self.says}"' if self.says else ""
        return f"{self.pattern} {self.anomaly}{cause}{says}"

    def fits(self, name: str) -> bool:
        """Whether the entry is about what has this id."""
        return fits(name, self.pattern)

    def excuses(self, finding: Finding) -> bool:
        """Whether the finding is the one that the entry names."""
        return (
            finding.anomaly == self.anomaly
            and (not self.cause or covers(self.cause, finding.cause))
            and (not self.says or fits(finding.line, self.says))
        )


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

    def beside(self, known: KnownOf | None) -> None:
        """Name a further list of the release among those that a report names: that of an engine
        with other options, on which some traces are run.
        """
        if self.known is not None and known is not None:
            files = tuple(dict.fromkeys([*self.known.files, *known.files]))
            self.known = msgspec.structs.replace(self.known, files=files)

    def weigh(
        self, name: str, findings: Sequence[Finding], known: KnownOf | None = None
    ) -> tuple[Finding, Entry | None] | None:
        """Note what ran under an id; return the finding to report, with the entry that excuses it.
        None if there is none.

        Only a trace whose every finding is excused is expected to fail: an entry never hides a
        second anomaly. What says that the harness disagrees with itself is reported before anything
        else. `known` takes the place of the release's list.
        """
        for entry in self._entries:
            if entry.fits(name):
                self._met[entry] = self._met.get(entry, False) or any(map(entry.excuses, findings))
        fitting = self._fitting(name, known) if findings else []
        excused = [
            next((entry for entry in fitting if entry.excuses(finding)), None)
            for finding in findings
        ]
        weighed = list(zip(findings, excused, strict=True))
        return min(weighed, key=_weight) if weighed else None

    def excuses(self, name: str, finding: Finding, known: KnownOf | None = None) -> bool:
        """Whether some entry is about what has an id, and names a finding of it."""
        return any(entry.excuses(finding) for entry in self._fitting(name, known))

    def _fitting(self, name: str, known: KnownOf | None) -> list[Entry]:
        known = known or self.known
        entries = [*self._entries, *(known.entries if known is not None else ())]
        return [entry for entry in entries if entry.fits(name)]

    def admit(self, name: str, tallies: Iterable[Tally]) -> None:
        """Mark the rules that the engine denies, and that the list lets it deny under this id."""
        fitting = [entry for entry in self._entries if entry.fits(name)]
        known = self.known.entries if self.known is not None else ()
        for tally in tallies:
            if not tally.denied:
                continue
            mine = [one for one in fitting if (one.anomaly, one.cause) == (DENIED, tally.rule)]
            self._met.update(dict.fromkeys(mine, True))
            tally.denial_listed = bool(mine) or any(
                (one.anomaly, one.cause) == (DENIED, tally.rule) and one.fits(name) for one in known
            )

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
            for entry in _entries(what, reason):
                if entry.text in entries:
                    raise UsageError(f"{entry.text!r} is listed twice")
                entries[entry.text] = entry
        except UsageError as error:
            raise UsageError(f"{path}:{number}: {error}") from None
    return list(entries.values())


def _weight(weighed: tuple[Finding, Entry | None]) -> tuple[bool, bool]:
    finding, entry = weighed
    return entry is not None, finding.anomaly not in _DISAGREEMENTS


def _entries(what: str, reason: str) -> list[Entry]:
    """Return what a line lists: one entry for each anomaly, and for each cause of one."""
    quoted = _SAYS.search(what)
    says = quoted[1] if quoted else ""
    words = _SAYS.sub("", what, count=1).split()
    pattern, named, *marks = [*words, ""] if len(words) == 1 else words
    if ":" not in pattern and "*" not in pattern:
        raise UsageError(f"{pattern!r} is no id; ids read suite:trace@configuration")
    if not named:
        raise UsageError(f"{pattern!r} names no anomaly; write {FORM}")
    pairs = _pairs(named)
    if says and DENIED in dict(pairs):
        raise UsageError(f"{DENIED} is no finding, so it says nothing; write it without says=")
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
            raise UsageError(
                f'{mark!r} is none of `says="TEXT"`, `until=YYYY-MM-DD` and `strict`; write {FORM}'
            )
    return [
        Entry(
            pattern=pattern,
            anomaly=anomaly,
            cause=cause,
            says=says,
            until=until,
            strict=strict,
            reason=reason,
        )
        for anomaly, cause in pairs
    ]


def _pairs(named: str) -> list[tuple[str, str]]:
    """Return the anomalies of a list of names, each with one of the causes behind it; those
    without a cause with an empty one. Raises UsageError for a name that is neither.
    """
    causes_of: dict[str, list[str]] = {}
    last = ""
    for name in named.split(","):
        if name == DENIED or name in BY_NAME:
            if name in causes_of:
                raise UsageError(f"{name!r} is named twice")
            causes_of[last := name] = []
        elif not last:
            hint = nearest(name, [*BY_NAME, DENIED], "ls anomalies")
            raise UsageError(f"{name!r} is no anomaly{hint}")
        else:
            _check_cause(last, name)
            causes_of[last].append(name)
    if causes_of.get(DENIED) == []:
        raise UsageError(f"{DENIED} names no rule; write {DENIED},RULE")
    return [(anomaly, cause) for anomaly, of in causes_of.items() for cause in of or [""]]


def _check_cause(anomaly: str, name: str) -> None:
    if anomaly == DENIED:
        if name not in DENIABLE:
            hint = nearest(name, DENIABLE)
            raise UsageError(f"{name!r} is no rule that an engine may deny{hint}")
    elif not causes.known(name):
        hint = nearest(name, [*BY_NAME, *causes.names()], "ls anomalies")
        raise UsageError(f"{name!r} is neither an anomaly nor a cause of {anomaly}{hint}")


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"until={text}: {text!r} is no day; write it as 2027-01-31") from None
