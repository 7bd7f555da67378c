"""`cachewitness consume`: test vectors on an engine."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cachewitness.cli.json_option import json_option, print_json
from cachewitness.cli.options import engine_of, engine_option, release_option
from cachewitness.cli.report_option import drawn, page_option, ready

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cachewitness.engines.registry import EngineSpec
    from cachewitness.vectors.consume import Consumed
    from cachewitness.vectors.document import AskedFile
    from cachewitness.vectors.document import Consumed as Document
    from cachewitness.vectors.form import File


@click.command()
@click.argument(
    "vectors", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="VECTORS…"
)
@engine_option
@release_option
@page_option
@click.option("--quiet", is_flag=True, help="Print only failures and the verdict.")
@json_option("consumed")
def consume(
    vectors: tuple[Path, ...],
    engine: str,
    release: str | None,
    folder: Path | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Ask an engine the questions of test vectors, files or folders of them, and compare its
    answers.

    Exits with 1 if an answer is wrong, and with 5 if the engine could be asked nothing.
    """
    from cachewitness.core import result as verdict
    from cachewitness.vectors import consume as consuming
    from cachewitness.vectors import store
    from cachewitness.vectors.document import AskedFile, document

    spec = engine_of(engine, release=release)
    files = [(path, store.load(path)) for path in store.find(vectors)]
    ready(folder, *(path for path, _ in files))
    asked: list[AskedFile] = []
    for path, file in files:
        asked.append(AskedFile(path, file, consuming.consume(file, spec)))
        if not as_json:
            _print_outcome(path, file, asked[-1].came, quiet=quiet)
    whole = document(asked, spec.text)
    problems = _keep(whole, asked, spec, folder) if folder else []
    if as_json:
        print_json(whole)
    else:
        _sum_up(asked)
        if whole.exit_code == verdict.EXIT_NOTHING_CHECKED:
            click.echo("cachewitness: nothing was consumed", err=True)
    return drawn(whole.exit_code, folder, whole, partial(_drawn, whole), problems)


def _sum_up(asked: Sequence[AskedFile]) -> None:
    passed = sum((one.came.passed for one in asked), Counter[str]())
    failed = sum(len(one.came.failures) for one in asked)
    unknown = sum(len(one.came.unknown) for one in asked)
    counts = ", ".join(f"{passed[name]} {name}" for name in ("valid", "acceptable", "invalid"))
    total = sum(one.came.asked.total() for one in asked)
    _print_line(
        f"passed: {counts}; failed: {failed}"
        + (f"; unknown: {unknown}" if unknown else "")
        + f"; asked: {total}"
    )


def _keep(whole: Document, asked: Sequence[AskedFile], spec: EngineSpec, folder: Path) -> list[str]:
    from cachewitness.report.html.page import FILMS_MAX
    from cachewitness.sessions.run import store
    from cachewitness.vectors.document import keep

    return keep(whole, asked, spec, folder / store.FAILURES, FILMS_MAX)


def _drawn(whole: Document, folder: Path) -> bytes:
    from cachewitness.sessions.run import store
    from cachewitness.vectors import page as consumed_page

    return consumed_page.of_vectors(whole, folder / store.FAILURES)


def _print_outcome(path: Path, file: File, came: Consumed, *, quiet: bool) -> None:
    if not quiet:
        classes = (name for name in ("valid", "acceptable", "invalid") if came.asked[name])
        counts = ", ".join(f"{name} {came.passed[name]} of {came.asked[name]}" for name in classes)
        differ = f" ({came.differing} differ, as they may)" if came.differing else ""
        _print_line(f"{path}: {counts or 'nothing asked'}{differ}")
        for reason, count in came.not_run.items():
            _print_line(f"  not run: {count}: {reason}")
    for vector in came.unknown:
        _print_line(f"  unknown {vector}: a checker crashed")
    for failure in came.failures:
        hunted = "; ".join(f"{flag}: {file.flags[flag].bug}" for flag in failure.vector.flags)
        _print_line(f"  FAILED {failure.vector.id} ({failure.vector.comment})")
        _print_line(f"    expected {failure.expected}")
        _print_line(f"    got      {failure.got}")
        _print_line(f"    hunts    {hunted}")


def _print_line(line: str) -> None:
    """Print a line; what vectors of others say in it cannot steer the terminal."""
    from cachewitness.report import terminal

    terminal.print_lines([line], terminal.console())
