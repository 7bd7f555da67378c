"""`cachewitness consume`: test vectors on an engine."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.json_option import json_option, print_json
from harness.cli.options import engine_of, engine_option, release_option

if TYPE_CHECKING:
    from harness.cli.documents import ConsumedFile
    from harness.vectors.consume import Consumed
    from harness.vectors.form import File


@click.command()
@click.argument("vectors", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="VECTORS…")
@engine_option
@release_option
@click.option("--quiet", is_flag=True, help="Print only failures and the verdict.")
@json_option("consumed")
def consume(vectors: tuple[Path, ...], engine: str, release: str | None, quiet: bool, as_json: bool) -> int:
    """Ask an engine the questions of test vectors, files or folders of them, and compare its answers.

    Exits with 1 if an answer is wrong, and with 5 if the engine could be asked nothing.
    """
    from harness.vectors import consume as consuming
    from harness.vectors import store
    from harness.verdict import result as verdict

    spec = engine_of(engine, release=release)
    files = [(path, store.load(path)) for path in store.find(vectors)]
    passed, asked, failed, unknown = Counter[str](), 0, 0, 0
    entries: list[ConsumedFile] = []
    for path, file in files:
        came = consuming.consume(file, spec)
        passed += came.passed
        asked += came.asked.total()
        failed += len(came.failures)
        unknown += len(came.unknown)
        if as_json:
            entries.append(_entry(path, file, came))
        else:
            _tell(path, file, came, quiet=quiet)
    codes = {verdict.EXIT_FAIL: failed, verdict.EXIT_UNKNOWN: unknown, verdict.EXIT_NOTHING_CHECKED: not asked}
    code = next((code for code, holds in codes.items() if holds), verdict.EXIT_PASS)
    if as_json:
        from harness.cli import documents

        print_json(documents.Consumed(engine=spec.text, exit_code=code, files=entries))
        return code
    told = ", ".join(f"{passed[name]} {name}" for name in ("valid", "acceptable", "invalid"))
    _say(f"passed: {told}; failed: {failed}" + (f"; unknown: {unknown}" if unknown else "") + f"; asked: {asked}")
    if code == verdict.EXIT_NOTHING_CHECKED:
        click.echo("cachewitness: nothing was consumed", err=True)
    return code


def _entry(path: Path, file: File, came: Consumed) -> ConsumedFile:
    from harness.cli.documents import ConsumedFile, WrongAnswer

    wrong = [
        WrongAnswer(
            vector=failure.vector.id,
            comment=failure.vector.comment,
            expected=failure.expected,
            got=failure.got,
            hunts=[f"{flag}: {file.flags[flag].bug}" for flag in failure.vector.flags],
        )
        for failure in came.failures
    ]
    return ConsumedFile(
        file=str(path),
        asked=dict(came.asked),
        passed=dict(came.passed),
        differing=came.differing,
        unknown=came.unknown,
        not_run=dict(came.not_run),
        failures=wrong,
    )


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
    from harness.verdict.report import terminal

    terminal.print_lines([line], terminal.console())
