"""Reads a live engine's events anew: they are written out and read back, so nothing of them is
shared with the engine.

A block table is told whole with every step. Of a long one, what is told as it was the last time is
not read again: the pages that were read then stand for it. So a step of a long sequence costs
little more than one of a short one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from cachewitness.core.events import Aborted, Event, Finished, Run, StepBegin

LONG = 128
"""A row of fewer columns is read whole: to remember it would cost more."""
_ENCODER = msgspec.msgpack.Encoder()
_EVENTS = msgspec.msgpack.Decoder(list[Event])
_PAGES = msgspec.msgpack.Decoder(list[int])
_ENDS = (Aborted, Finished)


class Row(NamedTuple):
    """A row of a block table as it was told, in a copy that the engine does not have, and the
    pages that were read from it.
    """

    row: list[int] | tuple[int, ...]
    pages: list[int]


_NO_ROW = Row([], [])


class EventReader:
    """Reads the events of one engine. Lists of pages that it returns may be shared between
    events, and are never changed.
    """

    def __init__(self) -> None:
        self._rows: dict[str, dict[int, Row]] = {}
        """By request and group: the long row that was read last."""

    def read(self, answer: list[Any] | tuple[Any, ...]) -> list[Event]:
        """Return events, read anew. Raises what msgspec does for events that cannot be written
        or read.
        """
        events = self._read(answer)
        if self._rows:
            for event in events:
                if type(event) in _ENDS:
                    self._rows.pop(event.r, None)  # type: ignore[union-attr]
        return events

    def _read(self, answer: list[Any] | tuple[Any, ...]) -> list[Event]:
        long_rows: dict[int, list[Run]] = {}
        for at, event in enumerate(answer):
            if type(event) is StepBegin:
                for run in event.runs:
                    if type(run) is Run and any(map(_is_long_row, run.tables)):
                        long_rows[at] = event.runs
        if not long_rows:
            return _EVENTS.decode(_ENCODER.encode(answer))
        short = list(answer)
        for at, runs in long_rows.items():
            short[at] = replace(
                answer[at],
                runs=[replace(run, tables=list(map(_if_short, run.tables))) for run in runs],
            )
        events = _EVENTS.decode(_ENCODER.encode(short))
        for at, runs in long_rows.items():
            self._put_back(runs, events[at])
        return events

    def _put_back(self, runs: list[Run], event: Event) -> None:
        assert isinstance(event, StepBegin)
        for run, read in zip(runs, event.runs, strict=True):
            for group, row in enumerate(run.tables):
                if _is_long_row(row):
                    read.tables[group] = self._row(read.r, group, row)

    def _row(self, r: str, group: int, row: list[int] | tuple[int, ...]) -> list[int]:
        rows = self._rows.setdefault(r, {})
        known = rows.get(group, _NO_ROW)
        if _equal_rows(row, known.row):
            return known.pages
        copied = row[:]
        count = len(known.row)
        pages = (
            known.pages + _read_pages(copied[count:])
            if _equal_rows(copied[:count], known.row)
            else _read_pages(copied)
        )
        rows[group] = Row(copied, pages)
        return pages


def _equal_rows(row: list[int] | tuple[int, ...], other: list[int] | tuple[int, ...]) -> bool:
    """Whether two rows are the same. What raises when it is compared is no page: to read it says
    so.
    """
    try:
        return row == other
    except Exception:
        return False


def _read_pages(row: list[int] | tuple[int, ...]) -> list[int]:
    return _PAGES.decode(_ENCODER.encode(row))


def _is_long_row(row: Any) -> bool:
    kind = type(row)
    return (kind is list or kind is tuple) and len(row) >= LONG


def _if_short(row: Any) -> Any:
    return [] if _is_long_row(row) else row
