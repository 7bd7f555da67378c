"""The page of the kill matrix, and the same table on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console

from harness.engines.faults import all_mutants
from harness.engines.mutant import GROUPS
from harness.mutants.detectors import DETECTORS, NO, NOT_RUN
from harness.mutants.equivalent import EQUIVALENT
from harness.mutants.matrix import Matrix, Row
from harness.verdict.report.tables import new_table, print_table

SOLE = "†"
LETTERS = ("I", "D", "T", "S", "R")
"""The detectors on a terminal, in their order."""
COLUMNS = ("fault", "group", "named anomaly (checker)", *DETECTORS, "seconds", "operations", "witness")

_INTRODUCTION = """# Kill matrix

Written by `cachewitness mutants --write`; not edited by hand.

Every seeded fault mirrors a real bug and names in advance the anomaly that must be raised and the checker that raises it. It is
killed if that happens on a workload that was not written for it, while the same trace passes without it; the differential does
not count. The other columns ask each detector by itself: *invariants* are the
checkers over the ledger that see the fault on the killing trace, *differential* the reference in lock-step, *tensor* the toy
engine's numbers, *score* answers of a model, *reuse floor* whether hits are as long as the engine's own keys allow. A dash is
*not run*, or not to the end: the differential follows one policy at one height; of the tensors time was up before any differed
(`suites/cold_vs_cached/test_mutants.py` has more); scores take minutes a fault (`suites/score/test_mutants.py` has nine).
{sole} marks a fault that one of the detectors asked sees alone.

*Seconds* are CPU time and *operations* those carried out until the kill; *witness* counts the operations of the shrunk trace,
which is kept in `fixtures/traces/mutants`.
"""


def page(matrix: Matrix) -> str:
    """Return the page in Markdown."""
    return "\n".join([_INTRODUCTION.format(sole=SOLE), *_figures(matrix), *_table(matrix), *_mirrors(), *_left_out()]) + "\n"


def summary(matrix: Matrix) -> str:
    """Return one line: how many, how fast, how small."""
    figures, count = matrix.figures, sum(row.killed for row in matrix.rows)
    hunted = sum(not row.not_run for row in matrix.rows)
    return (
        f"{count} of {hunted} faults killed; CPU seconds to a kill: median {figures['seconds_median']:.2f}, worst "
        f"{figures['seconds_max']:.2f}; operations of a witness: median {figures['witness_operations_median']:g}, most "
        f"{figures['witness_operations_max']:g}; seen by one detector alone: {sum(row.alone for row in matrix.rows)}"
    )


def print_matrix(matrix: Matrix, out: Console) -> None:
    """Print the table, what was not run, what survived, and the summary."""
    table = new_table(out, ("", *LETTERS, "seconds", "operations", "witness"), gap=1)
    for row in matrix.rows:
        name, _, _, *answers = _configurations(row)
        letters = [_letter(letter, answer) for letter, answer in zip(LETTERS, answers, strict=False)]
        table.add_row(name, *letters, *answers[len(LETTERS) :])
    print_table(table, out)
    out.print(", ".join(f"{letter} {detector}" for letter, detector in zip(LETTERS, DETECTORS, strict=True)), soft_wrap=True)
    out.print(f". not seen, - not run, {SOLE} seen by one detector alone", markup=False, soft_wrap=True)
    for row in matrix.rows:
        if row.not_run:
            out.print(f"not run: {row.mutant}: {row.not_run}", markup=False, soft_wrap=True)
        for alarm in row.false_alarms:
            out.print(f"false alarm without {row.mutant}: {alarm}", markup=False, soft_wrap=True)
    for row in matrix.survivors:
        out.print(f"SURVIVED: {row.mutant}, after {row.operations:,} operations", markup=False, soft_wrap=True)
    out.print(summary(matrix), markup=False, soft_wrap=True)


def _figures(matrix: Matrix) -> Iterator[str]:
    yield f"{summary(matrix)}.\n"


def _table(matrix: Matrix) -> Iterator[str]:
    yield _line(COLUMNS)
    yield _line("---" for _ in COLUMNS)
    for row in matrix.rows:
        name, *rest = _configurations(row)
        yield _line(
            [
                f"`{row.mutant}`{name.removeprefix(row.mutant)}",
                *(configuration.replace("not run", "–") for configuration in rest),
            ]
        )


def _configurations(row: Row) -> list[str]:
    spent = [f"{row.seconds:.2f}", str(row.operations), str(row.witness)] if row.killed else ["", str(row.operations), ""]
    answers = [row.detectors.get(detector, "survived" if not index else "") for index, detector in enumerate(DETECTORS)]
    return [f"{row.mutant}{f' {SOLE}' if row.alone else ''}", row.group, f"{row.anomaly} ({row.checker})", *answers, *spent]


def _mirrors() -> Iterator[str]:
    yield "\n## What the faults are\n"
    for group, summary_of in GROUPS.items():
        yield f"\n### {group}: {summary_of}\n"
        for mutant in all_mutants().values():
            if mutant.group == group:
                where = mutant.policy if mutant.engine == "reference" else "device"
                yield f"* `{mutant.name}` ({where}): {mutant.summary}. Mirrors {mutant.mirrors}"


def _left_out() -> Iterator[str]:
    yield "\n## Left out\n"
    yield "Faults that are none under the law, or that nothing here can have:\n"
    for name, (mirrors, why) in EQUIVALENT.items():
        yield f"* {name} ({mirrors}): {why}"


def _letter(letter: str, answer: str) -> str:
    return {NO: ".", NOT_RUN: "-", "": "", "survived": "!"}.get(answer, letter)


def _line(configurations: Iterable[str]) -> str:
    return f"| {' | '.join(configurations)} |"
