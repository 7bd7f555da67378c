"""Histories in files: a header and its events, a line of JSON each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from harness._util import files, jsonl
from harness._util.errors import UsageError
from harness.history.events import Event, Header, History


def dump(history: History) -> Iterator[bytes]:
    """Yield the history line by line, as JSON."""
    encoder = msgspec.json.Encoder()
    yield encoder.encode(history.header) + b"\n"
    for event in history.events:
        yield encoder.encode(event) + b"\n"


def save(history: History, path: Path) -> None:
    """Write the history to a file, all of it or nothing."""
    files.write(path, dump(history))


def read(path: Path) -> tuple[Header, Iterator[tuple[int, Event]]]:
    """Return the header of a stored history, and its events with their lines in the file, read as they are asked for.

    Raises UsageError naming the file, the line and the field if anything does not fit the format.
    """
    lines, where = jsonl.lines(path), str(path)
    header: Header = jsonl.header([first.strip() for first in islice(lines, 1)], Header, where, "a history")

    def events() -> Iterator[tuple[int, Event]]:
        decode = msgspec.json.Decoder(Event).decode
        for number, text in enumerate(lines, start=2):
            if text.isspace():
                continue
            try:
                event = decode(text)
            except jsonl.UNREADABLE as error:
                raise UsageError(f"{where}:{number}: {error}") from None
            yield number, event

    return header, events()


def load(path: Path) -> History:
    """Read a history, all of it. Raises UsageError naming the file, the line and the field where it does not fit the format."""
    header, events = read(path)
    found = [event for _, event in events]
    return History(header, found, [-1] * len(found))
