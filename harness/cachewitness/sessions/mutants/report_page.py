"""The page of a hunt of seeded faults: those that survive, what to do about each, and who sees
whom as a heat map.
"""

from __future__ import annotations

from collections import Counter
from shlex import quote
from typing import NamedTuple

from cachewitness.core.result import EXIT_FAIL, EXIT_NOTHING_CHECKED, EXIT_PASS
from cachewitness.engines.faults import all_mutants
from cachewitness.engines.mutant import DEFAULT_POLICY, GROUPS
from cachewitness.report import terminal
from cachewitness.report.html.page import rendered
from cachewitness.sessions.mutants import heat_map, page
from cachewitness.sessions.mutants.detectors import DETECTORS, NO, NOT_RUN
from cachewitness.sessions.mutants.document import Hunt
from cachewitness.sessions.mutants.matrix import Matrix, Row

LONGER = 10
"""So many times the default budget is what a fault that survives is hunted with next."""
BUDGET = 60
SHOWN_MAX = 12
"""So many survivors are shown with what to do; the others are named."""


class Survivor(NamedTuple):
    """A fault that was not found: the row, what it does, which bug it mirrors, how long it was
    hunted, and what comes next.
    """

    row: Row
    summary: str
    mirrors: str
    hunted: str
    longer: str
    planted: str


def of_hunt(hunt: Hunt) -> bytes:
    """Return the page of a hunt."""
    made = Matrix(rows=hunt.rows, interrupted=hunt.interrupted)
    known = [row for row in hunt.rows if row.group in GROUPS and not row.not_run]
    # A detector that ran on no mutant caught nothing, which must not read as if it had missed all
    # of them.
    unasked = [
        name
        for name in DETECTORS
        if known and all(row.detectors.get(name, NOT_RUN) == NOT_RUN for row in known)
    ]
    return rendered(
        "hunt.html.j2",
        films=False,
        verdict=(terminal.MEANINGS[hunt.exit_code][0], hunt.exit_code, _meaning(hunt, made)),
        hunt=hunt,
        summary=page.summary(made),
        survivors=[_survivor(row) for row in made.survivors[:SHOWN_MAX]],
        others=[row.mutant for row in made.survivors[SHOWN_MAX:]],
        not_run=Counter(row.not_run for row in hunt.rows if row.not_run),
        alarms=[(row.mutant, alarm) for row in hunt.rows for alarm in row.false_alarms],
        detectors=DETECTORS,
        unasked=unasked,
        no=NO,
        groups={
            letter: words
            for letter, words in GROUPS.items()
            if any(row.group == letter for row in known)
        },
        map=[heat_map.of_rows(known, inline=True)] if known else [],
    )


def _meaning(hunt: Hunt, made: Matrix) -> str:
    survivors = len(made.survivors)
    open_ = sum(bool(row.not_run) for row in hunt.rows)
    hunted = len(hunt.rows) - open_
    return {
        EXIT_PASS: (
            "every fault that was hunted was found, as the anomaly and by the checker that it names"
            " in advance"
        ),
        EXIT_FAIL: (
            f"{survivors:,} of {hunted:,} faults survived, so bugs of their kind would not be seen"
        ),
        EXIT_NOTHING_CHECKED: f"no fault survived, and {open_:,} could not be hunted",
    }.get(hunt.exit_code, terminal.MEANINGS[hunt.exit_code][2])


def _survivor(row: Row) -> Survivor:
    planted = all_mutants().get(row.mutant)
    policy = f" --policy {quote(row.policy)}" if row.policy != DEFAULT_POLICY else ""
    faulty = f"{planted.engine if planted else 'reference'}:mutant={row.mutant}"
    return Survivor(
        row,
        planted.summary if planted else "",
        planted.mirrors if planted else "",
        page.survived(row),
        f"cachewitness mutants --mutant {quote(row.mutant)} --budget {LONGER * BUDGET}",
        f"cachewitness run --engine {quote(faulty)}{policy}",
    )
