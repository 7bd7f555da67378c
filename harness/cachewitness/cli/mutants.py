"""`cachewitness mutants`: hunts every seeded fault with the workloads that any engine gets, and
says which checker finds it.
"""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import click

from cachewitness._util.errors import UsageError
from cachewitness.cli import completion
from cachewitness.cli.json_option import json_option, print_json
from cachewitness.cli.options import Finite
from cachewitness.cli.report_option import drawn, page_option
from cachewitness.cli.report_option import ready as report_ready
from cachewitness.cli.status_line import left
from cachewitness.cli.table_option import ready, table_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cachewitness.engines.mutant import Mutant
    from cachewitness.sessions.mutants.document import Hunt
    from cachewitness.sessions.mutants.matrix import Matrix, Row

_SURVIVED, _NOT_HUNTED = 1, 5


@click.command()
@click.option(
    "--policy",
    "policy",
    default="",
    metavar="NAME",
    help="Hunt only the faults planted into this policy's reference.",
)
@click.option(
    "--mutant",
    "names",
    multiple=True,
    metavar="NAME",
    shell_complete=completion.of("mutants"),
    help="Hunt only this fault (`ls mutants`); may be repeated.",
)
@click.option(
    "--budget",
    type=Finite(min=0, min_open=True),
    default=60,
    show_default=True,
    help="CPU seconds for the hunt of each fault.",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Hunt each fault so many times, with the random work of another seed; all must kill it.",
)
@click.option(
    "--tensor-seconds",
    type=Finite(min=0),
    default=10,
    show_default=True,
    help="CPU seconds on the toy engine for each fault; 0 leaves the column out.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="The number of faults hunted at a time.",
)
@click.option(
    "--write",
    is_flag=True,
    help=(
        "In a checkout: keep the witnesses in fixtures/traces and, if every fault was hunted, write"
        " docs/results/kill-matrix.md."
    ),
)
@table_option("kills")
@click.option(
    "--chart",
    type=click.Path(path_type=Path),
    metavar="FILE.svg",
    help="Draw which detectors see the faults of each mechanism.",
)
@page_option
@json_option("mutants")
def mutants(
    policy: str,
    names: tuple[str, ...],
    budget: float,
    seeds: int,
    tensor_seconds: float,
    jobs: int,
    write: bool,
    table: Path | None,
    chart: Path | None,
    folder: Path | None,
    as_json: bool,
) -> int:
    """Hunt seeded faults and print which checker finds each; exits 1 if a fault survives, 5 if
    one could not be hunted.
    """
    from cachewitness._util import files
    from cachewitness.engines.faults import all_mutants
    from cachewitness.report import terminal
    from cachewitness.sessions.mutants import heat_map, matrix, page
    from cachewitness.sessions.mutants.document import document
    from cachewitness.sessions.run import store

    ready(table)
    report_ready(folder)
    if chart:
        store.ready(chart, "--chart")
    chosen = _chosen(policy, names)
    target = _page() if write else None
    printer = None if as_json else _ProgressPrinter(len(chosen))
    made = matrix.run(
        chosen, budget, tensor_seconds, seeds=seeds, write=write, jobs=jobs, on_row=printer
    )
    if target is not None and not policy and not names and not made.interrupted:
        text = page.page(made)
        files.write(target, [text.encode()])
        files.write(target.with_suffix(".svg"), [heat_map.drawn(text).encode()])
    if table:
        from cachewitness._util import frame
        from cachewitness.sessions.mutants import rows

        files.write(table, [frame.content(rows.rows(made), rows.COLUMNS, table)])
    if chart and made.rows:
        files.write(chart, [heat_map.of_rows(made.rows).encode()])
    hunt = document(made, [mutant.name for mutant in chosen], len(all_mutants()), _exit_code(made))
    if as_json:
        print_json(hunt)
    else:
        page.print_matrix(made, terminal.console())
    if made.interrupted:
        click.echo(
            f"cachewitness: interrupted after {len(made.rows)} of {len(chosen)} faults", err=True
        )
    return drawn(hunt.exit_code, folder, hunt, lambda _: _drawn(hunt))


def _drawn(hunt: Hunt) -> bytes:
    from cachewitness.sessions.mutants import report_page as hunt_page

    return hunt_page.of_hunt(hunt)


def _exit_code(made: Matrix) -> int:
    from cachewitness.core.result import EXIT_INTERRUPTED

    if made.interrupted:
        return EXIT_INTERRUPTED
    if made.survivors:
        return _SURVIVED
    return _NOT_HUNTED if any(row.not_run for row in made.rows) else 0


def _chosen(policy: str, names: Sequence[str]) -> list[Mutant]:
    from cachewitness._util.names import nearest
    from cachewitness.engines import policy as policies
    from cachewitness.engines.faults import all_mutants, need_all

    if policy:
        policies.get(policy)
    if not names:
        need_all("mutants", policy)
    known = all_mutants()
    for name in names:
        if name not in known:
            need_all(f"--mutant: no mutant is called {name!r} here")
            raise UsageError(
                f"--mutant: no mutant is called {name!r}{nearest(name, known, 'ls mutants')}"
            )
    chosen = [
        m for m in known.values() if (not names or m.name in names) and policy in ("", m.policy)
    ]
    if not chosen:
        raise UsageError(f"--mutant: none of {', '.join(names)} is of policy {policy}")
    return chosen


def _page() -> Path:
    """Return where the page is. Raises UsageError outside a checkout."""
    from cachewitness._util import data

    docs = data.fixtures().parent / "docs"
    if not docs.is_dir():
        raise UsageError(
            f"--write: {docs} is missing; witnesses and page are written in a checkout of the"
            " repository alone"
        )
    return docs / "results" / "kill-matrix.md"


class _ProgressPrinter:
    """Prints on standard error what the hunt of each fault came to, and how long the others will
    take.
    """

    def __init__(self, faults: int) -> None:
        self._faults = faults
        self._done = 0
        self._started = monotonic()

    def __call__(self, row: Row) -> None:
        """Print it."""
        self._done += 1
        seconds = (
            f"{row.seconds:.2f} s"
            if row.hunts == 1
            else f"{min(row.killing):.2f} to {max(row.killing):.2f} s"
        )
        missed = row.hunts - len(row.killing)
        killed = f"killed in {seconds}{f', SURVIVED {missed} seeds' if missed else ''}"
        what = killed if row.killed else row.not_run or "SURVIVED"
        rest = (self._faults - self._done) * (monotonic() - self._started) / self._done
        which = f" ({self._done} of {self._faults}{left(rest)})" if self._faults > 1 else ""
        click.echo(f"{row.mutant}: {what}{which}", err=True)
