"""A hunt as rows: one for each fault and seed. Their ids are the same in every hunt."""

from __future__ import annotations

from typing import Any

from cachewitness.sessions.mutants.detectors import DETECTORS
from cachewitness.sessions.mutants.matrix import Matrix, Row

DETECTED = {name: f"detected_{name.replace(' ', '_')}" for name in DETECTORS}
COLUMNS = (
    *("id", "mutant", "seed", "group", "policy", "anomaly", "checker", "killed", "seconds"),
    *("operations", "traces", "by", "witness", "alone", "not_run"),
    *DETECTED.values(),
)


def rows(made: Matrix) -> list[dict[str, Any]]:
    """Return the rows of a hunt.

    The `id` is the name of the fault and the seed, `NAME#0`. `seconds` of CPU differ from run to
    run; what is counted, named and detected is of the first seed, and stands in the row of seed 0
    alone.
    """
    return [row for found in made.rows for row in _of(found)]


def _of(row: Row) -> list[dict[str, Any]]:
    same = {
        "mutant": row.mutant,
        "group": row.group,
        "policy": row.policy,
        "anomaly": row.anomaly,
        "checker": row.checker,
    }
    counted = {
        name: getattr(row, name)
        for name in ("operations", "traces", "by", "witness", "alone", "not_run")
    }
    detected = {column: row.detectors.get(name, "") for name, column in DETECTED.items()}
    first = {
        "killed": row.killed,
        "seconds": row.seconds if row.killed else None,
        **counted,
        **detected,
    }
    others = [{"killed": seconds is not None, "seconds": seconds} for seconds in row.other_seeds]
    return [
        {"id": f"{row.mutant}#{seed}", "seed": seed, **same, **one}
        for seed, one in enumerate([first, *others])
    ]
