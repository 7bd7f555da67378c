"""Reads a unified diff: which lines of which files are new, and which are gone."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from cachewitness._util.errors import UsageError

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
NOWHERE = "/dev/null"


@dataclass
class Hunk:
    """A piece of a change: its lines before and after, those around it included, from the lines
    `old_first` and `new_first`.

    `added` are numbers of new lines. `gone` are those of old lines that nothing replaces, each with
    the new line behind which it stood, 0 at the beginning.
    """

    old_first: int
    new_first: int
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    added: list[int] = field(default_factory=list)
    gone: list[tuple[int, int]] = field(default_factory=list)
    _removed: list[int] = field(default_factory=list)
    _replaced: bool = False

    def take(self, sign: str, text: str) -> None:
        """Take in the next line."""
        if sign == "-":
            self._removed.append(self.old_first + len(self.old))
            self.old.append(text)
        elif sign == "+":
            self._replaced = True
            self.added.append(self.new_first + len(self.new))
            self.new.append(text)
        else:
            self.end_run()
            self.old.append(text)
            self.new.append(text)

    def end_run(self) -> None:
        """End a run of lines that were changed: what was removed in one without new lines is
        gone.
        """
        if not self._replaced:
            behind = self.new_first + len(self.new) - 1
            self.gone += [(line, behind) for line in self._removed]
        self._removed = []
        self._replaced = False


@dataclass
class FileChange:
    """What changed of a file: its paths before and after, empty where it is not there, and its
    hunks.
    """

    old: str = ""
    new: str = ""
    binary: bool = False
    hunks: list[Hunk] = field(default_factory=list)

    @property
    def moved(self) -> bool:
        """Whether the file has another path than before."""
        return bool(self.old and self.new) and self.old != self.new

    def before(self, text: str) -> str:
        """Return the text that the file had. Raises UsageError if `text` is not what the diff
        made of it.
        """
        lines = text.split("\n")
        for hunk in reversed(self.hunks):
            first = hunk.new_first - 1
            if [one.rstrip("\r") for one in lines[first : first + len(hunk.new)]] != [
                one.rstrip("\r") for one in hunk.new
            ]:
                raise UsageError(
                    f"--diff: {self.new} has not the lines that the diff gives it from line"
                    f" {hunk.new_first}; it belongs to another tree, or was not applied to this one"
                )
            lines[first : first + len(hunk.new)] = hunk.old
        return "\n".join(lines)


def parse(text: str) -> list[FileChange]:
    """Return what a diff changes, a file each. Raises UsageError for what is no unified diff."""
    found: list[FileChange] = []
    lines = [*text.split("\n"), ""]
    named = True  # by the two lines in front of hunks: another two begin another file
    place = 0
    while place < len(lines):
        line = lines[place]
        if line.startswith("diff --git "):
            found.append(_of_git(line))
            named = False
        elif line.startswith("--- ") and lines[place + 1].startswith("+++ "):
            if named:
                found.append(FileChange())
            found[-1].old = _path(line[4:])
            found[-1].new = _path(lines[place + 1][4:])
            named = True
            place += 1
        elif line.startswith("@@ ") and found:
            place = _read_hunk(lines, place, found[-1]) - 1
        elif found:
            _take_header(found[-1], line)
        place += 1
    if text.strip() and not found:
        raise UsageError("--diff: the file is no unified diff; `git diff BASE > FILE` writes one")
    return found


def _of_git(line: str) -> FileChange:
    """Return a file as git's first line names it, which is all that there is of a change of mode,
    or of a binary file.
    """
    rest = line.removeprefix("diff --git ")
    if rest.startswith('"'):
        both = re.match(r'("(?:[^"\\]|\\.)*") (.+)', rest)
        return FileChange(_path(both[1]), _path(both[2])) if both else FileChange()
    # Without a rename both names are alike, so that a blank in them parts nothing.
    middle = len(rest) // 2
    if rest[middle : middle + 1] == " " and rest[2:middle] == rest[middle + 3 :]:
        return FileChange(rest[2:middle], rest[2:middle])
    old, _, new = rest.partition(" b/")
    return FileChange(_path(old), new)


def _take_header(file: FileChange, line: str) -> None:
    if line.startswith("new file mode"):
        file.old = ""
    elif line.startswith("deleted file mode"):
        file.new = ""
    elif line.startswith(("rename from ", "copy from ")):
        file.old = _unquoted(line.partition(" from ")[2])
    elif line.startswith(("rename to ", "copy to ")):
        file.new = _unquoted(line.partition(" to ")[2])
    elif line.startswith(("Binary files ", "GIT binary patch")):
        file.binary = True


def _path(text: str) -> str:
    """Return a path without the letter in front of it, and without a time behind it."""
    path = _unquoted(text.partition("\t")[0].rstrip("\r"))
    if path == NOWHERE:
        return ""
    return path[2:] if path[:2] in ("a/", "b/") else path


def _unquoted(text: str) -> str:
    """Return a path that git put into quotes, whose bytes are in UTF-8."""
    if not (text.startswith('"') and text.endswith('"')):
        return text

    def byte(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code, 8)) if code.isdigit() else _ESCAPES.get(code, code)

    plain = re.sub(r"\\([0-7]{3}|.)", byte, text[1:-1])
    try:
        return plain.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return plain


def _read_hunk(lines: list[str], place: int, file: FileChange) -> int:
    """Read the hunk that begins at `place`; return the place behind it."""
    head = _HUNK.match(lines[place])
    if head is None:
        raise UsageError(f"--diff: line {place + 1} is no head of a hunk: {lines[place][:60]!r}")
    first, many, new_first, new_many = (1 if text is None else int(text) for text in head.groups())
    # A side without lines is named by the line in front of it.
    hunk = Hunk(first + (many == 0), new_first + (new_many == 0))
    while len(hunk.old) < many or len(hunk.new) < new_many:
        place += 1
        line = lines[place] if place < len(lines) else "?"
        if line.startswith("\\"):
            continue
        if line[:1] not in (" ", "+", "-", ""):
            raise UsageError(f"--diff: line {place + 1} is no line of a hunk: {line[:60]!r}")
        hunk.take(line[:1], line[1:])
    hunk.end_run()
    file.hunks.append(hunk)
    return place + 1
