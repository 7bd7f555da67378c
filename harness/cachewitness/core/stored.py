"""Histories in files: a header and its events, a line of JSON each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import msgspec

from cachewitness._util import files, jsonl
from cachewitness._util.errors import UsageError
from cachewitness.core.events import Event, Header, History

Portion = tuple[Sequence[int], list[Event]]
"""Some events of a file, and the line of each."""


def dump(history: History) -> Iterator[bytes]:
    """Yield the history line by line, as JSON."""
    encoder = msgspec.json.Encoder()
    yield encoder.encode(history.header) + b"\n"
    for event in history.events:
        yield encoder.encode(event) + b"\n"


def save(history: History, path: Path) -> None:
    """Write the history to a file, all of it or nothing."""
    files.write(path, dump(history))


def read(path: Path) -> tuple[Header, Iterator[Portion]]:
    """Return the header of a stored history, and its events, some at a time with their lines, read
    as they are asked for.

    Raises UsageError naming the file, the line and the field if anything does not fit the format;
    events of lines before come first.
    """
    blocks = jsonl.blocks(path)
    where = str(path)
    _, block = next(blocks, (1, b""))
    first, _, rest = block.partition(b"\n")
    header: Header = jsonl.header([first.strip()] if block else [], Header, where, "a history")

    def portions() -> Iterator[Portion]:
        decoder = msgspec.json.Decoder(Event)
        for number, block in chain([(2, rest)], blocks):
            if (events := _at_once(decoder, block)) is not None:
                yield range(number, number + len(events)), events
            else:
                yield from _line_by_line(decoder, block, where, number)

    return header, portions()


def _at_once(decoder: msgspec.json.Decoder[Event], block: bytes) -> list[Event] | None:
    """Return the events of some lines; None if one of the lines is blank, ends otherwise, or is
    not of the format.
    """
    lines = block.count(b"\n")
    if block.count(b"}\n{") != lines - 1:
        return None  # the decoder takes events for one after the other, wherever lines end
    try:
        events = decoder.decode_lines(block)
    except jsonl.UNREADABLE:
        return None
    return events if len(events) == lines else None


def _line_by_line(
    decoder: msgspec.json.Decoder[Event], block: bytes, where: str, number: int
) -> Iterator[Portion]:
    numbers = list[int]()
    events = list[Event]()
    for line, text in enumerate(block.split(b"\n"), start=number):
        if not text or text.isspace():
            continue
        try:
            events.append(decoder.decode(text))
        except jsonl.UNREADABLE as error:
            yield numbers, events
            raise UsageError(f"{where}:{line}: {error}") from None
        numbers.append(line)
    yield numbers, events


def load(path: Path) -> History:
    """Read a history, all of it. Raises UsageError naming the file, the line and the field where
    it does not fit the format.
    """
    header, portions = read(path)
    found = [event for _, events in portions for event in events]
    return History(header, found, [-1] * len(found))
