"""Answers on disk, as they come: a run that was cut short does not ask again what it has scored.

A run lives in a folder named by its engine and a hash of everything that its answers depend on.
While it lasts, every answer is a line of `answers-ARM.jsonl`. The same command goes on from there;
once a run is finished (`report.json` exists), the same command starts a new run, since the engine
may have been mended since.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from cachewitness._util import files, jsonl, reading
from cachewitness._util.errors import UsageError
from cachewitness.engines.answers import Answer, Ask

DEFAULT_FOLDER = Path(".cachewitness") / "score"
REPORT = "report.json"
SIZE_MAX = 1 << 28
"""Bytes of the answers of one arm."""


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line: an answer with the hash of its prompt and the salt it was asked with, or what
    the backend says of itself.
    """

    answer: Answer | None = None
    prompt_hash: str = ""
    salt: str = ""
    versions: Mapping[str, str] = {}


class AnswerStore:
    """The answers of one arm, in memory and in its file."""

    def __init__(self, folder: Path, arm: str) -> None:
        """Read what an earlier run left; a last line that was cut short is dropped.

        Raises UsageError if it cannot be read, or is not what a run has left.
        """
        self.path = folder / f"answers-{arm}.jsonl"
        self.lines: dict[tuple[str, str], Line] = {}
        self.versions: Mapping[str, str] = {}
        for line in self._read():
            self._take(line)
        self.reused = len(self.lines)
        if self.path.exists():
            files.write(self.path, [msgspec.json.encode(line) + b"\n" for line in self._all()])

    def answer_to(self, ask: Ask) -> Answer | None:
        """Return the answer to a question, None if it was not asked yet."""
        line = self.lines.get((ask.id, prompt_hash(ask.prompt)))
        return line.answer if line else None

    def keep(self, ask: Ask, answer: Answer) -> None:
        """Take an answer."""
        self._append(Line(answer=answer, prompt_hash=prompt_hash(ask.prompt), salt=ask.salt))

    def keep_versions(self, versions: Mapping[str, str]) -> None:
        """Take what the backend says of itself."""
        self._append(Line(versions=versions))

    def _append(self, line: Line) -> None:
        self._take(line)
        try:
            with self.path.open("ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be written ({error.strerror})") from None

    def _take(self, line: Line) -> None:
        if line.answer is None:
            self.versions = line.versions
        else:
            self.lines[line.answer.id, line.prompt_hash] = line

    def _all(self) -> list[Line]:
        return [Line(versions=self.versions), *self.lines.values()]

    def _read(self) -> list[Line]:
        texts = (
            reading.whole(self.path, SIZE_MAX).split(b"\n") if os.path.lexists(self.path) else [b""]
        )
        return [self._line(number, text) for number, text in enumerate(texts[:-1], 1)]

    def _line(self, number: int, text: bytes) -> Line:
        try:
            line = msgspec.json.decode(text, type=Line)
        except jsonl.UNREADABLE as error:
            raise self._foreign(number, str(error)) from None
        if line.answer is not None and not line.answer.id.isdecimal():
            raise self._foreign(
                number, f"{line.answer.id!r} is no question's number - at `$.answer.id`"
            )
        return line

    def _foreign(self, number: int, why: str) -> UsageError:
        return UsageError(
            f"{self.path}:{number}: no answer of this run ({why}); remove the file to ask its"
            " questions again"
        )


def folder_of(base: Path, engine: str, settings: Mapping[str, Any]) -> Path:
    """Return the folder of a run with these settings, made and ready: emptied of answers if the run
    in it was finished.

    Raises UsageError if it cannot be made.
    """
    encoded = msgspec.json.encode(dict(sorted(settings.items())))
    stem = re.sub(r"[^A-Za-z0-9._=-]+", "_", engine).strip("_")[:60]
    folder = base / f"{stem}-{hashlib.sha256(encoded).hexdigest()[:8]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / REPORT).exists():
            for path in [*folder.glob("answers-*.jsonl"), folder / REPORT]:
                path.unlink()
    except OSError as error:
        raise UsageError(f"{folder}: cannot be made ready ({error.strerror})") from None
    files.write(folder / "settings.json", [msgspec.json.format(encoded, indent=2), b"\n"])
    return folder


def prompt_hash(prompt: str) -> str:
    """Return the hash by which lm-eval names a prompt."""
    return hashlib.sha256(prompt.encode("utf-8")).hexdigest()
