"""A hunt of seeded faults as one JSON document; `cachewitness schema mutants` prints its schema."""

from __future__ import annotations

import msgspec

from cachewitness.sessions.mutants.matrix import Matrix, Row

FORMAT, VERSION = "cachewitness.mutants", 1


class Hunt(msgspec.Struct, kw_only=True):
    """A hunt of seeded faults: what became of each, those that survive, and the figures over those
    that were killed.

    `not_hunted` names the faults whose turn did not come before the hunt was interrupted;
    `not_asked` counts those that the options left out.
    """

    rows: list[Row]
    survivors: list[str]
    figures: dict[str, float]
    interrupted: bool
    exit_code: int
    not_hunted: list[str] = []
    not_asked: int = 0
    format: str = FORMAT
    version: int = VERSION


def document(made: Matrix, chosen: list[str], known: int, exit_code: int) -> Hunt:
    """Return the document of a hunt of the faults `chosen`, of so many that are known."""
    done = {row.mutant for row in made.rows}
    return Hunt(
        rows=made.rows,
        survivors=[row.mutant for row in made.survivors],
        figures=made.figures,
        interrupted=made.interrupted,
        exit_code=exit_code,
        not_hunted=[name for name in chosen if name not in done],
        not_asked=known - len(chosen),
    )
