"""Puts the results of several databases into one, with the traces of their findings: those of a
campaign's shares, say.

Where two have a result for the same unit, both have what was found in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from cachewitness._util.errors import UsageError
from cachewitness.sessions.campaign.database import Database
from cachewitness.sessions.campaign.results import Results, store_place
from cachewitness.sessions.campaign.store import Store, opened
from cachewitness.sessions.campaign.unit import Outcome


class Merged(NamedTuple):
    """How many results were read, how many of them have findings, and why traces are missing."""

    results: int
    found: int
    missing: list[str]


def merge(databases: Sequence[Path], into: Path) -> Merged:
    """Enter the results of databases into another one, and keep their traces beside it.

    A result whose trace cannot be read is entered so that the same campaign does its unit again for
    the trace. Raises UsageError if a database cannot be used, or a row is none that cachewitness
    wrote.
    """
    if into.resolve() in {path.resolve() for path in databases}:
        raise UsageError(f"-o {into}: it is one of those that are merged; name another file")
    merged = Merged(0, 0, [])
    with closing(Database(str(into))) as target:
        for path in databases:
            with closing(Database(str(path))) as source:
                merged = _entered(source, target, merged)
    return merged


def _entered(source: Database, target: Database, merged: Merged) -> Merged:
    for campaign, traces in source.rows("SELECT DISTINCT campaign, traces FROM results"):
        rows = source.rows(
            "SELECT unit FROM results WHERE campaign = ? AND traces = ?", campaign, traces
        )
        own = Results(source, campaign, traces)
        results = Results(target, campaign, traces)
        places = [store_place(traces, database.name) for database in (source, target)]
        here, there = map(opened, places)
        for key, written in own.read(str(unit) for (unit,) in rows):
            outcome = own.outcome(key, written)
            missing = [] if places[0] == places[1] else _copy(outcome, here, there)
            if not (missing and outcome.small):  # it is made small again
                results.enter(key, outcome, own=bool(campaign))
            merged = Merged(
                merged.results + 1, merged.found + bool(outcome.met), merged.missing + missing
            )
    return merged


def _copy(outcome: Outcome, here: Store, there: Store) -> list[str]:
    """Copy the traces of an outcome; return why some cannot be read, after noting it there."""
    missing = []
    for met in (*outcome.met, *([outcome.small] if outcome.small else [])):
        if not met.trace:
            continue
        try:
            content = here.get(met.trace)
        except UsageError as error:
            met.trace = ""
            outcome.unkept = str(error)
            missing.append(str(error))
        else:
            there.put(content)
    return missing
