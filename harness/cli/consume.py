"""`cachewitness consume`: test vectors on an engine."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness._util.lines import printable
from harness.cli.options import engine_of, engine_option, release_option

if TYPE_CHECKING:
    from harness.vectors.consume import Consumed
    from harness.vectors.form import File


@click.command()
@click.argument("vectors", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="VECTORS…")
@engine_option
@release_option
@click.option("--quiet", is_flag=True, help="Print only failures and the verdict.")
def consume(vectors: tuple[Path, ...], engine: str, release: str | None, quiet: bool) -> int:
    """Ask an engine the questions of test vectors, files or folders of them, and compare its answers.

    Exits with 1 if an answer is wrong, and with 5 if the engine could be asked nothing.
    """
    from harness.vectors import consume as consuming
    from harness.vectors import store
    from harness.verdict import result as verdict

    spec = engine_of(engine, release=release)
    files = [(path, store.load(path)) for path in store.find(vectors)]
    passed, asked, failed, unknown = Counter[str](), 0, 0, 0
    for path, file in files:
        came = consuming.consume(file, spec)
        passed += came.passed
        asked += came.asked.total()
        failed += len(came.failures)
        unknown += len(came.unknown)
        _tell(path, file, came, quiet=quiet)
    told = ", ".join(f"{passed[name]} {name}" for name in ("valid", "acceptable", "invalid"))
    click.echo(f"passed: {told}; failed: {failed}" + (f"; unknown: {unknown}" if unknown else "") + f"; asked: {asked}")
    if failed:
        return verdict.EXIT_FAIL
    if unknown:
        return verdict.EXIT_UNKNOWN
    if not asked:
        click.echo("cachewitness: nothing was consumed", err=True)
        return verdict.EXIT_NOTHING_CHECKED
    return verdict.EXIT_PASS


def _tell(path: Path, file: File, came: Consumed, *, quiet: bool) -> None:
    if not quiet:
        classes = (name for name in ("valid", "acceptable", "invalid") if came.asked[name])
        told = ", ".join(f"{name} {came.passed[name]} of {came.asked[name]}" for name in classes)
        differ = f" ({came.differing} differ, as they may)" if came.differing else ""
        _say(f"{path}: {told or 'nothing asked'}{differ}")
        for reason, count in came.not_run.items():
            _say(f"  not run: {count}: {reason}")
    for vector in came.unknown:
        _say(f"  unknown {vector}: a checker crashed")
    for failure in came.failures:
        hunted = "; ".join(f"{flag}: {file.flags[flag].bug}" for flag in failure.vector.flags)
        _say(f"  FAILED {failure.vector.id} ({failure.vector.comment})")
        _say(f"    expected {failure.expected}")
        _say(f"    got      {failure.got}")
        _say(f"    hunts    {hunted}")


def _say(line: str) -> None:
    """Print a line; what vectors of others say in it cannot steer the terminal."""
    click.echo(printable(line))
