"""A failed trace as the source of a test that needs the engine alone (`replay --export pytest`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from cachewitness.core.events import History
from cachewitness.core.trace_format import Trace


class Failed(NamedTuple):
    """What a test of an engine is to show: the anomaly, the request `r`, the event's number, and
    how many tokens are owed.

    `r` and `seq` are empty and −1 where the finding has none; `owed` is 0 unless a hit is too
    short.
    """

    anomaly: str
    r: str
    seq: int
    owed: int


class Exported(NamedTuple):
    """A test as source, and the folder that has to be on the path of the Python that runs it;
    empty: none.

    `says` is a pattern of what its assertion says if it fails as it should: the test has others, of
    what leads there.
    """

    text: str
    path: str
    says: str


Exporter = Callable[[Trace, History, Failed, Mapping[str, str]], Exported]
"""Writes a failed trace, with its history, as a test; takes the engine's options. It raises
UsageError for what cannot be written as one."""
