"""Who is asked by `benchmarks.damage_costs`: a subject whose answers are kept in a file, and
llama.cpp's server, with other types of keys or with a fault in front of it.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from cachewitness.parity.likelihood.asking import Served, Subject
from cachewitness.parity.likelihood.steps import Answered

CI = Path(__file__).resolve().parents[1] / "ci"
TIMEOUT = 600
"""Seconds that a server may take for an answer."""
Open = Callable[[], Subject]


class _File(msgspec.Struct, kw_only=True):
    """What a subject answered, by digest of the question and by text."""

    answers: dict[str, Answered] = {}
    texts: dict[str, list[int]] = {}


class Kept:
    """A subject that is asked only what its file does not have; `open` gives it when it is needed.

    The same question asked again is another one, since a cache may answer it otherwise. `cold`:
    its answers do not depend on what was asked before, so each is kept as it comes; of another one
    all are kept by `save`, or none.
    """

    zero_left_out = False
    uncounted = "in its answers"
    warm = "it is asked cold elsewhere"

    def __init__(self, path: Path, open: Open, *, cold: bool = False) -> None:
        self._path = path
        self._open = open
        self._cold = cold
        self._subject: Subject | None = None
        self._times: Counter[str] = Counter()
        there = path.is_file()
        self._file = msgspec.json.decode(path.read_bytes(), type=_File) if there else _File()
        self.name = self.url = path.stem

    def tokens(self, text: str) -> list[int]:
        """Return a text as tokens of the model."""
        if text not in self._file.texts:
            self._file.texts[text] = self._asked().tokens(text)
        return self._file.texts[text]

    def ask(self, prompt: list[int], tokens: int, what: str, **fields: Any) -> Answered:
        """Return the likeliest tokens behind a prompt, as they were answered once.

        Raises BackendError if none come.
        """
        named = {name: value for name, value in fields.items() if name != "cache_salt"}
        digest = hashlib.sha256(json.dumps([prompt, tokens, named]).encode()).hexdigest()[:24]
        self._times[digest] += 1
        key = digest if self._cold else f"{digest}-{self._times[digest]}"
        if key not in self._file.answers:
            self._file.answers[key] = self._asked().ask(prompt, tokens, what, **fields)
            if self._cold:
                self.save()
        return self._file.answers[key]

    def save(self) -> None:
        """Write the file."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_bytes(msgspec.json.encode(self._file))

    def _asked(self) -> Subject:
        if self._subject is None:
            self._subject = self._open()
        self._subject.zero_left_out = self.zero_left_out
        return self._subject


@contextmanager
def started(script: str, *arguments: str) -> Iterator[Callable[[], str]]:
    """Give what starts a script of `ci` when it is first called, and returns the address that it
    prints; the script is ended in the end.
    """
    processes: list[tuple[subprocess.Popen[str], str]] = []

    def address() -> str:
        if not processes:
            process = subprocess.Popen(
                [sys.executable, str(CI / script), *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            assert process.stdout is not None
            lines = (line.strip() for line in process.stdout)
            found = next((line for line in lines if line.startswith("http")), "")
            processes.append((process, found))
        return processes[0][1]

    try:
        yield address
    finally:
        for process, _ in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def served(address: str) -> Served:
    """Return the server of an address. Raises UsageError if it does not answer."""
    return Served.at(address, "", "--base-url", TIMEOUT)
