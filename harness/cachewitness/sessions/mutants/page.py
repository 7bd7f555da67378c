"""Writes the page of the kill matrix, and prints the same table on a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from cachewitness._util import pages
from cachewitness.engines.faults import all_mutants
from cachewitness.engines.mutant import GROUPS
from cachewitness.report.tables import new_table, print_table
from cachewitness.sessions.mutants.detectors import DETECTORS, NO, NOT_RUN, SURVIVED
from cachewitness.sessions.mutants.equivalent import EQUIVALENT
from cachewitness.sessions.mutants.matrix import Matrix, Row

SOLE = "†"
LETTERS = ("I", "D", "T", "S", "R")
"""The detectors on a terminal, in their order."""
SPENT = ("seconds", "operations", "seeds", "slowest", "witness")
COLUMNS = ("fault", "group", "named anomaly (checker)", *DETECTORS, *SPENT)


def page(matrix: Matrix) -> str:
    """Return docs/results/kill-matrix.md."""
    rows = []
    for row in matrix.rows:
        name, *rest = _cells(row)
        rows.append(
            [
                f"`{row.mutant}`{name.removeprefix(row.mutant)}",
                *(cell.replace("not run", "–") for cell in rest),
            ]
        )
    return pages.render(
        "kill-matrix",
        sole=SOLE,
        summary=summary(matrix),
        columns=COLUMNS,
        rows=rows,
        **_catalogue(),
    )


def faults() -> str:
    """Return the end of the page, which no hunt changes: what the faults are, and those left
    out.
    """
    return pages.render("kill-matrix-faults", **_catalogue())


def summary(matrix: Matrix) -> str:
    """Return one line: how many, how fast, how small."""
    figures = matrix.figures
    count = sum(row.killed for row in matrix.rows)
    hunted = sum(not row.not_run for row in matrix.rows)
    return (
        f"{count} of {hunted} faults killed, under {_seeds(matrix)}; CPU seconds to a kill: median"
        f" {figures['seconds_median']:.2f}, worst {figures['seconds_max']:.2f}; operations of a"
        f" witness: median {figures['witness_operations_median']:g}, most"
        f" {figures['witness_operations_max']:g}; seen by one detector alone:"
        f" {sum(row.alone for row in matrix.rows)}"
    )


def _seeds(matrix: Matrix) -> str:
    hunts = max((row.hunts for row in matrix.rows), default=1)
    missed = sum(row.hunts - len(row.killing) for row in matrix.rows if row.killed)
    return (
        f"each of {hunts} seeds"
        if hunts > 1 and not missed
        else f"{hunts} seed{'s' * (hunts > 1)}, {missed} hunts in vain"
    )


def print_matrix(matrix: Matrix, out: Console) -> None:
    """Print the table, what was not run, what survived, and the summary."""
    table = new_table(out, ("", *LETTERS, *SPENT), gap=1)
    for row in matrix.rows:
        name, _, _, *answers = _cells(row)
        letters = [
            _letter(letter, answer) for letter, answer in zip(LETTERS, answers, strict=False)
        ]
        table.add_row(name, *letters, *answers[len(LETTERS) :])
    print_table(table, out)
    out.print(
        ", ".join(
            f"{letter} {detector}" for letter, detector in zip(LETTERS, DETECTORS, strict=True)
        ),
        soft_wrap=True,
    )
    out.print(
        f". not seen, - not run, {SOLE} seen by one detector alone", markup=False, soft_wrap=True
    )
    for row in matrix.rows:
        if row.not_run:
            out.print(f"not run: {row.mutant}: {row.not_run}", markup=False, soft_wrap=True)
        for alarm in row.false_alarms:
            out.print(f"false alarm without {row.mutant}: {alarm}", markup=False, soft_wrap=True)
    for row in matrix.survivors:
        out.print(f"SURVIVED: {row.mutant}, {survived(row)}", markup=False, soft_wrap=True)
    out.print(summary(matrix), markup=False, soft_wrap=True)


def survived(row: Row) -> str:
    """Return how long a fault was hunted in vain, or under which seeds."""
    if not row.killed:
        return f"after {row.operations:,} operations"
    return "under seed " + ", ".join(
        str(seed) for seed, seconds in enumerate(row.other_seeds, 1) if seconds is None
    )


def _cells(row: Row) -> list[str]:
    spent = ["", str(row.operations), "", "", ""]
    if row.killed:
        seeds = f"{len(row.killing)}/{row.hunts}"
        spent = [
            f"{row.seconds:.2f}",
            str(row.operations),
            seeds,
            f"{max(row.killing):.2f}",
            str(row.witness),
        ]
    first, others = (NOT_RUN, NOT_RUN) if row.not_run else (SURVIVED, "")
    answers = [
        row.detectors.get(detector, others if index else first)
        for index, detector in enumerate(DETECTORS)
    ]
    return [
        f"{row.mutant}{f' {SOLE}' if row.alone else ''}",
        row.group,
        f"{row.anomaly} ({row.checker})",
        *answers,
        *spent,
    ]


def _catalogue() -> dict[str, Any]:
    groups = {
        f"{letter}: {mechanism}": [
            mutant for mutant in all_mutants().values() if mutant.group == letter
        ]
        for letter, mechanism in GROUPS.items()
    }
    return {"groups": groups, "left_out": EQUIVALENT}


def _letter(letter: str, answer: str) -> str:
    return {NO: ".", NOT_RUN: "-", "": "", SURVIVED: "!"}.get(answer, letter)
